# SPDX-License-Identifier: GPL-2.0-or-later
"""
Checks the shutdown of a machine that cases/before_shutdown.sh prepared: the sequence in which its
units ended, and the fate of swap.  The checks take a run's directory and return
{name of the check: fault, or ""}.
"""
import re


def ends(directory):
    """Returns {unit: (its place in the sequence, result, swap areas on loop devices)}."""
    path = directory / "ends"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {unit: (i, result, int(swaps)) for i, (unit, result, _, swaps) in enumerate(rows)}


def read_errors(directory):
    """Returns the kernel's messages of failed page reads."""
    text = (directory / "console.log").read_text(errors="replace")
    found = re.search(r".*(Read-error on swap-device|I/O error, dev loop|unmount of .* busy).*", text)
    return found.group(0).strip() if found else ""


def swap_is_released(directory):
    """Checks the sequence: first the program, then the device with its pages, then the donor."""
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
    Checks that pages that fit nowhere stay swapped out and the server lives until systemd takes
    swap off: by the swap unit, when the kernel kills programs over their limits, or after systemd
    has killed all.
    """
    found = ends(directory)
    console = (directory / "console.log").read_text(errors="replace")
    device = found.get("ebb-device", (0, "did not end", 0))
    return {
        "device": "" if device[1:] == ("exit-code", 1) else f"its stop is not refused: {device}",
        "swap": "" if "All swaps deactivated" in console else "systemd-shutdown did not take swap off",
        "pages": read_errors(directory),
    }
