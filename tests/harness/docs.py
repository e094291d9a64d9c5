# SPDX-License-Identifier: GPL-2.0-or-later
"""
The documents: README.md, docs/*.md and the READMEs of directories.  Tests run the examples and
check that names in the documents exist.

A block of commands is fenced as `console`, and the line above says how to run it:

	<!-- run: beside -->     as it is, in its own directory
	<!-- run: ebbd -->       in its own directory, with a running ebbd and a cgroup spark.slice
	<!-- run: swap -->       the block starts ebbd and donors, and may switch swap on
	<!-- run: tests/... -->  the named test runs it
	<!-- not run: REASON --> one of REASONS

Commands begin with "$ " (any user), "# " (root) or such a prompt after a machine's name.  Lines
with "> ", or after a backslash, continue a command.  Other lines are its whole output, where
"..." stands for any text, and alone on a line for any lines.  Amounts of blanks do not matter.
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
FOREIGN_OPTIONS = {"--direct-io", "--memory-swap", "--no-picture", "--prefetch",
                   "--hot-slab", "--rdma-memory", "--rdma-open"}
DIRECTIVE = re.compile(r"<!-- (not run|run): (.+?) -->")
PROMPT = re.compile(r"[a-z]*[#$] (.*)")
# First words of typed commands, which must be in console blocks in README.md and docs/.
TYPED = {"sudo", "make", "systemctl", "setfattr", "podman", "kubectl", *PROGRAMS}


def documents():
    """Returns every document, in the sequence of reading."""
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
    """A fenced block or, with language None, an indented one."""
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
    """Returns the shell commands of each block, for tests that run them."""
    return ["\n".join(c.text for c in b.commands()) for b in consoles(path)]


def world(path):
    """Returns how to run a document's examples: the most that any block needs; None: not at all."""
    wanted = [b.directive[1] for b in consoles(path)
              if b.directive and b.directive[0] == "run" and b.directive[1] in WORLDS]
    return max(wanted, key=WORLDS.index, default=None)


def unclear(path):
    """Returns blocks without a run marker, or with an unknown one."""
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
    """Returns a regular expression for a line of output in a document."""
    line, found = re.sub(r"[ \t]+", " ", line.strip()), r"[ \t]*"
    while line:
        some = next(((text, means) for text, means in ANY if line.startswith(text)), None)
        found += some[1] if some else re.escape(line[0])
        line = line[len(some[0]) if some else 1:]
    return found + r"[ \t]*\n"


def agrees(expected, output):
    """
    Returns whether @output agrees with the lines @expected.  Warnings are ignored: they concern
    the machine, such as another swap device.
    """
    shown = "".join(r"(?:.*\n)*?" if line.strip() == "..." else pattern(line)
                    for line in expected if line.strip())
    said = "".join(line + "\n" for line in output.splitlines()
                   if line.strip() and not line.startswith("ebbctl: warning: "))
    return re.fullmatch(shown, said) is not None


# --- names ------------------------------------------------------------------

def anchor(heading):
    """Returns a heading's anchor, as the usual viewers form it."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


@functools.cache
def prose(path):
    """Returns (number, line) of a document's text without fenced blocks."""
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
    """Returns (number, text) of each code span in a document's prose."""
    for number, line in prose(path):
        for text in re.findall(r"`([^`]+)`", line):
            yield number, text


NAMED_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
FILE_KINDS = (".md", ".c", ".h", ".py", ".mk", ".sh", ".svg", ".trace", ".service")
# Placeholders, files that the document's reader creates, and files of the kernel.
MADE_UP = re.compile(r"NAME|KERNEL|RELEASE|\bDIR\b|^build/|^forward\.|^toy\.c$|^it\.|^mm/")


@functools.cache
def tree():
    """Returns the names of all files of the project."""
    listed = subprocess.run(["git", "-C", REPO, "ls-files", "--cached", "--others",
                             "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode == 0:
        return {Path(f).name for f in listed.stdout.split("\n")}
    return {p.name for p in REPO.rglob("*") if "build" not in p.parts}


def missing_files(path):
    """
    Returns the names of files that do not exist.  A name with a slash is searched from the
    document's directory upwards and below the daemons' and the tests' directories, a name without
    a slash anywhere.  `bpf/fault` may be the beginning of a file's name.
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
    """Returns a program's usage text, without examples, which have other words."""
    done = subprocess.run([BIN / argv[0], *argv[1:], "--help"], capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout.split("\nExample")[0]


def options(*argv):
    letters = re.findall(r"(?<![\w-])(-[a-z])\b", usage(*argv))
    return {*re.findall(r"--[a-z][a-z-]*", usage(*argv)), *letters, "--help", "-h"}


@functools.cache
def verbs():
    """Returns {object: {actions}} of ebbctl."""
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
    """Returns the unknown words of a command line; @words begins with the program."""
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
    """Returns the words of each command of ebb's programs in @text."""
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
