# SPDX-License-Identifier: GPL-2.0-or-later
"""Configured policies: [cgroup] sections, the xattr, and their precedence."""
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest

import control_server
import machine
import parts
import policies
from machine import wait_for
from parts import USAGE, ebbctl, ebbctl_json
from refusals import away    # fixture
from rows import few

# By an event, 0.1 s, five times of which a busy machine gets; not by the look that ebbd takes each second.
AT_ONCE = 5 * 0.1


@pytest.fixture
def declared(ebbd_lock, logs, tmp_path, monkeypatch):
    """declared(text) starts ebbd with that configuration; .reload(text) changes it."""
    monkeypatch.setenv("EBB_STATE_DIR", str(tmp_path / "state"))
    conf, running = tmp_path / "ebb.conf", []

    def start(text):
        conf.write_text(text)
        d = parts.Ebbd(logs / f"ebbd{len(running)}.log", config=conf)
        running.append(d)

        def reload(text):
            conf.write_text(text)
            said = len(machine.read(d.log))
            d.signal(signal.SIGHUP)
            new = lambda: machine.read(d.log)[said:]
            wait_for(lambda: "configuration read" in new() or "keeping the old" in new(), 5, "reload")
            return new()
        d.reload, d.conf = reload, conf
        return d

    yield start
    for d in running:
        d.stop()
    if machine.PINS.is_dir():
        machine.pins_remove()


@pytest.fixture
def small_stack():
    """Programs get a stack of 1 MiB, an eighth of the usual: a recursion overflows it at an eighth of the depth."""
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_STACK, limits)


def section(glob, *lines):
    return "\n".join([f'[cgroup "{glob}"]', *lines, ""])


def parent():
    return f"/ebb-test-{os.getpid()}"


def policy_of(c):
    row = policies.attached().get(c.rel)
    return row and row["policy"]


def at_once(changes):
    """Pairs (act, whether it has taken effect), until two of them did; a busy machine holds up some."""
    took = []
    for act, done in changes:
        start = time.monotonic()
        act()
        wait_for(done, 5, "effect", interval=0.005)
        took.append(time.monotonic() - start)
        if len(took) > 2 and sorted(took)[1] < AT_ONCE:
            return
    assert sorted(took)[1] < AT_ONCE, took


def test_cgroups_nested_deeply(declared, cgroup, small_stack):
    """A user who may create cgroups cannot end ebbd by nesting them; 64 levels below the mount count."""
    c = cgroup(name="deep")
    path, depth = str(c.path), 300
    try:
        for _ in range(depth):
            path += "/a"
            os.mkdir(path)
        last = f"{parent()}/deep" + "/a" * 62
        d = declared(section(f"{parent()}/deep", "policy = leap") + section(last, "policy = leap") +
                     section(last + "/a", "policy = leap"))
        assert {c.rel, last} == set(policies.attached())
        # While it runs, below what it watches.
        os.mkdir(f"{machine.memory_root()[0]}{last}/b")
        os.rmdir(f"{machine.memory_root()[0]}{last}/b")
        d.reload(section(f"{parent()}/deep", "policy = none"))
        assert policy_of(c) == "none" and d.alive()
    finally:
        while path != str(c.path):
            os.rmdir(path)
            path = path.rsplit("/", 1)[0]


def test_existing_and_later_cgroups(declared, cgroup):
    early, other = cgroup(name="web-1"), cgroup(name="db-1")
    declared(section(f"{parent()}/web-*", "policy = leap", "pw_max = 32"))
    assert policies.attached()[early.rel]["params"]["pw_max"] == 32
    assert policies.attached()[early.rel]["by"].endswith("ebb.conf:2")
    assert policy_of(other) is None
    late = []
    at_once((lambda: late.append(cgroup(name=f"web-{i}")), lambda: policy_of(late[-1]) == "leap")
            for i in range(2, 14))
    # Made together with its parents: each is seen.
    deep = machine.memory_root()[0] / parent()[1:] / "db-1" / "x" / "y"
    deep.mkdir(parents=True)
    try:
        assert policy_of(other) is None
    finally:
        deep.rmdir()
        deep.parent.rmdir()


def test_nested_ones_made_in_one_go(declared, cgroup):
    base = cgroup(name="base")
    declared(section(f"{parent()}/base/x/y", "policy = stride"))
    deep = base.path / "x" / "y"
    deep.mkdir(parents=True)
    try:
        wait_for(lambda: policies.attached().get(f"{base.rel}/x/y"), 5, "attached")
    finally:
        deep.rmdir()
        deep.parent.rmdir()
    wait_for(lambda: f"{base.rel}/x/y" not in policies.attached(), 5, "forgotten")


def made_anew(c):
    """Another cgroup under the same path, within less than ebbd's second."""
    for d in (c.path, *c.twins):
        d.rmdir()
        d.mkdir()


def test_recreated_is_another(declared, cgroup):
    """As a service's at each restart: nothing of the removed one stays attached."""
    c, by_hand = cgroup(name="web-1"), cgroup(name="db-1")
    declared(section(f"{parent()}/web-*", "policy = leap"))
    ebbctl("policy", "attach", "stride", by_hand.path)
    for _ in range(5):
        made_anew(c)
    made_anew(by_hand)
    paths = lambda: [row["cgroup"] for row in ebbctl_json("status")["attachments"]]
    wait_for(lambda: paths() == [str(c.path)], 5, "the dead ones to be forgotten")
    # Published once a second.
    wait_for(lambda: len(parts.pinned_rows()) == 1, 5, "the row of the one that is there")


def test_the_last_section_counts_as_a_whole(declared, cgroup):
    c = cgroup(name="web-1")
    declared(section(f"{parent()}/web-1", "policy = leap", "pw_max = 32") +
             section(f"{machine.memory_root()[0]}{parent()}/*", "policy = stride"))
    row = policies.attached()[c.rel]
    assert row["policy"] == "stride" and row["params"] == {"window": 64}


def test_explicit_wins_and_detach_says_so(declared, cgroup):
    c, text = cgroup(name="web-1"), section(f"{parent()}/*", "policy = leap")
    d = declared(text)
    ebbctl("policy", "attach", "stride", c.path)
    d.reload(text)
    assert policy_of(c) == "stride"
    told = ebbctl("policy", "detach", c.path).stdout
    assert f"{d.conf}:2" in told and "leap" in told
    assert policy_of(c) is None
    # Not behind somebody's back, whatever happens beside it ...
    os.chmod(c.path, 0o755)
    cgroup(name="web-2")
    wait_for(lambda: f"{parent()}/web-2" in policies.attached(), 5, "the other is attached")
    assert policy_of(c) is None
    # ... but when it was said.
    d.reload(text)
    assert policy_of(c) == "leap"
    ebbctl("policy", "set", c.path, "pw_max=7")
    d.reload(text)
    assert policies.attached()[c.rel]["params"]["pw_max"] == 7


def test_reload_attaches_changes_and_detaches(declared, cgroup):
    c, by_hand = cgroup(name="web-1"), cgroup(name="db-1")
    d = declared("")
    ebbctl("policy", "attach", "none", by_hand.path)
    assert policy_of(c) is None
    d.reload(section(f"{parent()}/web-1", "policy = leap"))
    assert policy_of(c) == "leap"
    d.reload(section(f"{parent()}/web-1", "policy = leap", "pw_max = 3", "run = daemon"))
    assert policies.attached()[c.rel]["params"]["pw_max"] == 3
    assert "run = daemon: no longer supported and ignored" in machine.read(d.log)
    d.reload("")
    assert policy_of(c) is None and policy_of(by_hand) == "none"


def test_restart_knows_who_attached(declared, cgroup):
    c, by_hand = cgroup(name="web-1"), cgroup(name="db-1")
    d = declared(section(f"{parent()}/web-1", "policy = leap"))
    ebbctl("policy", "attach", "stride", by_hand.path, "detect=1")
    wait_for(lambda: parts.pinned_stats(c)["policy"] == "leap" and
             parts.pinned_stats(by_hand)["policy"] == "stride", 5, "published")
    d.kill()
    declared(section(f"{parent()}/other", "policy = leap"))
    assert policy_of(c) is None
    row = policies.attached()[by_hand.rel]
    assert (row["policy"], row["by"], row["detect"]) == ("stride", "command", True)


def test_long_paths_outlive_ebbd(declared, cgroup):
    """cgroup_stats has room for 127 letters of a path; pods' and containers' are longer."""
    base = cgroup(name="p" * 60)
    if base.version == 2:
        base.set("cgroup.subtree_control", "+memory")
    children = [parts.Cgroup(f"{base.rel[1:]}/{'c' * 80}-{i}") for i in range(2)]
    try:
        d = declared("")
        for i, c in enumerate(children):
            assert len(c.rel) > 127
            ebbctl("policy", "attach", "leap", c.path, f"pw_max={i + 7}")
        published = lambda: [v["path"] for v in parts.pinned_rows()]
        wait_for(lambda: published() == 2 * [children[0].rel[:127]], 5, "published")
        d.kill()
        declared("")
        assert {c.rel: policies.attached()[c.rel]["params"]["pw_max"] for c in children} == {
            children[0].rel: 7, children[1].rel: 8}
    finally:
        for c in children:
            c.remove()


BAD = [
    (["policy = nosuch"], 2, "nosuch"),
    (["policy = leap", "pw_max = 0"], 3, "out of range"),
    (["policy = leap", "pw_max = 1", "nosuch = 1"], 4, "nosuch"),
    (["policy = leap", "pw_max = x"], 3, "'x'"),
    (["policy = leap", "run = moon"], 3, "moon"),
    (["pw_max = 3"], 1, "no policy"),
]


@pytest.mark.parametrize("lines, line, word", few(BAD, BAD[0], BAD[3]))
def test_bad_sections(declared, cgroup, lines, line, word):
    """At a reload the old ones stay; at start there is no start; --check-config says most of it."""
    c, good = cgroup(name="web-1"), section(f"{parent()}/*", "policy = stride")
    d = declared(good)
    said = d.reload(section("/a", *lines))
    assert f"{d.conf}:{line}: " in said and word in said and "keeping the old configuration" in said
    assert policy_of(c) == "stride"
    later = cgroup(name="web-2")
    wait_for(lambda: policy_of(later) == "stride", 5, "the old ones still count")
    d.stop()
    with pytest.raises(machine.MachineError, match=f"ended with {USAGE}: .*:{line}: .*{word}"):
        declared(section("/a", *lines))
    if lines[-1] != "run = daemon":
        done = subprocess.run([machine.BIN / "ebbd", "--check-config", "--config", d.conf],
                              capture_output=True, text=True)
        assert done.returncode == USAGE and f":{line}: " in done.stderr and word in done.stderr


UNCHECKED = ("__u64 k = f->vpn;\n\tstruct ebb_counters *c = bpf_map_lookup_elem(&counters, &k);"
             "\n\tc->misses++;")


def test_policy_that_the_kernel_does_not_take(declared, cgroup, tmp_path):
    """As after a kernel's upgrade: ebbd starts, that section alone attaches nothing, and it is said."""
    made = lambda *body: policies.compile_policy(tmp_path / "src", policies.source("mine", *body))
    kept = tmp_path / "state" / "policies"
    kept.mkdir(parents=True)
    shutil.copy(made(UNCHECKED), kept)
    bad, good = cgroup(name="bad"), cgroup(name="good")
    text = (section(f"{parent()}/*", "policy = stride") +
            section(f"{parent()}/bad", "policy = mine", "window = 9"))
    d = declared(text)
    assert policy_of(good) == "stride" and policy_of(bad) is None
    [row] = ebbctl_json("status")["inactive"]
    assert row["by"] == f"{d.conf}:4" and row["policy"] == "mine" and "verifier" in row["reason"]
    for said in machine.read(d.log), ebbctl("status").stdout:
        assert f'{d.conf}:4: [cgroup "{row["cgroup"]}"] is inactive: {row["reason"]}' in said
    xattr(bad, "mine")
    wait_for(lambda: f"{bad.path}: user.ebb.policy: " in machine.read(d.log), 5, "said of the xattr")
    os.removexattr(bad.path, "user.ebb.policy")
    # What is wrong with the section itself is a mistake as ever.
    assert "keeping the old configuration" in d.reload(section(f"{parent()}/bad", "policy = mine", "window = 0"))
    ebbctl("policy", "load", made())
    d.reload(text)
    assert policy_of(bad) == "mine" and ebbctl_json("status")["inactive"] == []


def xattr(c, value):
    os.setxattr(c.path, "user.ebb.policy", value.encode())


def test_xattr(declared, cgroup):
    c, d = cgroup(name="web-1"), declared(section(f"{parent()}/web-1", "policy = leap"))
    marked = lambda: xattr(c, "stride window=4"), lambda: policy_of(c) == "stride"
    bare = lambda: os.removexattr(c.path, "user.ebb.policy"), lambda: policy_of(c) == "leap"
    at_once([marked, bare] * 6)
    marked[0]()
    wait_for(marked[1], 5, "effect")
    assert policies.attached()[c.rel]["params"] == {"window": 4}
    assert policies.attached()[c.rel]["by"] == "user.ebb.policy"
    xattr(c, "stride window=5")
    wait_for(lambda: policies.attached()[c.rel]["params"] == {"window": 5}, 5, "changed")
    # What is wrong with one is said, and the section counts.
    for bad in ("nosuch", "stride window=0", "stride nosuch=1", "stride window", "",
                "stride" + 2000 * " ", "stride detect=2"):
        said = len(machine.read(d.log))
        xattr(c, bad)
        wait_for(lambda: str(c.path) in machine.read(d.log)[said:], 5, f"complaint about '{bad}'")
        wait_for(lambda: policy_of(c) == "leap", 5, "the section's")
        xattr(c, "stride")
        wait_for(lambda: policy_of(c) == "stride", 5, "attached again")
    os.removexattr(c.path, "user.ebb.policy")
    wait_for(lambda: policy_of(c) == "leap", 5, "the section's")


def test_xattr_alone_comes_and_goes(declared, cgroup):
    c, d = cgroup(name="web-1"), declared("")
    xattr(c, "leap pw_max=3")
    wait_for(lambda: policy_of(c) == "leap", 5, "attached")
    assert policies.attached()[c.rel]["params"]["pw_max"] == 3
    told = ebbctl_json("policy", "detach", c.path)
    assert "user.ebb.policy" in told["declared"]
    d.reload("")
    assert policy_of(c) == "leap"
    os.removexattr(c.path, "user.ebb.policy")
    wait_for(lambda: policy_of(c) is None, 5, "detached")


def excluded(path):
    """Whether the cgroup is kept off swap."""
    name = "memory.swappiness" if machine.memory_root()[1] == 1 else "memory.swap.max"
    return machine.read(path / name).strip() == "0"


@pytest.fixture
def scoped(swap_lock, away, declared, cgroup):
    """A device with --scope attached, but for the device, and a cgroup that a command attached."""
    record = {"scope": "attached", "backup": "", "mount": str(away / "mnt")}
    control_server.write_record(away / "run", "scoped", **record)
    other = cgroup(name="other")
    d = declared("")
    ebbctl("policy", "attach", "none", other.path)
    yield d
    assert not excluded(other.path)
    ebbctl("device", "destroy", "scoped")
    assert not (away / "run" / "devices" / "scoped.scope").exists()


def test_scope_of_a_device_follows(scoped, cgroup):
    """Sections, xattrs and later cgroups: within seconds they have swap, and those without a policy none."""
    web, db = cgroup(name="web"), cgroup(name="db")
    ebbctl("policy", "attach", "none", f"{parent()}/other")
    assert excluded(web.path) and excluded(db.path)
    scoped.reload(section(f"{parent()}/web", "policy = leap"))
    wait_for(lambda: not excluded(web.path), 30, "swap of a new section's cgroup")
    xattr(db, "none")
    wait_for(lambda: not excluded(db.path), 30, "swap of a cgroup with an xattr")
    os.removexattr(db.path, "user.ebb.policy")
    wait_for(lambda: excluded(db.path), 30, "no swap without it")
    scoped.reload("")
    wait_for(lambda: excluded(web.path), 30, "no swap without the section")


def test_scope_of_a_device_follows_later_cgroups(scoped, cgroup):
    """An empty slice is kept off swap until a section's glob matches a cgroup below it."""
    base = cgroup(name="machine")
    scoped.reload(section(f"{parent()}/machine/libpod-*", "policy = leap"))
    ebbctl("policy", "attach", "none", f"{parent()}/other")
    assert excluded(base.path)
    if base.version == 2:
        base.set("cgroup.subtree_control", "+memory")
    made = [parts.Cgroup(f"{base.rel[1:]}/libpod-{i}") for i in range(20)]
    try:
        wait_for(lambda: not any(excluded(c.path) for c in [base, *made]), 30, "swap of the slice and of all in it")
        wait_for(lambda: len(ebbctl_json("status")["attachments"]) == 21, 30, "all attached")
    finally:
        for c in made:
            c.remove()


TENANT, LIMIT = 4711, 64


@pytest.fixture
def tenants(cgroup):
    """tenants(n) creates cgroups that belong to a user."""
    def make(n):
        made = [cgroup(name=f"tenant-{i}") for i in range(n)]
        for c in made:
            os.chown(c.path, TENANT, TENANT)
        return made
    return make


def users():
    return ebbctl_json("status")["users"]


def test_one_user_cannot_take_all_attachments(declared, tenants, cgroup):
    made, c, d = tenants(LIMIT + 3), cgroup(name="web-1"), declared("")
    own = lambda: sum(policy_of(t) == "none" for t in made)
    for t in made:
        xattr(t, "none")
    wait_for(lambda: users()["attachments_refused"] >= 3, 20, "refusals")
    assert own() == LIMIT
    line = f"user {TENANT} has {LIMIT} configured attachments, all users {LIMIT} (limits: {LIMIT}, 768)"
    wait_for(lambda: line in machine.read(d.log), 5, "log line")
    # Others have theirs, and what goes makes room.
    xattr(c, "none")
    wait_for(lambda: policy_of(c) == "none", 5, "the policy of root's cgroup")
    attached = [t for t in made if policy_of(t)]
    refused = next(t for t in made if not policy_of(t))
    os.removexattr(attached[0].path, "user.ebb.policy")
    wait_for(lambda: own() == LIMIT - 1, 20, "the detachment")
    xattr(refused, "none")
    wait_for(lambda: own() == LIMIT, 20, "the attachment of another one")


def test_a_user_who_changes_a_policy_in_a_loop_waits(declared, tenants, cgroup):
    """The last value counts in the end, and others' changes take effect meanwhile."""
    [t], c, d = tenants(1), cgroup(name="web-1"), declared("")
    began = time.monotonic()
    for i in range(200):
        xattr(t, "stride" if i % 2 else "leap")
        wait_for(lambda: policy_of(t) == ("stride" if i % 2 else "leap")
                 or users()["changes_deferred"], 20, "an effect")
    assert users()["changes_deferred"] > 0
    xattr(c, "none")
    wait_for(lambda: policy_of(c) == "none", 2, "the policy of root's cgroup")
    xattr(t, "linux")
    wait_for(lambda: policy_of(t) == "linux", 30, "the last value")
    # CHANGE_BURST of change_rate.h, and one each CHANGE_NS.
    most = 32 + 8 * (time.monotonic() - began) + 1
    assert machine.read(d.log).count(f"{t.path}: attached") <= most
