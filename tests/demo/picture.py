# SPDX-License-Identifier: GPL-2.0-or-later
"""
Draws the demo as one picture: the pages on which each program faulted over time, with the
kernel's readahead and with ebb, and the times of the runs.
"""
import subprocess

import numpy as np
import matplotlib

import machine

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

INK, FAINT, PAPER, PANEL = "#1c2733", "#8a97a5", "#ffffff", "#f5f7f9"
COLOUR = {"miss": "#d1495b", "hit": "#2a9d8f", "late": "#edae49"}
BAR = {"kernel": "#b8c1cb", "ebb": "#2a9d8f"}
KINDS = ("miss", "late", "hit")
MAX_POINTS = 60_000
# Most pages shown for a hole between two faulted pages.
GAP_PAGES = 256


def read_trace(path):
    """Returns (seconds since the first fault, virtual page, kind as an index into KINDS)."""
    told = subprocess.run([machine.BIN / "ebbctl", "trace", "show", "--csv", path], text=True,
                          capture_output=True, check=True).stdout
    rows = [line.split(",") for line in told.splitlines()[1:]]
    rows = [r for r in rows if r[5] in KINDS]
    if not rows:
        return np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
    time = np.array([int(r[0]) for r in rows], np.int64)
    page = np.array([int(r[2]) for r in rows], np.int64)
    kind = np.array([KINDS.index(r[5]) for r in rows])
    order = np.argsort(time, kind="stable")
    return (time[order] - time.min()) / 1e9, page[order], kind[order]


def squeeze(pages, scale_of):
    """
    Returns MiB by ascending address without the holes: heap, mappings and stack lie terabytes
    apart.  @scale_of: the pages of both runs, so that they share a scale.
    """
    known = np.unique(scale_of)
    steps = np.minimum(np.diff(known, prepend=known[:1]), GAP_PAGES)
    return np.cumsum(steps)[np.searchsorted(known, pages)] * 4096 / (1 << 20)


def draw_faults(ax, trace, height, seconds, title, told):
    time, page, kind = trace
    ax.set_facecolor(PANEL)
    step = max(1, len(time) // MAX_POINTS)
    # Sorted by time: drawing one kind last would hide the others.
    colours = np.array([COLOUR[k] for k in KINDS])
    ax.scatter(time[::step], page[::step], s=0.7, c=colours[kind[::step]], linewidths=0,
               rasterized=True)
    ax.set_xlim(0, seconds)
    ax.set_ylim(-0.02 * height, height * 1.02)
    ax.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold")
    ax.set_title(told, loc="right", fontsize=9, color=FAINT)
    tidy(ax)


def tidy(ax):
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FAINT)
    ax.tick_params(colors=FAINT, labelsize=8)


def draw_pair(axes, name, percent, traces):
    both = [read_trace(traces[(name, percent, m)]) for m in ("kernel", "ebb")]
    scale_of = np.concatenate([t[1] for t in both])
    seconds = max([t[0].max() for t in both if len(t[0])], default=1.0)
    both = [(t[0], squeeze(t[1], scale_of), t[2]) for t in both]
    height = max([t[1].max() for t in both if len(t[1])], default=1.0) or 1.0
    for ax, trace, side in zip(axes, both, ("the kernel's readahead", "ebb")):
        counts = np.bincount(trace[2], minlength=3)
        told = f"{counts[0]:,} misses"
        if side == "ebb":
            told += f", {counts[1] + counts[2]:,} hits"
        draw_faults(ax, trace, height, seconds, f"{name} at {percent} %: {side}", told)
    axes[0].set_ylabel("address, MiB (holes left out)", fontsize=8, color=FAINT)


def draw_bars(ax, report):
    rows = report["workloads"]
    at = np.arange(len(rows))[::-1] * 1.25
    longest = max(max(r["seconds_kernel"], r["seconds_ebb"]) for r in rows)
    for mode, shift in (("kernel", 0.22), ("ebb", -0.22)):
        ax.barh(at + shift, [r[f"seconds_{mode}"] for r in rows], height=0.42, color=BAR[mode],
                label="the kernel's readahead" if mode == "kernel" else "ebb")
    for y, r in zip(at, rows):
        end = max(r["seconds_kernel"], r["seconds_ebb"])
        ax.text(end + longest * 0.02, y, f"{r['speedup']:.2f}x", va="center", fontsize=10,
                fontweight="bold", color=INK if r["speedup"] >= 1 else COLOUR["miss"])
    ax.set_yticks(at, [f"{r['name']}\n{r['local_percent']} % local" for r in rows])
    ax.set_xlim(0, longest * 1.18)
    ax.set_xlabel("seconds", fontsize=9, color=FAINT)
    ax.set_title("run time", loc="left", fontsize=10, color=INK, fontweight="bold")
    ax.legend(frameon=False, fontsize=9, loc="lower right")
    tidy(ax)
    ax.tick_params(axis="y", colors=INK, length=0)


def draw(path, report, traces):
    pairs = list(dict.fromkeys(key[:2] for key in traces))
    rows = max(len(pairs), 1)
    fig = plt.figure(figsize=(17, 3.1 * rows + 1.6), facecolor=PAPER)
    grid = fig.add_gridspec(rows, 3, width_ratios=(1, 1, 0.9), left=0.05, right=0.985,
                            top=1 - 1.15 / (3.1 * rows + 1.6), bottom=0.08,
                            hspace=0.38, wspace=0.22)
    for i, (name, percent) in enumerate(pairs):
        axes = [fig.add_subplot(grid[i, 0]), fig.add_subplot(grid[i, 1])]
        draw_pair(axes, name, percent, traces)
        if i == rows - 1:
            for ax in axes:
                ax.set_xlabel("seconds since the first fault", fontsize=9, color=FAINT)
    draw_bars(fig.add_subplot(grid[:, 2] if pairs else grid[:, :]), report)
    fig.suptitle(f"ebb: pages are prefetched before they are accessed, "
                 f"{report['geomean_speedup']:.2f} times as fast "
                 f"over {len(report['workloads'])} runs",
                 x=0.05, y=0.985, ha="left", va="top", fontsize=16, fontweight="bold", color=INK)
    if pairs:
        dots = [Line2D([], [], marker="o", ls="", ms=6, color=COLOUR[k], label=label)
                for k, label in (("miss", "miss: the program waited for the page"),
                                 ("late", "late: asked for, still on its way"),
                                 ("hit", "hit: it was there already"))]
        fig.legend(handles=dots, loc="upper left", bbox_to_anchor=(0.045, 0.955), ncol=3,
                   frameon=False, fontsize=10)
    fig.savefig(path, dpi=110)
    plt.close(fig)
