"""The table that --perf-profile asks for: what the run itself cost."""

from __future__ import annotations

from collections.abc import Iterator

from perfsuite.model import Run
from perfsuite.profiling import profile_of
from perfsuite.report import view
from perfsuite.terminal.words import plain

# A smaller share of the time says nothing.
LEAST_SHARE = 1e-3


def costs(run: Run, report_s: float) -> Iterator[str]:
    """Yield what a run cost: its phases, the device's share, the slowest variants."""
    profile = profile_of(run, report_s=report_s)
    devices = view.count(profile.devices, "device")
    yield plain(f"profile: {view.duration(profile.wall_s)} on {devices}")
    for phase in profile.phases:
        seconds = view.number(phase.seconds, 2)
        share = "" if phase.share < LEAST_SHARE else view.share(phase.share)
        yield plain(f"  {phase.name:<10} {seconds:>10} s {share:>9}  {phase.meaning}".rstrip())
    busy, spin = view.share(profile.busy), view.share(profile.spin)
    yield plain(f"  device busy with samples {busy} of the time, pacing them {spin}")
    for variant, wall_s in profile.slowest:
        yield plain(f"  {view.duration(wall_s):>12}  {variant}")
