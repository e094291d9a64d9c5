#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
layers.py [--shrink] [--groups] [--lenient]: checks which file may use which.

Reads every #include of the product and, where objects have been built, their symbols (nm).
A fault is one of

  include A -> B   A includes B, but A's directory may not include B's (ROOMS)
  cycle FILE       FILE.c and FILE.h are part of a dependency cycle of files
  word NAME FILE   FILE contains what only another file may contain (WORDS)

tests/layers-faults lists the faults that exist today.  The list may only shrink: a fault that it
lacks fails the check, and so does a line whose fault is gone.  --shrink removes such lines,
--lenient tolerates them, --groups prints each cycle.
"""
import fnmatch
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
LIST = HERE / "layers-faults"
OBJECTS = REPO / "build/obj"
MODULES = REPO / "build/kmod"
PRODUCT = ("include", "bpf", "daemon", "kmod-swap", "policies", "userlib")
INCLUDE_PATH = (".", "include", "daemon", "policies", "policies/sim", "userlib")

# Directory: those whose headers its files may include, besides its own.  A pattern stands for all
# directories that match.  An entry may name one header.
ROOMS = {
    "bpf": ("policies",),
    "policies": ("bpf",),
    "policies/sim": ("policies", "daemon/common", "daemon/trace"),
    "daemon/common": ("bpf",),
    "daemon/wire": ("daemon/common",),
    "daemon/trace": ("daemon/common",),
    "daemon/discovery": ("daemon/common", "daemon/wire"),
    "daemon/kmod": ("daemon/common", "daemon/wire", "daemon/discovery", "kmod-swap/ebb_swap_abi.h"),
    "daemon/swapd": ("daemon/common", "daemon/wire"),
    "daemon/donord": ("daemon/common", "daemon/wire", "daemon/discovery"),
    "daemon/ebbd": ("daemon/common", "daemon/wire", "daemon/discovery", "daemon/trace",
                    "daemon/kmod", "bpf/ebb_abi.h", "policies/ebb_policy.h"),
    "daemon/ebbctl": ("daemon/common", "daemon/wire", "daemon/discovery", "daemon/trace",
                      "daemon/kmod", "bpf/ebb_abi.h"),
    "kmod-swap": ("daemon/wire/wire*.h", "daemon/common/bytes.h", "kmod-swap/shim"),
    "kmod-swap/shim": (),
    "userlib": (),
}

# (name, pattern, files that are searched, files that may contain it)
WORDS = (
    ("dlopen", r"\bdlopen\s*\(", ("*",), ()),
)


def sources():
    """Paths of the product's C files, as git knows them or will."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *PRODUCT],
                         cwd=REPO, check=True, capture_output=True, text=True).stdout
    return [p for p in out.splitlines() if p.endswith((".c", ".h")) and (REPO / p).exists()]


def stem(path):
    """FILE of FILE.c, FILE.h and FILE.bpf.c."""
    return re.sub(r"(\.bpf)?\.[ch]$", "", path)


def includes(files):
    """{file: set of the tree's files that it includes}"""
    known, found = set(files), defaultdict(set)
    for path in files:
        text = (REPO / path).read_text(errors="replace")
        for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', text, re.M):
            for base in (os.path.dirname(path), *INCLUDE_PATH):
                target = os.path.normpath(os.path.join(base, name))
                if target in known:
                    found[path].add(target)
                    break
    return found


def program(path):
    """What is linked together: a program's directory, or the library."""
    part = path.split("/")
    return "/".join(part[:2]) if part[0] in ("daemon", "userlib") else part[0]


def object_of(path):
    """The object made of a C file, or None.  The kernel's build has a flat directory a release."""
    if path.startswith("kmod-swap/"):
        built = sorted(MODULES.glob(f"*/{Path(path).stem}.o"), key=lambda o: o.stat().st_mtime)
        return built[-1] if built else None
    built = OBJECTS / (path[:-2] + ".o")
    return built if built.exists() else None


def calls(files):
    """{stem: set of stems whose symbols its object uses}, for what has been built."""
    units = {f: object_of(f) for f in files if f.endswith(".c")}
    units = {f: o for f, o in units.items() if o}
    if not units:
        return {}
    by_object = {str(o): f for f, o in units.items()}
    out = subprocess.run(["nm", "-A", *by_object], check=True, capture_output=True, text=True).stdout
    defined, wanted = defaultdict(set), defaultdict(set)
    for line in out.splitlines():
        where, _, rest = line.partition(".o:")
        fields = rest.split()
        kind, name = fields[-2], fields[-1]
        path = by_object[where + ".o"]
        if kind == "U":
            wanted[path].add(name)
        elif kind in "TDBRVWC":
            defined[name].add(path)
    uses = defaultdict(set)
    for path, names in wanted.items():
        for name in names:
            places = defined.get(name, ())
            own = [p for p in places if program(p) == program(path)]
            for target in own or (places if len(places) == 1 else ()):
                if stem(target) != stem(path):
                    uses[stem(path)].add(stem(target))
    return uses


def cycles(edges):
    """The nodes that can reach themselves through another (Tarjan's components)."""
    index, low, on, stack, found = {}, {}, set(), [], []

    def visit(root):
        work = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root), on.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target), on.add(target)
                    work.append((target, iter(sorted(edges.get(target, ())))))
                    break
                if target in on:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while True:
                        group.append(stack.pop())
                        on.discard(group[-1])
                        if group[-1] == node:
                            break
                    if len(group) > 1:
                        found.append(sorted(group))

    for node in list(edges):
        if node not in index:
            visit(node)
    return found


def may_include(room, target):
    if os.path.dirname(target) == room:
        return True
    return any(fnmatch.fnmatchcase(target, p) or fnmatch.fnmatchcase(os.path.dirname(target), p)
               for p in ROOMS[room])


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def faults():
    files = sources()
    included = includes(files)
    found = set()
    edges = defaultdict(set)
    for path, targets in included.items():
        room = os.path.dirname(path)
        if room not in ROOMS:
            sys.exit(f"layers.py: {room}: not in ROOMS; add the directory and what it may include")
        for target in targets:
            if not may_include(room, target):
                found.add(f"include {path} -> {target}")
            if stem(path) != stem(target):
                edges[stem(path)].add(stem(target))
    for path, targets in calls(files).items():
        edges[path] |= targets
    groups = cycles(edges)
    for group in groups:
        found |= {f"cycle {path}" for path in group}
    for name, pattern, searched, allowed in WORDS:
        for path in files:
            if any(fnmatch.fnmatchcase(path, p) for p in searched) \
                    and not any(fnmatch.fnmatchcase(path, p) for p in allowed) \
                    and re.search(pattern, without_comments((REPO / path).read_text(errors="replace"))):
                found.add(f"word {name} {path}")
    return found, groups


def main():
    found, groups = faults()
    listed = set(LIST.read_text().split("\n")) - {""} if LIST.exists() else set()
    # What has not been built calls nothing that nm could see.
    unbuilt = {f"cycle {stem(f)}" for f in sources() if f.endswith(".c") and not object_of(f)}
    new, gone = sorted(found - listed), sorted(listed - found - unbuilt)
    if "--shrink" in sys.argv:
        LIST.write_text("".join(f"{line}\n" for line in sorted(listed - set(gone))))
        gone = []
    if "--groups" in sys.argv:
        for group in groups:
            print("cycle:", " ".join(group))
    for line in new:
        print(f"layers: {line}: new; depend on a lower directory, or call through a table of functions")
    for line in gone:
        print(f"layers: {line}: fixed; run tests/layers.py --shrink")
    print(f"layers: {len(found)} known faults" if found else "layers: no fault")
    return 1 if new or gone and "--lenient" not in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
