# SPDX-License-Identifier: GPL-2.0-or-later
"""Prefetching beside zswap, which is on in some of these tests."""
import pytest

import policies
import zswap
from machine import wait_for
from parts import ebbctl
from zswap import Program, counts, growth

PAGES, FAR, BLOCK, ASKED = 2048, 2048 - 64, 8, 64


@pytest.fixture
def tier(swap_lock):
    """zswap, off and without readahead of the kernel; restored afterwards, with an empty pool."""
    z = zswap.Zswap()
    try:
        z.set(enabled="N")
        zswap.READAHEAD.write_text("0")
        yield z
    finally:
        z.finish()


@pytest.fixture
def program(tier, ebbd, device, cgroup, tmp_path):
    """A program whose policy requests pages 0 to 63 at its fault on the page that ask() sets."""
    params = [(n, f'EBB_PARAM({n}, "{n.lower()}", 0, 0, EBB_VPN_END, "page")') for n in ("AT", "TO")]
    body = f"if (f->vpn == p->v[AT]) ebb_prefetch(f, p->v[TO], 1, {ASKED});"
    ebbctl("policy", "load", policies.compile_policy(tmp_path, policies.source(body=body, params=params)))
    p = Program(cgroup(), PAGES)
    ebbctl("policy", "attach", "mine", p.cgroup.path)
    p.do("write", 0, PAGES)
    yield p
    p.end()


def is_watched(state):
    return policies.call("status")["zswap"] == state


def out(program, tier, into_zswap, blocks):
    """Swaps out the program's @blocks, into zswap or past it to the device."""
    tier.set(enabled="Y" if into_zswap else "N")
    for block in blocks:
        program.do("out", block * BLOCK, (block + 1) * BLOCK)
    tier.set(enabled="N")
    if not into_zswap:
        # What is written stays in the swap cache until it is reclaimed once more.
        for _ in range(2):
            program.cgroup.evict()


def ask(program, device_pages, held):
    """Has the policy request the first 64 pages; @held of them are skipped, @device_pages read."""
    now = lambda: growth(before, counts(program.cgroup))
    arrived = lambda: now()["executor_zswapped"] + now()["prefetched"] >= ASKED
    for page in range(FAR, PAGES, 8):
        before = counts(program.cgroup)
        ebbctl("policy", "set", program.cgroup.path, f"at={program.vpn + page}", f"to={program.vpn}")
        program.do("read", page, page + 1)
        if not now()["requests"]:
            continue
        wait_for(lambda: arrived() or now()["executor_stale"], 10, "prefetched pages")
        # A request for which ebbd comes late is dropped: the next page asks again.
        if arrived():
            break
    else:
        pytest.fail("no fault of the last pages called the policy in time")
    told = now()
    assert (told["prefetched"], told["executor_zswapped"]) == (device_pages, held), told
    before = counts(program.cgroup)
    assert program.do("read", 0, ASKED) == ASKED
    return growth(before, counts(program.cgroup))


def test_prefetch_without_zswap(program, tier):
    """Nothing is attached, nothing is skipped, nothing is counted."""
    assert is_watched("off")
    out(program, tier, False, range(PAGES // BLOCK))
    told = ask(program, ASKED, 0)
    assert told["hits"] + told["late"] == ASKED and told["misses"] == 0
    assert not [k for k in told if k.startswith("zswap_")]


def test_prefetch_reaches_through_zswap(program, tier):
    """Pages on the device are prefetched, those in zswap beside them are not; each counts as such."""
    tier.set(enabled="Y")
    wait_for(lambda: is_watched("on"), 20, "programs that watch zswap")
    blocks = range(PAGES // BLOCK)
    before = counts(program.cgroup)
    out(program, tier, True, blocks[:FAR // BLOCK:2])
    out(program, tier, False, [*blocks[1:FAR // BLOCK:2], *blocks[FAR // BLOCK:]])
    told = growth(before, counts(program.cgroup))
    held = FAR // 2
    assert 0.9 * held <= told["zswap_stored"] <= held + told["zswap_written_back"] + PAGES // 8, told
    assert told["zswap_direct"] >= 0.9 * (PAGES - held), told
    assert zswap.held_kib() >= 0.9 * held * 4

    told = ask(program, ASKED // 2, ASKED // 2)
    assert told["hits"] + told["late"] == ASKED // 2 and told["misses"] == 0, told
    assert (told["zswap_hits"], told["zswap_misses"]) == (ASKED // 2, 0), told
    # Version 1 of the memory controller does not tell.
    assert told.get("zswap_kernel_in", ASKED // 2) == ASKED // 2, told
    # Written again, and past zswap: the slots are others, or their pages are on the device now.
    program.do("write", 0, ASKED)
    out(program, tier, False, range(ASKED // BLOCK))
    told = ask(program, ASKED, 0)
    assert told["hits"] + told["late"] == ASKED and told["zswap_hits"] == 0, told


@pytest.mark.long
def test_pages_that_the_shrinker_writes_reach_donors(program, tier, device):
    """They are sealed, prefetched like others, and right; their slots are discarded."""
    tier.set(enabled="Y", **({"shrinker_enabled": "Y"} if tier.has("shrinker_enabled") else {}))
    wait_for(lambda: is_watched("on"), 20, "programs that watch zswap")
    out(program, tier, True, range(PAGES // BLOCK))
    before, server = counts(program.cgroup), device.stats()
    assert before["zswap_stored"] >= 0.9 * PAGES
    # A pool without room is shrunk at each store that it refuses, by a few pages, oldest first.
    tier.set(enabled="Y", max_pool_percent=0)

    def written_back():
        program.do("write", PAGES - BLOCK, PAGES)
        program.do("out", PAGES - BLOCK, PAGES)
        return growth(before, counts(program.cgroup))["zswap_written_back"] >= PAGES // 4

    wait_for(written_back, 60, "pages written back", interval=0.01)
    tier.set(enabled="N")
    for _ in range(2):
        program.cgroup.evict()
    told, done = growth(before, counts(program.cgroup)), growth(server, device.stats())
    assert told.get("zswap_kernel_written_back", told["zswap_written_back"]) == told["zswap_written_back"]
    assert done["pages_written_donor"] >= told["zswap_written_back"]
    print(f"{told['zswap_written_back']} pages written back, {told['zswap_direct']} direct; "
          f"{done['pages_written_donor']} pages in {done['write_requests']} writes")
    told = ask(program, ASKED, 0)
    assert told["hits"] + told["late"] == ASKED and told["zswap_hits"] == 0, told
    assert program.do("read", 0, PAGES) == PAGES
    program.end()
    wait_for(lambda: device.stats()["pages_discarded"] > server["pages_discarded"], 30, "discards")
