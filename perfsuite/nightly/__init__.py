"""Runs of the night: time limit, shards, proposals, waivers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    import typer

    from perfsuite.nightly.exceptions import Exceptions
    from perfsuite.nightly.limit import Fit
    from perfsuite.run.run import Work
    from perfsuite.store.baselines import Root


@hookimpl
def perf_commands(app: typer.Typer, baseline: typer.Typer) -> None:
    """Add ``perfsuite nightly``, ``merge`` and those of ``baseline`` for many nights."""
    from perfsuite.nightly.merge import ANY_OPTION, merge, nightly
    from perfsuite.nightly.propose import lint, propose_command

    app.command(context_settings=ANY_OPTION)(nightly)
    app.command()(merge)
    baseline.command("propose")(propose_command)
    baseline.command("lint")(lint)


@hookimpl
def perf_exceptions(roots: Sequence[Root], today: date) -> Exceptions:
    """Read waivers and quarantines."""
    from perfsuite.nightly.exceptions import Exceptions

    return Exceptions.load(roots, today)


@hookimpl
def perf_fit(work: Work) -> Fit | None:
    """Choose what has room, by value and age."""
    from perfsuite.nightly.limit import fit_of

    if not work.limit.is_set:
        return None
    devices = len(work.panels)
    run, entries = work.file.run, work.entries
    return fit_of(run, work.config, limit=work.limit, entries=entries, devices=devices)
