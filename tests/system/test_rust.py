# SPDX-License-Identifier: GPL-2.0-or-later
"""The crate of userlib/rust with each Rust compiler of this machine: its tests, and its example; `make
check` uses the oldest.
"""
import os
import random
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import parts
from machine import BIN, BUILD, REPO, wait_for
from parts import ebbctl_json
from ports import free_port
from rows import few

pytestmark = pytest.mark.beside

CRATE = REPO / "userlib" / "rust"
SECONDS = 900
TASKS, ROWS = 3, 60000


def compilers():
    """Debian's, which is the oldest that the crate supports, and the one in PATH."""
    return list(dict.fromkeys(p for p in ("/usr/bin/rustc", shutil.which("rustc")) if p and Path(p).exists()))


class Compiler:
    def __init__(self, rustc, where):
        self.rustc, self.where = rustc, where
        self.cargo = Path(rustc).with_name("cargo")
        search = [str(BUILD / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        flags = f"-L\x1fnative={BUILD}/lib"
        # PATH may have a rustdoc of another version.
        self.env = {**os.environ, "LD_LIBRARY_PATH": ":".join(search), "RUSTC": rustc,
                    "RUSTDOC": str(Path(rustc).with_name("rustdoc")),
                    "EBB_DONORD": str(BIN / "ebb-donord"), "CARGO_TARGET_DIR": str(where / "target"),
                    "CARGO_HOME": str(where / "home"), "CARGO_ENCODED_RUSTFLAGS": flags,
                    "CARGO_ENCODED_RUSTDOCFLAGS": flags, "CARGO_MANIFEST_DIR": str(CRATE)}

    def run(self, *argv, cwd=CRATE):
        done = subprocess.run(argv, cwd=cwd, env=self.env, text=True, capture_output=True,
                              timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def compile(self, source, *options):
        """Returns the program, or the crate itself."""
        out = self.where / f"{source.stem}{'.rlib' if '--crate-name=ebbdsm' in options else ''}"
        self.run(self.rustc, "--edition=2021", "-L", f"native={BUILD}/lib", "-Dwarnings", *options,
                 "-o", out, source)
        return out

    def crate(self):
        return self.compile(CRATE / "src/lib.rs", "--crate-type=rlib", "--crate-name=ebbdsm")

    def program(self, source, *options):
        return self.compile(source, f"--extern=ebbdsm={self.crate()}", *options)


@pytest.fixture(scope="module", params=few(compilers(), *compilers()[:1]) or [None])
def compiler(request, tmp_path_factory):
    if not request.param:
        pytest.skip("rustc is not installed")
    return Compiler(request.param, tmp_path_factory.mktemp("rust"))


@pytest.mark.long
def test_of_the_crate(compiler):
    if compiler.cargo.exists():
        said = compiler.run(compiler.cargo, "test", "--offline", "--locked")
    else:
        said = "".join(compiler.run(compiler.program(source, "--test")) for source in (CRATE / "tests").glob("*.rs"))
    for test in "layouts_and_constants", "functions", "misuses", "loans", "a_task_dies":
        assert f"test {test} ... ok" in said


@pytest.fixture
def donors(tmp_path):
    """Two, for processes of a machine that has the first one."""
    both = [parts.Donor(tmp_path / f"donor{i}.log", port=free_port(), memory="64M", slab="16M",
                        also=[f"unix:{tmp_path}/donor{i}.sock"],
                        options=["--far", "32M", "--keep", "300ms", "--headroom", "0"]) for i in range(2)]
    both[0].list = f"unix:{tmp_path}/donor0.sock,{both[1].address}"
    yield both
    for d in both:
        d.stop()


def prices(tasks, rows):
    return sum((1 + (n * rows + i) % 1000) * (1 + i % 3) for n in range(tasks) for i in range(rows))


def kill_one(process, after):
    """Kills a task of the process, @after seconds after it has started all, if it has not ended by then."""
    children, tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children"), []
    while process.poll() is None and len(tasks) < TASKS:
        tasks = children.read_text().split()
    threading.Event().wait(after)
    if process.poll() is None and (tasks := children.read_text().split()):
        with suppress(ProcessLookupError):
            os.kill(int(random.choice(tasks)), 9)


@pytest.mark.parametrize("home", few(["0", "1"], "1"))
def test_the_example(compiler, donors, home):
    orders = compiler.program(CRATE / "examples/orders.rs")
    for turn in range(7):
        p = subprocess.Popen([orders, donors[0].list, home, "p", str(TASKS), str(ROWS)], env=compiler.env, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if turn:
            kill_one(p, random.uniform(0, 0.02))
        sum_, said = p.communicate(timeout=100)
        assert p.returncode == 0, said
        assert float(sum_) == prices(TASKS, ROWS)
        assert said == "" or turn and "its orders are priced here" in said, said
    wait_for(lambda: all(ebbctl_json("far", "show", d.address, "p")["extents"] == 0 for d in donors), 30,
             "memory of the processes is left")


def test_of_what_is_installed(compiler, tmp_path):
    """A program that names the crate by its path, and one that has it from a directory of crates."""
    if not compiler.cargo.exists():
        pytest.skip("cargo is not installed")
    env = {k: v for k, v in compiler.env.items() if not k.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", "-s", "-C", REPO, "NO_DEPS=1", f"DESTDIR={tmp_path}", "install-crate"], env=env, check=True,
                   timeout=SECONDS)
    registry = tmp_path / "usr/share/cargo/registry"
    crate, = registry.iterdir()
    version = crate.name.removeprefix("ebbdsm-")
    for name, source in ("by_path", f'{{ path = "{crate}" }}'), ("by_name", f'"{version}"'):
        program = tmp_path / name
        (program / "src").mkdir(parents=True)
        (program / ".cargo").mkdir()
        (program / ".cargo/config.toml").write_text(
            f'[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "{registry}"\n')
        (program / "Cargo.toml").write_text(
            f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\nebbdsm = {source}\n')
        (program / "src/main.rs").write_text(
            'fn main() { println!("{}", ebbdsm::Space::open(&ebbdsm::Options::default()).unwrap_err()); }\n')
        said = compiler.run(compiler.cargo, "run", "--offline", cwd=program)
        assert said == "options: 0 donors; give 1 to 8\n"


def test_usage(compiler):
    done = subprocess.run([compiler.program(CRATE / "examples/orders.rs")], env=compiler.env, text=True,
                          capture_output=True, timeout=100, check=False)
    assert done.returncode == 2 and done.stderr.startswith("orders: usage: ")
