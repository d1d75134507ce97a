"""Results over months: stored in SQL, shifts found, pages of trends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from perfsuite.boundary import PerfError, in_a_line
from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    import typer

    from perfsuite.model import Run
    from perfsuite.report.data import VariantView
    from perfsuite.run.config import Config
    from perfsuite.run.run import Steps

INI, DEFAULT = "perf_history", "sqlite:///.perfsuite/history.db"
# A report of more variants tells those in short that need no reader.
MOST_SHOWN = 1000


@hookimpl
def perf_options() -> Mapping[str, Mapping[str, Any]]:
    """Return the setting that says where the history is."""
    return {INI: {"help": "URL of the history; empty: none", "default": DEFAULT}}


@hookimpl
def perf_commands(app: typer.Typer) -> None:
    """Add ``perfsuite history``."""
    from perfsuite.history.pages import history

    app.add_typer(history, name="history")


Past = tuple[Mapping[str, Any], Sequence[str]]


@hookimpl
def perf_past(run: Run, config: Config, steps: Steps | None) -> Past:
    """Store the run and what it is compared with, if it is new; return its variants' past."""
    nothing: Past = {}, ()

    def known() -> Past:
        from perfsuite.history.store import History, url_of

        url = url_of(config.root, config.features.get(INI))
        if not url or run.settings.check_only:
            return nothing
        shown = [variant.id for variant in run.variants]
        if len(shown) > MOST_SHOWN:
            shown = [each.variant for each in run.verdicts if each.word not in {"same", "new"}]
        with History(url, config.root) as history:
            if steps:
                history.add(run, config.baselines)
            found = partial(history.recent, run, shown)
            return steps.take("history not shown", found, {}) if steps else found(), ()

    if steps:
        later = f"perfsuite history import {run.id} later"
        return steps.take("history not stored", known, nothing, remedy=later)
    try:
        return known()
    except PerfError as error:  # a page is made without
        return {}, (f"the history is not shown: {in_a_line(error)}",)


@hookimpl(trylast=True)  # why it changed stands before since when
def perf_variant_section(variant_view: VariantView) -> Markup:
    """Show the runs of a variant before this one."""
    if variant_view.history is None:
        return Markup()
    from perfsuite.history.pages import past_of

    return past_of(variant_view)
