# SPDX-License-Identifier: GPL-2.0-or-later
"""
What is installed: that man pages, completions, units and packages agree with the programs and
with each other.  `make deb` and `make rpm-lint` build the packages.
"""
import fnmatch
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import units
import zsh
from machine import BIN, REPO, wait_for
from rows import few

pytestmark = pytest.mark.beside

MAN = REPO / "docs" / "man"
PACKAGING = REPO / "packaging"
SIM_COMMANDS = ("show", "plot", "report", "advise", "trace", "policies", "cluster", "extents",
                "heap")
# systemd-analyze security: 0 is best, 10 is worst.
MOST_EXPOSED = {
    "ebbd.service": 4.0,
    "ebb-donord.service": 4.0,
    "ebb-device@.service": 4.0,
    "ebb-metrics@.service": 1.5,
    "ebb-sleep.service": 4.0,
}


def said(*argv):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=300, check=False)
    return (done.stdout + done.stderr).strip()


def without_make():
    """The environment, but for what the make that runs these tests tells other makes."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}


def install(directory, *places):
    done = subprocess.run(["make", "-C", REPO, "NO_DEPS=1", f"DESTDIR={directory}", *places,
                           "install", "install-dkms"], text=True, capture_output=True,
                          timeout=300, env=without_make(), check=False)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """What `make install` and `make install-dkms` put below a directory."""
    return install(tmp_path_factory.mktemp("install"))


@pytest.mark.long
def test_directory_with_a_space(tree, tmp_path):
    spaced = install(tmp_path / "a b")
    below = [{p.relative_to(top) for p in top.rglob("*")} for top in (tree, spaced)]
    assert below[0] == below[1]


def files(tree):
    return sorted(p.relative_to(tree) for p in tree.rglob("*") if not p.is_dir())


# --- man pages -----------------------------------------------------------------------------


def table_options(*argv):
    """Names and letters of a program's option table, which --help prints."""
    text = subprocess.run([*argv, "--help"], text=True, capture_output=True, timeout=120,
                          check=True).stdout
    rows = re.findall(r"^  (?:-(\w),|   ) --([a-z-]+)", text, re.M)
    return {x for row in rows for x in row if x}


def page_options(text):
    """Those that a man page lists, and all that its synopsis names."""
    text = text.replace("\\-", "-")
    listed = {o for line in re.findall(r"^\.It (?:Fl .*)", text, re.M)
              for o in re.findall(r"Fl -?([a-z-]+)", line)}
    synopsis = re.search(r"^\.Sh SYNOPSIS\n(.*?)^\.Sh", text, re.M | re.S)
    named = re.findall(r"Fl -?([a-z][a-z-]*)", synopsis.group(1)) if synopsis else []
    return listed, set(named)


@pytest.mark.parametrize("program", ["ebbd", "ebb-swapd", "ebb-donord"])
def test_man_page_agrees_with_the_option_table(program):
    table = table_options(BIN / program)
    listed, named = page_options((MAN / f"{program}.8").read_text())
    assert len(table) >= 8
    assert listed == table
    assert named <= table


def test_man_page_of_the_simulator():
    text = (MAN / "ebb-sim.1").read_text()
    sections = re.split(r"^\.It Cm (\w+).*\n", text.split(".Sh DESCRIPTION")[1], flags=re.M)
    found = dict(zip(sections[1::2], sections[2::2]))
    assert set(found) == set(SIM_COMMANDS)
    for command, section in found.items():
        assert page_options(section)[0] == table_options(BIN / "ebb-sim", command), command
    for command in SIM_COMMANDS:
        assert f"  {command} " in said(BIN / "ebb-sim", "--help")


def verbs():
    """"device create", "doctor", ... of ebbctl's help."""
    return re.findall(r"^  ([a-z]+(?: [a-z]+)?)  +\S", said(BIN / "ebbctl", "help"), re.M)


def test_man_page_of_ebbctl():
    """Each verb has its place there and no other has; each has its options and no others."""
    text = (MAN / "ebbctl.8").read_text()
    commands = text.split(".Sh COMMANDS")[1].split("\n.Sh ")[0]
    parts_ = re.split(r"^\.It Ic ([a-z]+(?: [a-z]+)?).*\n", commands, flags=re.M)
    found = dict(zip(parts_[1::2], parts_[2::2]))
    assert set(found) == set(verbs())
    for verb, section in found.items():
        listed = page_options(section)[0]
        table = table_options(BIN / "ebbctl", *verb.split())
        # Said of all verbs at the beginning, but for run's own.
        common = {"json", "j"} if verb != "run" else set()
        assert listed - common == table - common, verb


def test_man_page_of_policies(tree, tmp_path):
    """It names those that come with ebb, and its example compiles with what is installed."""
    text = (MAN / "ebb-policy.7").read_text()
    ours = {p.name.removesuffix(".bpf.o") for p in (tree / "usr/lib/ebb/policies").glob("*.bpf.o")}
    assert ours == set(re.findall(r"^\.It Cm (\w+)$", text, re.M))
    example = re.search(r"^\.Bd.*\n(// SPDX.*?)^\.Ed", text, re.M | re.S).group(1)
    (tmp_path / "next.bpf.c").write_text(example)
    make = lambda *argv: subprocess.run(["make", *argv], cwd=tmp_path, env=without_make(), text=True,
                                        capture_output=True, timeout=300, check=False)
    done = make("-f", tree / "usr/share/ebb/policy.mk", "next.bpf.o", "next.so")
    assert done.returncode == 0, done.stderr
    # A makefile of the user's may include it; and it may be below a path with a space.
    (tmp_path / "Makefile").write_text(f"include {tree}/usr/share/ebb/policy.mk\n")
    (tmp_path / "a b").symlink_to(tree)
    for how in [], ["-f", "a b/usr/share/ebb/policy.mk"]:
        (tmp_path / "next.so").unlink()
        done = make(*how, "next.so")
        assert done.returncode == 0, done.stderr


# --- completion ----------------------------------------------------------------------------


def bash_complete(script, line):
    """What bash would offer; @line ends where Tab is pressed."""
    ask = (f"{script}\nCOMP_WORDS=({shlex.join(line.split(' '))})\n"
           "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_ebbctl 2>/dev/null\n"
           'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", ask], text=True, capture_output=True, timeout=120,
                          env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}, check=True)
    return done.stdout.split()


@pytest.fixture(scope="module", params=["bash", "zsh"])
def complete(request, tmp_path_factory):
    script = said(BIN / "ebbctl", "completion", request.param)
    if request.param == "bash":
        yield lambda line: bash_complete(script, line)
        return
    shell = zsh.Zsh(script, tmp_path_factory.mktemp("zsh"))
    yield shell.complete
    shell.close()


@pytest.mark.parametrize("complete", few(["bash", "zsh"], "bash"), indirect=True)
def test_completion_agrees_with_the_option_tables(complete):
    for verb in verbs():
        table = {f"--{o}" for o in table_options(BIN / "ebbctl", *verb.split()) if len(o) > 1}
        offered = {o.rstrip("=") for o in complete(f"ebbctl {verb} --")}
        assert offered == table | {"--help"}, verb


def test_completion_of_words(complete):
    assert set(complete("ebbctl ")) == {v.split()[0] for v in verbs()}
    for thing in ("device", "policy", "trace"):
        assert set(complete(f"ebbctl {thing} ")) == {v.split()[1] for v in verbs()
                                                     if v.startswith(f"{thing} ")}
    assert complete("ebbctl device cr") == ["create"]
    assert set(complete("ebbctl device create x --scope ")) == {"any", "attached"}
    assert set(complete("ebbctl completion ")) == {"bash", "zsh"}
    assert "local" in complete("ebbctl donor drain ")
    assert "setpriv" in complete("ebbctl run --mem 1G -- setpr")


# --- what is installed ---------------------------------------------------------------------


def test_everything_has_a_man_page(tree):
    names = {p.name for p in files(tree)}
    man = {p.name.rsplit(".", 1)[0]: p for p in files(tree) if "man" in p.parts}
    programs = [p.name for p in files(tree) if p.parent.name in ("bin", "sbin")]
    assert len(programs) == 5
    wanted = [*programs, *units.names(), "ebb.conf", "ebbgc", "ebbfar", "ebbdsm"]
    assert [n for n in wanted if n not in man] == []
    for name, page in man.items():
        text = (tree / page).read_text()
        assert re.search(rf"^\.Nm {re.escape(name)}\b", text, re.M), f"{page}: does not name {name}"
    assert "ebb-donord" in names and "/etc/default/ebb-donord" in (MAN / "ebb-donord.8").read_text()


@pytest.mark.parametrize("unit", sorted(p.name for p in units.UNITS.glob("*.service")))
def test_unit_is_hardened(tree, unit):
    path = tree / "usr/lib/systemd/system" / unit
    text = said("systemd-analyze", "--no-pager", "security", "--offline=yes", path)
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", text)
    assert score, text
    assert float(score.group(1)) <= MOST_EXPOSED[unit], text


# Settings that give a unit a mount namespace of its own: systemd.exec(5), SANDBOXING.
OWN_MOUNTS = ("BindPaths", "BindReadOnlyPaths", "DynamicUser", "ExecPaths", "InaccessiblePaths",
              "LogNamespace", "MountAPIVFS", "NoExecPaths", "PrivateDevices", "PrivateIPC",
              "PrivateMounts", "PrivateTmp", "ProcSubset", "ProtectControlGroups", "ProtectHome",
              "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc",
              "ProtectSystem", "ReadOnlyPaths", "ReadWritePaths", "RootDirectory", "RootImage",
              "TemporaryFileSystem")


def test_the_unit_that_enables_swap_and_ends_has_no_mount_namespace():
    """
    The kernel lists /dev/loop0 that was enabled there as /loop0.  And no ProtectClock=: before the
    end of 2022, systemd took its DeviceAllow=char-rtc for all devices that the unit may use.
    """
    for key in (*OWN_MOUNTS, "ProtectClock"):
        assert units.settings("ebb-sleep.service", key) == [], key


def test_units_are_right(tree, tmp_path):
    for path in (tree / "usr/lib/systemd/system").iterdir():
        text = path.read_text()
        assert "DIR@" not in text, path
        (tmp_path / path.name).write_text(text.replace("=/usr/sbin/", f"={tree}/usr/sbin/"))
    made = sorted(tmp_path.iterdir())
    assert [path.name for path in made] == sorted(units.names())
    # It also tells what it thinks of the machine's own.
    told = said("systemd-analyze", "verify", "--man=no", *made).splitlines()
    assert [line for line in told if "ebb" in line] == []


def test_configuration_is_kept(tree):
    """What the administrator changed, also after a second `make install`."""
    conf = tree / "etc/ebb/ebb.conf"
    shipped = conf.read_text()
    conf.write_text("[prefetch]\ninflight = 64\n")
    install = ["make", "-C", REPO, "NO_DEPS=1", f"DESTDIR={tree}", "install-config"]
    try:
        done = subprocess.run(install, text=True, capture_output=True, timeout=300,
                              env=without_make(), check=False)
        assert done.returncode == 0, done.stderr
        assert conf.read_text() == "[prefetch]\ninflight = 64\n"
        assert (tree / "etc/ebb/ebb.conf.new").read_text() == shipped
        assert f"kept {conf}; this version's is {conf}.new" in done.stdout
        assert not (tree / "etc/default/ebb-donord.new").exists()
    finally:
        conf.write_text(shipped)
        (tree / "etc/ebb/ebb.conf.new").unlink(missing_ok=True)


def test_users_and_directories(tree):
    users = tree / "usr/lib/sysusers.d/ebb.conf"
    told = said("systemd-sysusers", "--dry-run", users)
    for name in ("ebb", "ebb-admin", "ebb-donord"):
        assert re.search(rf"\b{name}\b", told) or said("getent", "group", name)
    user = re.search(r"^u (\S+)", users.read_text(), re.M).group(1)
    assert units.settings("ebb-donord.service", "User") == [user]
    root = tree / "root"
    root.mkdir()
    directories = tree / "usr/lib/tmpfiles.d/ebb.conf"
    assert said("systemd-tmpfiles", "--create", f"--root={root}", directories) == ""
    assert (root / "run/ebb/devices").is_dir()
    assert (root / "var/lib/ebb").stat().st_mode & 0o777 == 0o700


BUSCTL = "test -e sleeping && echo b true || echo b false"
SYSTEMCTL = """case "$1" in
--quiet) test -e "$2.$3" ;;
*) test -e waking && echo deactivating || echo inactive ;;
esac"""
ENABLED = ("is-enabled.ebb-sleep.service", "sleeping")
SLEEP, WAKE = "device sleep --timeout 2min", "device wake --timeout 10s"


@pytest.mark.parametrize("event, state, sleep, later, ran", [
    ("pre-down", ENABLED, "true", "", [SLEEP]),
    ("vpn-pre-down", ENABLED, "true", "", [SLEEP]),
    ("pre-down", ENABLED[:1], "true", "", []),
    ("pre-down", ENABLED[1:], "true", "", []),
    ("pre-down", ENABLED, "false", "touch is-active.ebb-sleep.service", [SLEEP, "1"]),
    ("pre-down", ENABLED, "false", "rm sleeping", [SLEEP, "1"]),
    ("up", ("asleep",), "true", "", [WAKE]),
    ("vpn-up", ("asleep",), "true", "", [WAKE]),
    ("up", (), "true", "", []),
    ("up", ("asleep", "sleeping"), "true", "", []),
    ("up", ("asleep", "waking"), "true", "", []),
    ("down", (*ENABLED, "asleep"), "true", "", []),
], ids=["link", "vpn", "no-sleep", "disabled", "unit-succeeds", "unit-fails", "still-off",
        "still-off-vpn", "on", "asleep", "unit-wakes", "down"])
def test_swap_is_off_before_networkmanager_disconnects(tree, tmp_path, event, state, sleep, later,
                                                       ran):
    """
    And on again, if only then donors are reachable.  Its dispatcher runs scripts that root alone
    can write.  Here with programs of this test: @sleep is what `ebbctl device sleep` does, and
    @later happens while the script waits.
    """
    scripts = tree / "usr/lib/NetworkManager/dispatcher.d"
    script = scripts / "50-ebb-sleep"
    assert script.stat().st_mode & 0o7777 == 0o755
    assert (scripts / "pre-down.d" / script.name).readlink() == Path("..") / script.name
    for name, line in (("busctl", BUSCTL), ("systemctl", SYSTEMCTL),
                       ("ebbctl", f'echo "$@" >>ran; {sleep}'),
                       ("sleep", f'echo "$@" >>ran; {later}')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("ran", *state):
        (tmp_path / name).touch()
    text = script.read_text().replace("/usr/sbin/", "").replace("/run/ebb/", "")
    done = subprocess.run(["sh", "-c", text, "sh", "eth0", event], text=True, capture_output=True,
                          timeout=60, cwd=tmp_path, check=False,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout, done.stderr) == (int(sleep == "false"), "", "")
    assert (tmp_path / "ran").read_text().splitlines() == ran


# --- packaging/deps.sh -----------------------------------------------------------------------

# Prints $STATES, ARCHITECTURE=STATE..., in the format asked for.
DPKG_QUERY = r"""for each in $STATES; do
	printf "$(printf %s "${2#-f=}" |
		sed "s/\${Architecture}/${each%=*}/;s/\${db:Status-Status}/${each#*=}/")"
done"""


class Deps:
    """packaging/deps.sh for one package, as root, with an apt-get that lasts until it is killed."""
    def __init__(self, directory):
        self.policy, self.started = directory / "policy-rc.d", directory / "started"
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        for name, line in (("dpkg-query", DPKG_QUERY), ("dpkg", "echo amd64"), ("id", "echo 0"),
                           ("apt-get", f"touch {self.started}; exec sleep 100")):
            (directory / name).write_text(f"#!/bin/sh\n{line}\n")
            (directory / name).chmod(0o755)
        self.env = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}",
                    "TMPDIR": str(self.temporary), "EBB_POLICY_RC_D": str(self.policy)}

    def start(self, states="", no_deps=""):
        return subprocess.Popen(["sh", PACKAGING / "deps.sh", no_deps, "zlib1g-dev"], text=True,
                                env={**self.env, "STATES": states}, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *how):
        with self.start(*how) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def kill(self, number):
        """Kills it and apt-get, as the terminal does at ^C.  Returns its exit status."""
        with self.start() as process:
            wait_for(self.started.exists, 60, "apt-get to start")
            os.killpg(process.pid, number)
            process.communicate(timeout=60)
        return process.returncode


@pytest.fixture
def deps(tmp_path):
    return Deps(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
                         ids=lambda s: s.name)
def test_packages_that_are_interrupted_leave_services_allowed(deps, number):
    """policy-rc.d, which forbids packages to start services, goes; so does the log."""
    assert deps.kill(number) == 128 + number
    assert not deps.policy.exists()
    assert list(deps.temporary.iterdir()) == []


def test_the_next_start_allows_services_that_a_killed_one_forbade(deps):
    """Also if no package is missing any more; but no policy of another's, or one in use."""
    with deps.start() as process:
        wait_for(deps.started.exists, 60, "apt-get to start")
        assert deps.run("amd64=installed") == (0, "", "")
        assert deps.policy.stat().st_mode & 0o111
        assert subprocess.run([deps.policy], check=False).returncode == 101
        os.killpg(process.pid, signal.SIGKILL)
    assert deps.policy.exists()
    assert deps.run("amd64=installed") == (0, "", "")
    assert not deps.policy.exists()
    deps.started.unlink()
    deps.policy.write_text("#!/bin/sh\nexit 101\n")
    assert deps.kill(signal.SIGTERM) == 128 + signal.SIGTERM
    assert deps.run("amd64=installed") == (0, "", "")
    assert deps.policy.exists()


@pytest.mark.parametrize("states, missing", [
    ("amd64=installed", False), ("all=installed", False), ("amd64=installed i386=installed", False),
    ("i386=installed amd64=installed", False), ("", True), ("i386=installed", True),
    ("amd64=config-files", True), ("amd64=not-installed i386=installed", True),
])
def test_a_package_of_two_architectures_is_installed(deps, states, missing):
    status, out, err = deps.run(states, "1")
    assert (status, out) == (int(missing), "")
    assert err == ("missing packages: zlib1g-dev; NO_DEPS is set, so install them yourself\n"
                   if missing else "")


# --- packages ------------------------------------------------------------------------------

# With systemd's files in a mount namespace. $1: a directory with the unit, $2: the script.
REMOVAL = """
cp /usr/lib/systemd/system/sleep.target "$1"
for d in /etc/systemd/system /usr/lib/systemd/system /var/lib/systemd /sys/fs/bpf; do
	mount -t tmpfs ebb-removal $d
done
link=/etc/systemd/system/sleep.target.requires/ebb-sleep.service
install() {
	cp "$1/ebb-sleep.service" "$1/sleep.target" /usr/lib/systemd/system
	! deb-systemd-helper --quiet was-enabled ebb-sleep.service ||
		deb-systemd-helper enable ebb-sleep.service
	deb-systemd-helper update-state ebb-sleep.service
}
remove() {
	rm /usr/lib/systemd/system/ebb-sleep.service
	sh "$2" remove
	systemd-analyze verify --man=no sleep.target
}
for i in first second; do
	install "$@"
	test -h $link
	remove "$@"
done
install "$@"
rm $link
remove "$@"
install "$@"
! test -h $link
"""


def test_a_package_that_is_removed_does_not_keep_the_machine_awake(tree, tmp_path):
    """And one that is installed again has the unit enabled, unless it had been disabled."""
    shutil.copy(tree / "usr/lib/systemd/system/ebb-sleep.service", tmp_path)
    done = subprocess.run(["unshare", "--mount", "sh", "-exc", REMOVAL, "sh", tmp_path,
                           PACKAGING / "debian/ebb.postrm"], text=True, capture_output=True,
                          timeout=300, env={**os.environ, "DPKG_MAINTSCRIPT_PACKAGE": "ebb"},
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def version():
    return re.search(r"^VERSION := (\S+)", (REPO / "Makefile").read_text(), re.M).group(1)


def test_versions_agree():
    assert f"ebb ({version()}) " in (PACKAGING / "debian/changelog").read_text().splitlines()[0]
    spec = (PACKAGING / "rpm/ebb.spec").read_text()
    assert re.search(rf"^Version: +{re.escape(version())}$", spec, re.M)
    for name in "Cargo.toml", "Cargo.lock":
        crate = (REPO / "userlib" / "rust" / name).read_text()
        assert f'name = "ebbdsm"\nversion = "{version()}"\n' in crate
    assert f"ebbdsm-{version()}" in (REPO / "userlib/rust/README.md").read_text()
    assert said(BIN / "ebbctl", "--version") == f"ebbctl {version()}"


def test_build_dependencies_agree():
    """What the Makefile has installed for a build, and what a package says it needs."""
    text = (REPO / "Makefile").read_text().replace("\\\n", " ")
    wanted = set(re.search(r"^DEPS_BUILD := (.*)", text, re.M).group(1).split())
    control = (PACKAGING / "debian/control").read_text()
    field = re.search(r"^Build-Depends:\n((?: .*\n)+)", control, re.M).group(1)
    named = set(re.findall(r"^ ([a-z0-9.+-]+)", field, re.M))
    assert wanted - {"gcc", "make"} <= named
    assert named - wanted == {"debhelper-compat", "dh-dkms"}


# What a command needs that DEPS_BUILD lacks.
NEEDED = {
    "-lcmocka": "libcmocka-dev",
    "tests/unit.py": "libcmocka-dev",
    "tests/lint.py": "shellcheck",
    "tests/check.py": "python3-pytest",
    "tests/guest/headers.py": "kmod",
    "tests/guest/run.py": "qemu-system-x86",
    "tests/guest/boots.py": "qemu-system-x86",
    "tests/bench/guest.py": "qemu-system-x86",
    "tests/bench/cost_guest.py": "qemu-system-x86",
    "tests/demo/demo.py": "redis-server",
    "tests/bench/run_all.py": "python3-matplotlib",
    "javac -": "default-jdk-headless",
    "lintian -": "lintian",
    "rpmlint -": "rpmlint",
}


@pytest.mark.long
def test_goals_install_what_they_run():
    """Each goal's packages are those of the commands that `make` prints for it in a fresh clone."""
    goals = re.findall(r"^## (?:sudo )?make ([a-z-]+)", (REPO / "Makefile").read_text(), re.M)
    goals = {*goals, "test-programs", "test-build", "kmod-guest", "demo GUEST=1",
             "build/tests/unit/test_wire", "build/tests/watch_donors"}
    assert {"unit", "check-all", "bench-guest"} <= goals
    lacking, seen = [], set()
    for goal in sorted(goals):
        # Recipes that name $(MAKE) run in spite of -n: without a python and headers they end at once.
        text = said("env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "make", "-n", "-B", "-C", REPO,
                    "PYTHON=false", "KDIR=/nonexistent", *goal.split())
        listed = {p for line in re.findall(r"packaging/deps\.sh (.*)", text) for p in line.split()}
        needed = {package for command, package in NEEDED.items() if command in text}
        lacking += [f"{goal}: {p}" for p in sorted(needed - listed)]
        seen |= needed
    assert lacking == []
    assert seen == set(NEEDED.values())


def debian_place(path):
    """Where the Debian packages have what is installed elsewhere by default."""
    path = str(path).replace("usr/lib/systemd/system", "lib/systemd/system")
    path = path.replace("zsh/site-functions", "zsh/vendor-completions")
    return re.sub(r"^usr/lib/(?=libebbgc|libebbfar|libebbdsm|pkgconfig)", "usr/lib/x86_64-linux-gnu/", path)


def test_every_file_is_in_one_debian_package(tree):
    lists = {p.stem: p.read_text().split() for p in (PACKAGING / "debian").glob("*.install")}
    assert set(lists) == {"ebb", "libebbgc1", "libebbgc-dev", "libebbfar1", "libebbfar-dev",
                          "libebbdsm1", "libebbdsm-dev", "ebb-swap-dkms"}
    used = set()
    for path in files(tree):
        where = debian_place(path)
        owners = [(name, pattern) for name, patterns in lists.items() for pattern in patterns
                  if fnmatch.fnmatch(where, pattern) or fnmatch.fnmatch(where, f"{pattern}/*")]
        assert len(owners) == 1, f"{where}: {owners}"
        used.update(owners)
    assert {p for ps in lists.values() for p in ps} == {pattern for _, pattern in used}


# Macros of Fedora; from 42 on, %_sbindir is %_bindir.
MACROS = {
    "_prefix": "/usr", "_bindir": "/usr/bin", "_libdir": "/usr/lib64", "_sysconfdir": "/etc",
    "_includedir": "/usr/include", "_datadir": "/usr/share", "_mandir": "/usr/share/man",
    "_unitdir": "/usr/lib/systemd/system", "_modulesloaddir": "/usr/lib/modules-load.d",
    "_sysusersdir": "/usr/lib/sysusers.d", "_tmpfilesdir": "/usr/lib/tmpfiles.d",
    "_udevrulesdir": "/usr/lib/udev/rules.d",
}


def spec(**macros):
    """The spec, with the macros of directories and the version expanded."""
    text = (PACKAGING / "rpm/ebb.spec").read_text()
    for name, value in {**MACROS, **macros, "version": version()}.items():
        text = text.replace(f"%{{{name}}}", value)
    return text


def in_rpm(pattern, path):
    """Whether a line of %files has the file: a "*" matches no "/", and a directory is for all in it."""
    wanted = pattern.strip("/").split("/")
    parts_ = path.parts[:len(wanted)]
    return len(parts_) == len(wanted) and all(map(fnmatch.fnmatch, parts_, wanted))


@pytest.mark.parametrize("sbindir", few(["/usr/bin", "/usr/sbin"], "/usr/bin"))
def test_every_file_is_in_one_rpm_package(tmp_path, sbindir):
    """Otherwise rpmbuild fails; and the units run the programs where they are."""
    text = spec(_sbindir=sbindir)
    arguments = re.search(r"^%global make_args (.*)$", text, re.M).group(1)
    tree = install(tmp_path, *re.findall(r"\w+DIR=\S+|PREFIX=\S+", arguments))
    lines = re.sub(r"^%(license|doc) .*\n", "", text.split("\n%files\n")[1], flags=re.M)
    lines = re.findall(r"^(%dir |%config\S* )?(/\S+)$", lines.split("%changelog")[0], re.M)
    assert [place for kind, place in lines if kind == "%dir " and not (tree / place[1:]).is_dir()] == []
    patterns = [place for kind, place in lines if kind != "%dir "]
    used = set()
    for path in files(tree):
        owners = [p for p in patterns if in_rpm(p, path)]
        assert len(owners) == 1, f"{path}: {owners}"
        used.update(owners)
    assert set(patterns) == used
    for unit in (tree / "usr/lib/systemd/system").glob("*.service"):
        for program in re.findall(r"^ExecSt\w+=-?(/usr/\S+)", unit.read_text(), re.M):
            assert program.startswith(f"{sbindir}/ebb") and (tree / program[1:]).exists(), unit
    script = (tree / "usr/lib/NetworkManager/dispatcher.d/50-ebb-sleep").read_text()
    assert f"\nebbctl={sbindir}/ebbctl\n" in script


def enabled_units():
    """Those that `systemctl enable` accepts."""
    return {name for name in units.names() if "\n[Install]\n" in (units.UNITS / name).read_text()}


def test_rpm_presets_and_stops_every_unit():
    """Instances of templates are the administrator's."""
    wanted = {name for name in enabled_units() if "@" not in name}
    for macro in "systemd_post", "systemd_preun":
        named = re.search(rf"^%{macro} (.*)$", spec(), re.M).group(1).split()
        assert set(named) == wanted, macro


def test_what_getting_started_disables_before_it_removes_the_units():
    text = (REPO / "docs/getting-started.md").read_text().split("\n## 7. ")[1]
    named = re.search(r"^# systemctl disable --now (.*)$", text, re.M).group(1).split()
    named = [re.sub(r"@\w+$", "@", name) for name in named]
    assert {name if "." in name else f"{name}.service" for name in named} == enabled_units()


def test_the_library_is_named_after_its_version(tree):
    for library in "libebbgc.so", "libebbfar.so", "libebbdsm.so":
        text = said("objdump", "-p", tree / "usr/lib" / library)
        soname = re.search(r"SONAME +(\S+)", text).group(1)
        assert f"Package: {soname.replace('.so.', '')}\n" in (PACKAGING / "debian/control").read_text()
        assert (tree / "usr/lib" / soname).is_symlink()


def test_the_libraries_take_no_names_of_a_program(tree):
    for option, library, prefix, member in (("-g", "libebbgc.a", "ebbgc_", "heap_create"),
                                            ("-D", "libebbgc.so", "ebbgc_", "heap_create"),
                                            ("-D", "libebbfar.so", "ebbfar_", "open"),
                                            ("-D", "libebbdsm.so", "ebbdsm_", "open")):
        text = said("nm", option, "--defined-only", "--without-symbol-versions",
                    tree / "usr/lib" / library)
        # A is an absolute symbol: the name of a version.
        names = re.findall(r"^[0-9a-f]+ [^A] (\S+)$", text, re.M)
        assert prefix + member in names
        assert [n for n in names if not n.startswith(prefix)] == []


def test_what_embedding_md_begins_with(tree, tmp_path):
    """The toy of docs/embedding.md, compiled as it says there, against what is installed."""
    text = (REPO / "docs" / "embedding.md").read_text()
    (tmp_path / "toy.c").write_text(re.search(r"```c\n(.*?)```", text, re.S).group(1))
    command = re.search(r"^\$ (cc toy\.c .*)$", text, re.M).group(1)
    env = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": str(tree),
           "PKG_CONFIG_PATH": str(tree / "usr/lib/pkgconfig"),
           "LD_LIBRARY_PATH": str(tree / "usr/lib")}
    for link in (command, f"{command} -std=c11 -O2 -Wall -Wextra -pedantic -Werror",
                 command.replace("--libs", "--static --libs") + " -static"):
        done = subprocess.run(["sh", "-ec", f"{link}\n./a.out"], cwd=tmp_path, env=env, text=True,
                              capture_output=True, timeout=100, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "9999999\n", ""), link


@pytest.mark.parametrize("library, names", [("far", ("index", "queue")), ("dsm", ("kv",))])
def test_the_examples_of_a_library(tree, tmp_path, library, names):
    """They are compiled as their README says, against what is installed, and are in the packages."""
    source = REPO / "userlib" / library / "examples"
    text = " ".join((source / "README.md").read_text().split())
    command = re.search(rf"`(cc {names[0]}\.c .*?)`", text).group(1)
    # A program that links libebbdsm has libebbfar from the system's path.
    env = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": str(tree),
           "PKG_CONFIG_PATH": str(tree / "usr/lib/pkgconfig"),
           "LD_LIBRARY_PATH": str(tree / "usr/lib")}
    for path in source.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    for name in names:
        run = command.replace(names[0], name)
        flags = f"-Wall -Wextra -Werror -Wl,-rpath-link,{tree}/usr/lib"
        done = subprocess.run(["sh", "-ec", f"{run} {flags}\n./{name}"], cwd=tmp_path, env=env,
                              text=True, capture_output=True, timeout=100, check=False)
        assert done.returncode == 2 and done.stderr.startswith(f"{name}: usage: "), done.stderr
    assert f"userlib/{library}/examples/*." in (PACKAGING / "debian/ebb-doc.examples").read_text()
    assert f"userlib/{library}/examples" in (PACKAGING / "rpm/ebb.spec").read_text()


@pytest.mark.parametrize("language", ["c -std=c99", "c -std=c17", "c++ -std=c++11",
                                      "c++ -std=c++20"])
def test_the_header_is_for_every_language(tree, tmp_path, language):
    (tmp_path / "use.c").write_text("#include <ebbgc.h>\n"
                                    "#include <ebbfar.h>\n"
                                    "#include <ebbdsm.h>\n"
                                    "ebbgc_ref_t f(void *p);\n"
                                    "ebbgc_ref_t f(void *p) { return p ? ebbgc_ref(p) : EBBGC_NULL; }\n")
    compilers = ["clang"] if "++" in language and not shutil.which("g++") else ["clang", "gcc"]
    for compiler in compilers:
        # No system header, for in those nothing is a warning.
        assert said(compiler, "-x", *language.split(), "-Wall", "-Wextra", "-pedantic",
                    "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Wundef", "-fsyntax-only",
                    f"-I{tree}/usr/include", tmp_path / "use.c") == ""


def test_the_module_can_be_built_from_what_is_installed(tree):
    source = tree / f"usr/src/ebb-swap-{version()}"
    conf = (source / "dkms.conf").read_text()
    assert f'PACKAGE_VERSION="{version()}"' in conf
    kernels = re.compile(re.search(r'BUILD_EXCLUSIVE_KERNEL="(.*)"', conf).group(1))
    assert all(kernels.search(k) for k in ("6.1.0-37-amd64", "6.12.48+deb13-amd64", "6.6.1"))
    assert not any(kernels.search(k) for k in ("5.15.0", "6.0.1", "6.13.0", "6.18.1", "16.1.0"))
    line = re.search(r"^ebb_swap-y := (.*)", (source / "Kbuild").read_text(), re.M).group(1)
    objects = re.findall(r"(\w+)\.o", line)
    assert len(objects) > 5 and all((source / f"{o}.c").exists() for o in objects)
    for path in source.rglob("*.[ch]"):
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            assert any((d / name).exists() for d in (source, source / "shim", path.parent)), \
                f"{path.name}: {name}"
