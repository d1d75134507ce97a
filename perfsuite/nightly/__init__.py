"""Runs of the night: time limit, shards, proposals, waivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    import typer

    from perfsuite.model import BaselineEntry, Run
    from perfsuite.nightly.exceptions import Exceptions
    from perfsuite.nightly.limit import Fit
    from perfsuite.run.config import Config, TimeLimit
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
def perf_fit(
    run: Run,
    config: Config,
    limit: TimeLimit,
    entries: Mapping[str, BaselineEntry],
    devices: int,
) -> Fit | None:
    """Choose what has room, by value and age."""
    from perfsuite.nightly.limit import fit_of

    if not limit.is_set:
        return None
    return fit_of(run, config, limit=limit, entries=entries, devices=devices)
