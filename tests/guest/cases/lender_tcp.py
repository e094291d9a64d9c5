# SPDX-License-Identifier: GPL-2.0-or-later
"""
The peer of test_pressure_net.py: two donors on this end of the link, with the shared key.  Writes
"lent" to this machine's /hostout when both run, and runs until the guest ends.
"""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))

import link
import parts
from key import shared_key

OUT = Path("/hostout")


def main():
    link.up(link.PEER)
    donors = [parts.Donor(OUT / f"donord-{port}.log", listen=f"{link.PEER}:{port}", memory="576M",
                          options=("--keys", shared_key().path)) for port in link.PORTS]
    (OUT / "lent").touch()
    while all(d.alive() for d in donors):
        time.sleep(1)
    raise SystemExit("a donor ended")


main()
