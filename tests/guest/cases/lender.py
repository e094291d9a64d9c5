# SPDX-License-Identifier: GPL-2.0-or-later
"""
The peer of test_kmod_link.py, which sends requests by files in this machine's /hostout.  On
"wanted", lends the amount of memory in it by RDMA, as a new donor with the session grace period
and the slab size in it, and renames the file to "lent".
On "pace", applies the netem in it to its end of the link and renames the file to "paced".  Runs
until the guest ends.
"""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))

import kmodule

OUT = Path("/hostout")


def main():
    donor = None
    kmodule.soft_roce_between(kmodule.ADDRESS)
    while True:
        if (OUT / "wanted").exists():
            if donor:
                donor.kill()
            memory, keep, slab = (OUT / "wanted").read_text().split()
            donor = kmodule.RdmaDonor(OUT / "donord.log", memory=memory, keep=keep, slab=slab)
            (OUT / "wanted").rename(OUT / "lent")
        if (OUT / "pace").exists():
            kmodule.run("modprobe", "sch_netem")
            kmodule.run("tc", "qdisc", "replace", "dev", "eth0", "root", "netem",
                        *(OUT / "pace").read_text().split())
            (OUT / "pace").rename(OUT / "paced")
        time.sleep(0.1)


main()
