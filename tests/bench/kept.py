# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs of an interrupted benchmark, from which its next invocation resumes."""
import hashlib
import json
import os


def digest_of(paths):
    """Returns a digest of the programs at @paths: runs of other programs are not comparable."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Kept:
    """
    Values by place, one line each in the file @path, for as long as @key, a dict of what they
    depend on, is the same.  FRESH=1 begins again.
    """

    def __init__(self, path, key):
        self.path, self.values = path, {}
        key = json.loads(json.dumps(key))
        lines = [] if os.environ.get("FRESH") else self.lines()
        if lines and lines[0] == {"key": key}:
            self.values = {json.dumps(place): value for place, value in lines[1:]}
            # Without a line that was cut short.
            self.write(lines)
        else:
            self.write([{"key": key}])

    def lines(self):
        """Returns the lines of the file; the interruption may have cut the last one short."""
        found = []
        try:
            for line in self.path.read_text().splitlines():
                found.append(json.loads(line))
        except (FileNotFoundError, ValueError):
            pass
        return found

    def write(self, lines):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text("".join(json.dumps(line) + "\n" for line in lines))
        new.replace(self.path)

    def get(self, place):
        """Returns the value at @place, a list of strings and numbers, or None."""
        return self.values.get(json.dumps(place))

    def add(self, place, value):
        self.values[json.dumps(place)] = value
        with open(self.path, "a") as f:
            f.write(json.dumps([place, value]) + "\n")

    def done(self):
        """The benchmark is complete: its next invocation measures all again."""
        self.path.unlink(missing_ok=True)
