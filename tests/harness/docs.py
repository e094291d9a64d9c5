# SPDX-License-Identifier: GPL-2.0-or-later
"""
The documents: README.md, docs/*.md and the parts' READMEs.  What they show is run, and
what they name exists.

A block of commands is fenced as `console`, and the line above says how it is run:

	<!-- run: beside -->     as it is, in a directory of its own
	<!-- run: ebbd -->       the same beside a running ebbd, and there is a cgroup spark.slice
	<!-- run: swap -->       it starts ebbd and donors itself, and may switch swap on
	<!-- run: tests/... -->  that test does it
	<!-- not run: REASON --> one of REASONS

Commands begin with "$ " (anybody), "# " (root) or such a prompt behind a machine's name;
"> " or a backslash before it continues one.  What follows is what it prints: all of it,
where "..." stands for any text, and alone on a line for any lines.  Blanks are alike.
"""
import functools
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from machine import BIN, REPO

REASONS = (
    "second machine",
    "installs ebb or packages",
    "needs systemd",
    "needs a program that is not installed",
    "takes minutes",
    "breaks swap",
    "shown elsewhere",
)
WORLDS = ("beside", "ebbd", "swap")
PROGRAMS = ("ebbctl", "ebbd", "ebb-swapd", "ebb-donord", "ebb-sim")
# Options of other programs (losetup, podman, tests/demo/demo.py), and removed ones.
FOREIGN_OPTIONS = {"--direct-io", "--memory-swap", "--no-picture",
                   "--hot-slab", "--rdma-memory", "--rdma-open"}
DIRECTIVE = re.compile(r"<!-- (not run|run): (.+?) -->")
PROMPT = re.compile(r"[a-z]*[#$] (.*)")
# First words of what a reader would type: in README.md and docs/ it is a console block.
TYPED = {"sudo", "make", "systemctl", "setfattr", "podman", "kubectl", *PROGRAMS}


def documents():
    """Every document, in the order of reading."""
    parts = [p for depth in range(1, 4) for p in sorted(REPO.glob("*/" * depth + "*.md"))
             if p.relative_to(REPO).parts[0] not in ("build", "docs")]
    docs = sorted((REPO / "docs").glob("*.md")) + sorted((REPO / "docs").glob("results/**/*.md"))
    return [REPO / "README.md", *docs, *parts]


def name(path):
    return str(path.relative_to(REPO))


@dataclass
class Command:
    line: int
    text: str
    expected: list = field(default_factory=list)


@dataclass
class Block:
    """Fenced or, with language None, indented."""
    path: Path
    line: int
    language: str
    lines: list
    directive: tuple = None     # ("run", "swap")

    @property
    def where(self):
        return f"{name(self.path)}:{self.line}"

    def commands(self):
        found, more = [], False
        for number, line in enumerate(self.lines, self.line + 1):
            prompt = PROMPT.fullmatch(line)
            if more or (found and not found[-1].expected and re.match(r">( |$)", line)):
                found[-1].text += "\n" + re.sub(r"^> ?", "", line)
            elif prompt:
                found.append(Command(number, prompt[1]))
            elif found:
                found[-1].expected.append(line)
            more = found and not found[-1].expected and found[-1].text.endswith("\\")
        return found


@functools.cache
def blocks(path):
    found, block, last, blank = [], None, "", True
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"```(\w*)", line)
        if block and block.language is not None:
            if line.startswith("```"):
                block = None
            else:
                block.lines.append(line)
        elif fence:
            said = DIRECTIVE.fullmatch(last.strip())
            block = Block(path, number, fence[1], [], said.groups() if said else None)
            found.append(block)
        elif line.startswith("    ") and (block or blank):
            if not block:
                block = Block(path, number - 1, None, [])
                found.append(block)
            block.lines.append(line[4:])
        else:
            block = None
            blank = not line.strip()
        last = line
    return found


def consoles(path):
    return [b for b in blocks(path) if b.language == "console"]


def commands(path):
    """What of it is for a shell, a block each, as tests want it that run them by themselves."""
    return ["\n".join(c.text for c in b.commands()) for b in consoles(path)]


def world(path):
    """How the examples of a document are run: the most that one of them needs; None: not at all."""
    wanted = [b.directive[1] for b in consoles(path)
              if b.directive and b.directive[0] == "run" and b.directive[1] in WORLDS]
    return max(wanted, key=WORLDS.index, default=None)


def unclear(path):
    """Blocks without a run marker, or with an unknown one."""
    for b in blocks(path):
        if b.language == "console":
            kind, value = b.directive or (None, None)
            if not kind:
                yield f"{b.where}: does not say how it is run; see tests/harness/docs.py"
            elif kind == "not run" and value not in REASONS:
                yield f"{b.where}: '{value}' is no reason not to run it: {', '.join(REASONS)}"
            elif kind == "run" and value not in WORLDS and not (REPO / value).is_file():
                yield f"{b.where}: run by '{value}', which is not there"
            if not b.commands():
                yield f"{b.where}: no line begins with a prompt"
        elif b.language in ("sh", "bash", "shell") or (
                b.language is None and path.parent in (REPO, REPO / "docs") and
                any(line.split()[:1] and line.split()[0] in TYPED for line in b.lines)):
            yield f"{b.where}: commands are fenced as console"
        elif b.directive:
            yield f"{b.where}: a directive before what is not run"


ANY = [(" ... ", r"[ \t]+(?:.*[ \t]+)?"), (" ...", r"(?:[ \t]+.*)?"), ("... ", r"(?:.*[ \t]+)?"),
       ("...", ".*"), (" ", r"[ \t]+")]


def pattern(line):
    """A line that a document shows as a regular expression."""
    line, found = re.sub(r"[ \t]+", " ", line.strip()), r"[ \t]*"
    while line:
        some = next(((text, means) for text, means in ANY if line.startswith(text)), None)
        found += some[1] if some else re.escape(line[0])
        line = line[len(some[0]) if some else 1:]
    return found + r"[ \t]*\n"


def agrees(expected, output):
    """
    Whether @output is what the lines @expected show.  Warnings are about the machine it ran
    on, such as another swap device.
    """
    shown = "".join(r"(?:.*\n)*?" if line.strip() == "..." else pattern(line)
                    for line in expected if line.strip())
    said = "".join(line + "\n" for line in output.splitlines()
                   if line.strip() and not line.startswith("ebbctl: warning: "))
    return re.fullmatch(shown, said) is not None


# --- what is named ----------------------------------------------------------

def anchor(heading):
    """As the usual viewers make them."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


@functools.cache
def prose(path):
    """Its text without fenced blocks, as (number, line)."""
    rows, fenced = [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            rows.append((number, line))
    return rows


def anchors(path):
    return {anchor(line.lstrip("#")) for _, line in prose(path) if line.startswith("#")}


def broken_links(path):
    for number, line in prose(path):
        bare = re.sub(r"`[^`]*`", "", line)
        for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", bare):
            target = target[0] or target[1]
            if re.match(r"[a-z]+:", target):
                continue
            file, _, part = target.partition("#")
            to = (path.parent / file).resolve() if file else path
            if not to.exists():
                yield f"{name(path)}:{number}: {target}: there is no such file"
            elif part and part not in anchors(to):
                yield f"{name(path)}:{number}: {target}: no heading is called so"


def spans(path):
    """(number, text) of each piece of code in its prose."""
    for number, line in prose(path):
        for text in re.findall(r"`([^`]+)`", line):
            yield number, text


NAMED_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
FILE_KINDS = (".md", ".c", ".h", ".py", ".mk", ".sh", ".svg", ".trace", ".service")
# Names that stand for others, files that a reader of the document makes, and the kernel's.
MADE_UP = re.compile(r"NAME|KERNEL|RELEASE|\bDIR\b|^build/|^forward\.|^toy\.c$|^it\.|^mm/")


@functools.cache
def tree():
    """Names of all files of the project."""
    listed = subprocess.run(["git", "-C", REPO, "ls-files", "--cached", "--others",
                             "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode == 0:
        return {Path(f).name for f in listed.stdout.split("\n")}
    return {p.name for p in REPO.rglob("*") if "build" not in p.parts}


def missing_files(path):
    """
    A name with a slash is looked for from the document's directory upwards, and below the
    daemons' and the tests'; one without has to be a file's somewhere.  `bpf/fault` may be
    what begins a file's name.
    """
    bases = [p for p in path.parents if p.is_relative_to(REPO)]
    bases += [REPO / "daemon", REPO / "tests", REPO / "tests/system", REPO / "docs"]
    for number, text in spans(path):
        if not NAMED_FILE.fullmatch(text) or MADE_UP.search(text):
            continue
        known = text.endswith(FILE_KINDS) or (
            "/" in text and (REPO / text.split("/")[0]).is_dir())
        if not known:
            continue
        if "/" not in text and text in tree():
            continue
        if not any((b / text).exists() or any(b.glob(text + ".*")) for b in bases):
            yield f"{name(path)}:{number}: {text}: there is no such file"


@functools.cache
def usage(*argv):
    """What a program says of itself; examples have words of their own."""
    done = subprocess.run([BIN / argv[0], *argv[1:], "--help"], capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout.split("\nExample")[0]


def options(*argv):
    letters = re.findall(r"(?<![\w-])(-[a-z])\b", usage(*argv))
    return {*re.findall(r"--[a-z][a-z-]*", usage(*argv)), *letters, "--help", "-h"}


@functools.cache
def verbs():
    """{object: {actions}} of ebbctl."""
    found = {}
    for o, a in re.findall(r"^  ([a-z]+)(?: ([a-z]+))?  +\S", usage("ebbctl"), re.M):
        found.setdefault(o, set()).update({a} - {""})
    return found


@functools.cache
def every_option():
    found = set(FOREIGN_OPTIONS)
    for program in PROGRAMS:
        found |= options(program)
    for o, actions in verbs().items():
        for a in actions or {None}:
            found |= options("ebbctl", o, *([a] if a else []))
    for command in re.findall(r"^  ([a-z]+)  ", usage("ebb-sim"), re.M):
        found |= options("ebb-sim", command)
    return found


def wrong_words(words):
    """What of a command line of ours no table has; @words begins with the program."""
    program, rest = words[0], words[1:]
    known = (program,)
    if program in ("ebbctl", "ebb-sim"):
        table = verbs() if program == "ebbctl" else dict.fromkeys(
            re.findall(r"^  ([a-z]+)  ", usage("ebb-sim"), re.M), set())
        if not rest or not re.fullmatch(r"[a-z]+", rest[0]):
            return
        if rest[0] not in table:
            yield f"{program} {rest[0]}: there is no such command"
            return
        known += (rest[0],)
        actions, rest = table[rest[0]], rest[1:]
        if actions and rest and re.fullmatch(r"[a-z]+", rest[0]):
            if rest[0] not in actions:
                yield f"{' '.join(known)} {rest[0]}: there is no such command"
                return
            known += (rest[0],)
        elif actions:
            return
    for word in rest:
        if word == "--":
            return
        if re.match(r"-{1,2}[a-z]", word):
            option = word.split("=")[0]
            if option not in options(*known):
                yield f"{' '.join(known)} {option}: there is no such option"


def command_lines(text):
    """Words of each command of ours in @text, up to what ends one."""
    text = text.replace("\\\n", " ")
    for match in re.finditer(r"(?<![\w/.-])(" + "|".join(PROGRAMS) + r")((?:[ \t]+[^\s;|&#<>)]+)*)", text):
        yield [match[1], *(w.strip("\"'`,[]") for w in match[2].split())]


def wrong_commands(path):
    for number, text in spans(path):
        for words in command_lines(text):
            for problem in wrong_words(words):
                yield f"{name(path)}:{number}: {problem}"
        lone = re.match(r"(--[a-z][a-z-]*)", text)
        if lone and lone[1] not in every_option():
            yield f"{name(path)}:{number}: {lone[1]}: no program has such an option"
    for b in blocks(path):
        said = [c.text for c in b.commands()] if b.language == "console" else \
            b.lines if b.language in (None, "") else []
        for text in said:
            for words in command_lines(text):
                for problem in wrong_words(words):
                    yield f"{b.where}: {problem}"
