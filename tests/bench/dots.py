# SPDX-License-Identifier: GPL-2.0-or-later
"""
Ratios as an SVG: a dot with its interval a line, on a logarithmic axis with a line at 1.
Text and shapes only, so that it is small, the same every time, and follows the reader's
light or dark.
"""
import math
import re
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, LINE, TOP, BOTTOM = 780, 17, 44, 58
GLYPH = 6.0             # about what a letter of 11 px takes
LABEL_MOST = 380
TICKS = {"wide": (1, 2, 5), "narrow": (1, 1.2, 1.5, 2, 3, 5, 7)}
NARROW = 12             # axes that span less get more ticks
# An interval reaches at most this many times beyond the outermost dot; then it is cut off.
CUT = 2
KINDS = {"met": "target met", "missed": "target missed", "plain": "no target",
         "other": "against zram"}

STYLE = """
  text { font: 11px sans-serif; fill: #1f2328 }
  .s { fill: #57606a } .h { font-size: 13px; font-weight: bold } .r { text-anchor: end }
  .c { text-anchor: middle }
  path { fill: none; stroke: #d0d7de } .one { stroke: #1f2328 } .t { stroke: #9a6700; stroke-width: 2 }
  .met, .plain { stroke-width: 1.5 }
  .met { stroke: #1a7f37; fill: #1a7f37 } .missed { stroke: #cf222e; fill: #cf222e; stroke-width: 1.5 }
  .plain { stroke: #6e7781; fill: #6e7781 } .other { stroke: #0969da; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .s { fill: #9da7b1 } path { stroke: #3d444d }
    .one { stroke: #e6edf3 } .t { stroke: #d29922 }
    .met { stroke: #3fb950; fill: #3fb950 } .missed { stroke: #ff7b72; fill: #ff7b72 }
    .plain { stroke: #8b949e; fill: #8b949e } .other { stroke: #58a6ff }
  }
"""


@dataclass
class Dot:
    ratio: float
    low: float = None
    high: float = None
    kind: str = "plain"         # of KINDS
    target: float = None        # where on the axis


@dataclass
class Row:
    label: str
    dots: list = field(default_factory=list)
    begins: bool = False        # a group


class Axis:
    def __init__(self, rows, left):
        dots = [d for r in rows for d in r.dots]
        marks = [1.0, *(d.ratio for d in dots), *(d.target for d in dots if d.target)]
        least, most = min(marks), max(marks)
        lows = [d.low for d in dots if d.low] or [least]
        highs = [d.high for d in dots if d.high] or [most]
        self.least = max(min(least, min(lows)), least / CUT) / 1.08
        self.most = min(max(most, max(highs)), most * CUT) * 1.08
        self.left, self.right = left, WIDTH - 16

    def x(self, value):
        """Pixels; what is beyond the axis is at its end."""
        value = min(max(value, self.least), self.most)
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.left + share * (self.right - self.left)

    def ticks(self):
        steps = TICKS["narrow" if self.most / self.least < NARROW else "wide"]
        tens = range(math.floor(math.log10(self.least)) - 1, math.ceil(math.log10(self.most)) + 1)
        both = {round(s * 10.0 ** t, 6) for t in tens for s in steps}
        if steps is TICKS["narrow"]:
            both |= {0.8, 0.9}
        return sorted(v for v in both if self.least <= v <= self.most)


def number(value):
    return f"{value:.1f}".removesuffix(".0")


def whisker(axis, dot, y):
    a, b = axis.x(dot.low), axis.x(dot.high)
    path = f"M{number(a)} {number(y)}H{number(b)}"
    # An arrow where it is cut off.
    if dot.low < axis.least:
        path += f"M{number(a + 4)} {number(y - 3)}l-4 3 4 3"
    if dot.high > axis.most:
        path += f"M{number(b - 4)} {number(y - 3)}l4 3-4 3"
    return path


def draw_dot(axis, dot, y):
    x, parts = axis.x(dot.ratio), []
    if dot.target:
        parts.append(f'<path class="t" d="M{number(axis.x(dot.target))} {number(y - 6)}v12"/>')
    if dot.low is not None and dot.high is not None:
        parts.append(f'<path class="{dot.kind}" d="{whisker(axis, dot, y)}"/>')
    parts.append(mark(dot.kind, x, y))
    return "".join(parts)


def mark(kind, x, y):
    # Not by colour alone.
    if kind == "missed":
        return f'<path class="missed" d="M{number(x)} {number(y - 5)}l5 5-5 5-5-5z"/>'
    return f'<circle class="{kind}" cx="{number(x)}" cy="{number(y)}" r="3.5"/>'


def legend(kinds, targets, left, y):
    parts, x = [], left
    for kind in KINDS:
        if kind in kinds:
            parts.append(mark(kind, x, y - 4) +
                         f'<text class="s" x="{number(x + 9)}" y="{y}">{KINDS[kind]}</text>')
            x += 24 + GLYPH * len(KINDS[kind])
    if targets:
        parts.append(f'<path class="t" d="M{number(x)} {y - 10}v12"/>'
                     f'<text class="s" x="{number(x + 6)}" y="{y}">target</text>')
    return parts


def draw(title, axis_text, rows):
    """The SVG's text."""
    longest = max((len(r.label) for r in rows), default=0)
    left = min(longest * GLYPH, LABEL_MOST) + 24
    axis = Axis(rows, left)
    bottom = TOP + LINE * len(rows)
    height = bottom + BOTTOM
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
             f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="t">',
             f'<title id="t">{escape(title)}</title>', f"<style>{STYLE}</style>",
             f'<text class="h" x="8" y="20">{escape(title)}</text>']
    for value in axis.ticks():
        x = number(axis.x(value))
        kind = ' class="one"' if value == 1 else ""
        parts.append(f'<path{kind} d="M{x} {TOP - 6}V{bottom}"/>'
                     f'<text class="s c" x="{x}" y="{bottom + 14}">{value:g}</text>')
    for i, row in enumerate(rows):
        y = TOP + LINE * i + LINE / 2
        if row.begins and i:
            parts.append(f'<path d="M8 {number(y - LINE / 2)}H{axis.right}"/>')
        parts.append(f'<text class="r" x="{number(left - 12)}" y="{number(y + 4)}">'
                     f'{escape(shorten(row.label))}</text>')
        # The first is what the row is about: on top.
        parts += [draw_dot(axis, dot, y) for dot in reversed(row.dots)]
    dots = [d for r in rows for d in r.dots]
    parts.append(f'<text class="s c" x="{number((left + axis.right) / 2)}" y="{bottom + 30}">'
                 f'{escape(axis_text)}</text>')
    parts += legend({d.kind for d in dots}, any(d.target for d in dots), left, bottom + 48)
    return "\n".join([*parts, "</svg>", ""])


def shorten(label):
    most = int(LABEL_MOST / GLYPH)
    return label if len(label) <= most else label[:most - 3] + "..."


def target_of(text):
    """Where on the axis a target such as ">= 1.5" is, or None."""
    found = re.fullmatch(r"(?:[<>]= |interval not below |interval above )([0-9.]+)(?: / ([0-9.]+))?", text or "")
    return float(found[1]) / float(found[2] or 1) if found else None
