#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
layers.py [--shrink] [--groups] [--lenient] [--built]: checks which file may use which.

Reads every #include of the product and, where objects have been built, their symbols (nm).
A fault is one of

  include A -> B   A includes B, but A's directory may not include B's (ROOMS), or B is not found
  cycle FILE       FILE.c and FILE.h are part of a dependency cycle of files
  word NAME FILE   FILE contains what only another file may contain (WORDS)

tests/layers-faults lists the faults that exist today.  The list may only shrink: a fault that it
lacks fails the check, and so does a line whose fault is fixed.  --shrink removes such lines,
--lenient tolerates them, --groups prints each cycle.  --built fails if a program's object is older
than its source.  The module's objects may be missing: its includes alone show its cycles.
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
INCLUDE_PATH = (".", "include", "daemon", "policies", "userlib/gc", "userlib/far", "userlib/dsm",
                "daemon/lib/wire")
GENERATED = re.compile(r"(^|/)vmlinux\.h$|\.skel\.h$")

# Directory: those whose headers its files may include, besides its own.  A pattern stands for all
# paths that match it.  A program's directories come in the order in which they may be used.
LIB = ("include/ebb", "daemon/lib/*")
SWAPD = [f"daemon/swapd/{room}" for room in ("page", "donor", "request", "replicas", "frontend")]
DONORD = [f"daemon/donord/{room}" for room in ("pool", "far", "job", "session")]
EBBD = [f"daemon/ebbd/{room}" for room in ("plane", "prefetch", "attach", "kmod")]
EBBCTL = [f"daemon/ebbctl/{room}" for room in ("device", "run", "live", "verbs")]

ROOMS = {
    "include/ebb": (),
    "bpf": ("include/ebb",),
    "policies": ("include/ebb",),
    "daemon/lib/base": ("include/ebb",),
    "daemon/lib/rules": ("include/ebb", "daemon/lib/base/draw.h"),
    "daemon/lib/wire": ("include/ebb", "daemon/lib/base"),
    "daemon/lib/control": ("include/ebb", "daemon/lib/base"),
    "daemon/lib/host": ("include/ebb", "daemon/lib/base", "daemon/lib/control"),
    "daemon/lib/trace": ("include/ebb", "daemon/lib/base"),
    "daemon/lib/discovery": ("include/ebb", "daemon/lib/base", "daemon/lib/wire",
                             "daemon/lib/control"),
    "daemon/lib/kmod": ("include/ebb", "daemon/lib/base", "daemon/lib/wire", "daemon/lib/rules",
                        "daemon/lib/control"),
    "daemon/lib/link": ("include/ebb", "daemon/lib/base", "daemon/lib/wire", "daemon/lib/rules"),
    # Sizes of tables, without the code.
    "daemon/sim": (*LIB, "policies", "daemon/swapd/page/slab.h", "daemon/donord/pool/pool.h",
                   "daemon/donord/pool/eviction.h"),
    "daemon/swapd/page": LIB,
    "daemon/swapd/donor": (*LIB, *SWAPD[:1]),
    "daemon/swapd/request": (*LIB, *SWAPD[:2]),
    "daemon/swapd/replicas": (*LIB, *SWAPD[:3]),
    "daemon/swapd/frontend": (*LIB, *SWAPD[:1], *SWAPD[2:3]),
    "daemon/swapd/process": (*LIB, *SWAPD, "daemon/swapd"),
    "daemon/swapd/control": (*LIB, *SWAPD, "daemon/swapd/swapd.h"),
    "daemon/swapd": (*LIB, *SWAPD, "daemon/swapd/process", "daemon/swapd/control"),
    "daemon/donord/pool": LIB,
    "daemon/donord/far": (*LIB, *DONORD[:1]),
    "daemon/donord/job": (*LIB, *DONORD[:2]),
    "daemon/donord/session": (*LIB, *DONORD[:3]),
    "daemon/donord": (*LIB, *DONORD),
    "daemon/ebbd/plane": LIB,
    "daemon/ebbd/prefetch": (*LIB, *EBBD[:1]),
    "daemon/ebbd/attach": (*LIB, *EBBD[:2]),
    "daemon/ebbd/kmod": LIB,
    "daemon/ebbd": (*LIB, *EBBD),
    "daemon/ebbctl/device": (*LIB, "daemon/ebbctl"),
    "daemon/ebbctl/run": (*LIB, "daemon/ebbctl", *EBBCTL[:1]),
    "daemon/ebbctl/live": (*LIB, "daemon/ebbctl", *EBBCTL[:1]),
    "daemon/ebbctl/far": (*LIB, "userlib/far/client.h", "userlib/dsm/desk.h"),
    "daemon/ebbctl/idle": LIB,
    "daemon/ebbctl/verbs": (*LIB, "daemon/ebbctl", *EBBCTL[:3], "daemon/ebbctl/far",
                            "daemon/ebbctl/idle"),
    "daemon/ebbctl": (*LIB, "daemon/ebbctl/verbs/verbs.h"),
    "kmod-swap": ("include/ebb/swap.h", "daemon/lib/wire/wire*.h", "daemon/lib/base/bytes.h",
                  "kmod-swap/shim"),
    "kmod-swap/shim": (),
    "userlib/far": ("include/ebb", "daemon/lib/base", "daemon/lib/rules", "daemon/lib/wire"),
    # As a program that uses the library.
    "userlib/far/examples": ("userlib/far/ebbfar.h",),
    "userlib/dsm": ("userlib/far/ebbfar.h",),
    "userlib/dsm/examples": ("userlib/dsm/ebbdsm.h",),
    "userlib/gc": ("include/ebb/share.h", "include/ebb/page.h", "daemon/lib/rules/tablet.h",
                   "userlib/far/ebbfar.h"),
}

# (name, pattern, searched files, files that may contain it)
WORDS = (
    # ebb-sim loads its user's policy, with that user's rights.
    ("dlopen", r"\bdlopen\s*\(", ("*",), ("daemon/sim/choose.c",)),
    ("clock", r"\bclock_gettime\s*\(\s*CLOCK_MONOTONIC\b", ("daemon/*", "userlib/*"),
     ("daemon/lib/base/clock.h", "userlib/gc/os.c", "userlib/dsm/bell.c")),
    # The protocol's page size is independent of the machine's.
    ("page-size", r"_SC_PAGE_?SIZE|\bgetpagesize\b|#\s*define\s+\w*PAGE(_SIZE\b|\w*\s+\(?(4096|1\w*\s*<<\s*12))",
     ("daemon/*", "userlib/*"), ("include/ebb/page.h", "daemon/lib/wire/wire.h", "userlib/gc/os.c")),
    ("pure", r"#\s*include\s*<(pthread|unistd|sys/socket|sys/mman|sys/time|netinet/in|poll|time|stdlib)\.h>|"
     r"\b(malloc|calloc|realloc|strdup|mmap)\b", ("daemon/lib/rules/*",), ()),
    ("struct-swapd", r"\bstruct swapd\b", ("daemon/swapd/*.h",),
     ("daemon/swapd/swapd.h", "daemon/swapd/start.h", "daemon/swapd/serve.h",
      "daemon/swapd/process/*", "daemon/swapd/control/*")),
    ("bits", r"\bbits_(set|clear)\b", ("daemon/*",), ("daemon/swapd/page/*",)),
    ("transport-name", r"\btransport_(tcp|shm|rdma)\b", ("daemon/*",), ("daemon/lib/link/*",)),
    ("prefetched-map", r"maps\.prefetched|\"prefetched\"", ("daemon/ebbd/*",),
     ("daemon/ebbd/prefetch/prefetch_set.c", "daemon/ebbd/plane/plane.c")),
    ("mutex", r"\bpthread_(mutex|rwlock|spin)_|\bsem_\w+\s*\(|\bHOLD\b|lib/base/lock\.h",
     ("daemon/ebbd/prefetch/*",), ()),
    ("slab-state", r"(->|\.)state\s*=\s*(\(\w+\)\s*)?LEND_", ("daemon/donord/*",),
     ("daemon/donord/pool/pool.c",)),
    ("session-in-pool", r"\bsession/", ("daemon/donord/pool/*",), ()),
    ("generated", r"", ("*vmlinux.h", "*.skel.h"), ()),
)


def sources():
    """Returns the paths of the product's C files, tracked by git or new."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *PRODUCT],
                         cwd=REPO, check=True, capture_output=True, text=True).stdout
    return [p for p in out.splitlines() if p.endswith((".c", ".h")) and (REPO / p).exists()]


def stem(path):
    """Returns FILE for FILE.c, FILE.h and FILE.bpf.c."""
    return re.sub(r"(\.bpf)?\.[ch]$", "", path)


def includes(files):
    """Returns {file: set of the tree's files that it includes}."""
    known, found = set(files), defaultdict(set)
    for path in files:
        text = (REPO / path).read_text(errors="replace")
        for quote, name in re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', text, re.M):
            for base in (os.path.dirname(path), *INCLUDE_PATH):
                target = os.path.normpath(os.path.join(base, name))
                if target in known:
                    found[path].add(target)
                    break
            else:
                if quote == '"' and not GENERATED.search(name):
                    found[path].add(name)
    return found


def program(path):
    """Returns the directory of the program or library of a file."""
    part = path.split("/")
    return "/".join(part[:2]) if part[0] in ("daemon", "userlib") else part[0]


def object_of(path):
    """
    Returns the object of a C file if it is up to date, else None.  The kernel's build has one flat
    directory per release.
    """
    built = list(MODULES.glob(f"*/{Path(path).stem}.o")) if path.startswith("kmod-swap/") \
        else [OBJECTS / (path[:-2] + ".o")]
    written = (REPO / path).stat().st_mtime
    return next((o for o in built if o.exists() and o.stat().st_mtime >= written), None)


def calls(files):
    """Returns {stem: set of stems whose symbols its object uses} for files with objects."""
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
    """Returns the nodes that can reach themselves through another (Tarjan's components)."""
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
    # nm cannot see the calls of files without objects.
    without = [f for f in sources() if f.endswith(".c") and not object_of(f)]
    unbuilt = {f"cycle {stem(f)}" for f in without}
    stale = [f for f in without if f.startswith(("daemon/", "userlib/"))] if "--built" in sys.argv else []
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
    for path in stale:
        print(f"layers: {path}: no current object; run make")
    print(f"layers: {len(found)} known faults" if found else "layers: no fault")
    return 1 if new or stale or gone and "--lenient" not in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
