# SPDX-License-Identifier: GPL-2.0-or-later
"""
How a machine that cases/before_shutdown.sh prepared went down: what is wrong with the order in which
its units ended, and with what became of swap.  Functions of a run's directory that return
{name of what was looked at: what is wrong, or ""}.
"""
import re


def ends(directory):
    """{unit: (its place in the order, result, areas of swap on a loop device)}"""
    path = directory / "ends"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {unit: (i, result, int(swaps)) for i, (unit, result, _, swaps) in enumerate(rows)}


def read_errors(directory):
    """What the kernel says when a page does not come."""
    text = (directory / "console.log").read_text(errors="replace")
    found = re.search(r".*(Read-error on swap-device|I/O error, dev loop|unmount of .* busy).*", text)
    return found.group(0).strip() if found else ""


def swap_is_released(directory):
    """The program first, then the device with its pages, then the donor that has them."""
    found = ends(directory)
    names = ("walker", "ebb-device", "ebb-donord")
    missing = [n for n in names if n not in found]
    if missing:
        return {"order": f"{missing} did not end, or not in time; see ends"}
    walker, device, donor = (found[n] for n in names)
    return {
        "order": "" if walker[0] < device[0] < donor[0] else f"not program, device, donor: {found}",
        "device": "" if device[1:] == ("success", 0) else f"swap is not off, or not by its unit: {device}",
        "pages": read_errors(directory),
    }


def swap_is_left(directory):
    """
    What does not fit stays out and its server lives.  Then systemd takes swap off: by its unit of the
    swap area, for which the kernel kills programs over their limits, or when it has killed all.
    """
    found = ends(directory)
    console = (directory / "console.log").read_text(errors="replace")
    device = found.get("ebb-device", (0, "did not end", 0))
    return {
        "device": "" if device[1:] == ("exit-code", 1) else f"its stop is not refused: {device}",
        "swap": "" if "All swaps deactivated" in console else "systemd-shutdown did not take swap off",
        "pages": read_errors(directory),
    }
