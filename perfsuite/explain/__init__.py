"""Why it changed: traces of kernels, code parts and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    from markupsafe import Markup

    from perfsuite.model import Change, Run
    from perfsuite.report.data import Explained, SideView, VariantView


@hookimpl
def perf_judged() -> Callable[..., Run]:
    """Trace the kernels of what moved, and of what may become a baseline."""
    from perfsuite.explain.trace import Tracing

    return lambda run, work: Tracing(run, work).take()


@hookimpl
def perf_explained(change: Change | None, before: SideView, now: SideView) -> Explained:
    """Say what a change is made of: kernels, their code, the clock, the environment."""
    from perfsuite.explain.why import doubt, explain, explained

    return explained(explain(change, before, now), doubt(change, now.times))


@hookimpl
def perf_variant_section(variant_view: VariantView) -> Markup:
    """Show the kernels of a launch, before and now, and how their code differs."""
    from perfsuite.explain.why import section

    return section(variant_view)


@hookimpl
def perf_doctor() -> Sequence[str]:
    """Say with what counters would be read, and what stands against it."""
    from perfsuite.explain.trace import readers

    return [f"Counters (perf_counters): {each}" for each in readers()]
