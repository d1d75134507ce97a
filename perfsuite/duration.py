"""Times as people write them: 90s, 30m, 1h30m."""

from __future__ import annotations

import re

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(\d+(?:\.\d+)?)"
_TIME = re.compile(rf"(?:{_PART}h)?(?:{_PART}m)?(?:{_PART}s)?\Z", re.ASCII)


def seconds_of(text: str) -> float:
    """Return the seconds of ``1h30m``; raises ValueError where there are none."""
    match = _TIME.match(text)
    parts = match.groups("0") if match else ()
    found = sum(float(part) * unit for part, unit in zip(parts, UNITS.values(), strict=False))
    if not found:
        raise ValueError(f"{text!r} is no time")
    return found


def words_of(seconds: float) -> str:
    """Return seconds as they are written: ``1h30m``; what is below a second is left off."""
    left, found = round(seconds), ""
    for unit, each_s in UNITS.items():
        count, left = divmod(left, int(each_s))
        found += f"{count}{unit}" if count else ""
    return found or "0s"
