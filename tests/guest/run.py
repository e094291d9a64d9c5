#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs one command inside a guest, in this directory, as root, on a Debian kernel.

  tests/guest/run.py --kernel 6.1 -- uname -a
  tests/guest/run.py --memory 512 -- tests/guest/pytest tests/guest/cases/test_boot.py

The exit status is the command's, or 125 if the guest crashed, hung or reported a kernel fault.
"""
import argparse
import shlex
import sys

import guest
from kernel import GuestError, SERIES


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kernel", default="6.12", choices=SERIES)
    p.add_argument("--memory", type=int, default=1024, metavar="MIB")
    p.add_argument("--cpus", type=int, default=2)
    p.add_argument("--timeout", type=int, default=300, metavar="SECONDS")
    p.add_argument("--systemd", action="store_true", help="boot systemd instead of a bare shell")
    p.add_argument("--append", default="", help="further kernel parameters")
    p.add_argument("--peer", default="", metavar="COMMAND",
                   help="what a second guest runs, at the other end of a link")
    p.add_argument("--name", default="", help="directory for results below build/guest/runs")
    p.add_argument("command", nargs="+")
    a = p.parse_args()
    try:
        result = guest.guest_run(a.command, guest.Options(
            kernel=a.kernel, memory=a.memory, cpus=a.cpus, timeout=a.timeout,
            systemd=a.systemd, append=a.append, name=a.name, peer=shlex.split(a.peer)),
            lambda line: print(line, flush=True))
    except GuestError as e:
        print(e, file=sys.stderr)
        return 125
    print(f"guest: {a.kernel} {result.seconds:.1f} s, "
          f"{'ok' if result.ok else result.reason}; see {result.directory}", file=sys.stderr)
    if result.ok or (result.status > 0 and not result.trouble):
        return result.status
    print(guest.console_tail(result), file=sys.stderr)
    return 125


if __name__ == "__main__":
    sys.exit(main())
