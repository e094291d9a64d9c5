# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures of the kernel module's cases; import them by name."""

import pytest

import kmodule
from kmodule import Disk, KernelDevice, RdmaDonor, run


@pytest.fixture(scope="session")
def roce():
    kmodule.soft_roce()


@pytest.fixture
def module(roce):
    """Loads the module; unloads it afterwards and checks that it left no RDMA objects."""
    before = kmodule.rdma_objects()
    run("insmod", kmodule.module_path())
    yield
    run("rmmod", "ebb_swap")
    assert not kmodule.module_loaded()
    after = kmodule.rdma_objects()
    assert all(after[kind] <= before[kind] for kind in after), (before, after)


@pytest.fixture
def disk():
    """disk(mib): a RAM disk, removed after the devices that use it."""
    made = []

    def make(mib=32, **settings):
        made.append(Disk(mib, **settings))
        return made[-1]

    yield make
    for d in made:
        d.remove()


@pytest.fixture
def donor(roce, logs):
    """donor(): an ebb-donord that lends by RDMA."""
    made = []

    def make(**settings):
        made.append(RdmaDonor(logs / f"donord-{len(made)}.log", **settings))
        return made[-1]

    yield make
    for d in made:
        d.stop()


@pytest.fixture
def kernel_device(module, disk, donor):
    """kernel_device(...): a KernelDevice, destroyed before donors and disks."""
    made = []

    def make(**settings):
        made.append(KernelDevice(**settings))
        return made[-1]

    yield make
    for d in made:
        d.destroy()
