# SPDX-License-Identifier: GPL-2.0-or-later
"""
The other machine of test_kmod_link.py, which writes to this one's /hostout: lends the memory that
"wanted" names by RDMA, as a new donor, and calls the file "lent" then; gives its end of the link
the netem that "pace" names, and calls that "paced".  Until the guest ends.
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
            donor = kmodule.RdmaDonor(OUT / "donord.log", memory=(OUT / "wanted").read_text())
            (OUT / "wanted").rename(OUT / "lent")
        if (OUT / "pace").exists():
            kmodule.run("modprobe", "sch_netem")
            kmodule.run("tc", "qdisc", "replace", "dev", "eth0", "root", "netem",
                        *(OUT / "pace").read_text().split())
            (OUT / "pace").rename(OUT / "paced")
        time.sleep(0.1)


main()
