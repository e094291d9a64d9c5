# SPDX-License-Identifier: GPL-2.0-or-later
"""Policies that tests write, compiled as a user would, with policy.mk, in any directory."""
import subprocess

import docs
import machine
import parts

POLICY_MK = machine.REPO / "policies" / "policy.mk"

# "forward" of docs/policy.md, split so that tests can replace parts.
SOURCE = """
#include "ebb_policy.h"
{before}
enum {{ {indexes} }};
EBB_POLICY({name}, "made by a test",
	{params})

struct {name} {{
	__u64 last;
}};

static __always_inline void {name}_fault(const struct ebb_fault *f, struct {name} *s,
					 const struct ebb_params *p)
{{
	{body}
	s->last = f->vpn;
}}
EBB_POLICY_ENTRY({name}, struct {name}, {name}_fault)
"""
WINDOW = ("WINDOW", 'EBB_PARAM(WINDOW, "window", 8, 1, 64, "pages")')
ASK = "ebb_prefetch(f, f->vpn + 1, 1, p->v[0]);"


def source(name="mine", body=ASK, params=(WINDOW,), before=""):
    return SOURCE.format(name=name, body=body, before=before,
                         indexes=", ".join(i for i, _ in params),
                         params=",\n\t".join(p for _, p in params))


def compile_policy(directory, text, name="mine", kinds=("bpf.o",)):
    """Writes NAME.bpf.c and makes NAME.bpf.o (or .so); returns the path of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    types = directory / "vmlinux.h"
    if not types.exists():
        types.symlink_to(machine.BUILD / "bpf" / "vmlinux.h")
    (directory / f"{name}.bpf.c").write_text(text)
    targets = [f"{name}.{kind}" for kind in kinds]
    for target in targets:
        (directory / target).unlink(missing_ok=True)
    done = subprocess.run(["make", "-s", "-f", POLICY_MK, *targets], cwd=directory, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    return directory / targets[0]


def patched(path, name, old, new):
    """Returns a copy called NAME with @old replaced by @new, of equal length, also in BTF."""
    assert len(old) == len(new) and old in path.read_bytes()
    other = path.with_name(f"{name}.bpf.o")
    other.write_bytes(path.read_bytes().replace(old, new))
    return other


def renamed(path, old, new):
    """Returns a copy of an object with the policy renamed; both names are equally long."""
    return patched(path, new, old.encode(), new.encode())


DOCUMENT = machine.REPO / "docs" / "policy.md"


def document():
    """Returns the code of docs/policy.md, and a text for each block of its commands."""
    [code] = [b.lines for b in docs.blocks(DOCUMENT) if b.language == "c"]
    return "\n".join(code) + "\n", *docs.commands(DOCUMENT)


def call(verb, **members):
    """Sends one request to ebbd, without the delay of starting ebbctl."""
    answer = parts.control_answer("/run/ebb/control.sock", verb, **members)
    assert answer["ok"], answer
    return answer


def attached():
    """Returns {path below the hierarchy: row of `ebbctl status`} of attached cgroups."""
    root = str(machine.memory_root()[0])
    return {row["cgroup"].removeprefix(root): row for row in call("status")["attachments"]}
