# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb-stats(7) as a table, to compare with actual answers."""
from machine import REPO

PAGE = REPO / "docs" / "man" / "ebb-stats.7"


def sections():
    """Returns {title: {item: description}}."""
    found, title, items = {}, None, []
    text = PAGE.read_text().replace("\\&", "").replace("\\\n", "")
    for line in text.splitlines():
        if line.startswith((".Sh ", ".Ss ")):
            title, items = line[4:], []
            found[title] = {}
        elif line.startswith(".It Li ") and title:
            words = line.split()[2:]
            items = words[::2] if words[1:2] == [","] else words[:1]
            for item in items:
                assert item not in found[title], f"{title}: {item} twice"
                found[title][item] = ""
        for item in items:
            found[title][item] += line + "\n" if not line.startswith(".It ") else ""
    return found


def maps():
    """Returns the pinned maps that the page describes."""
    titles = list(sections())
    return titles[titles.index("MAPS") + 1:titles.index("JSON")]


def differences(verb, answer):
    """Returns members of @answer that the page lacks, and items of the page that @answer lacks."""
    page, wrong = sections(), []

    def walk(path, o):
        title = verb + (f": {path}" if path else "")
        if title not in page:
            return wrong.append(f"no section '{title}'")
        said = page[title]
        wrong.extend(f"{title}: {k} is not on the page" for k in o if k not in said)
        wrong.extend(f"{title}: {k} is not there" for k, text in said.items()
                     if k not in o and not text.startswith("Only "))
        for k, v in o.items():
            below = f"{path}.{k}" if path else k
            # Its members depend on the policy.
            if below == "attachments[].params":
                continue
            if isinstance(v, dict):
                walk(below, v)
            elif isinstance(v, list) and v and isinstance(v[0], dict):
                for element in v:
                    walk(below + "[]", element)

    walk("", answer)
    return sorted(set(wrong))
