"""Collects raw data until the time is over: panel, other tools and fresh servers take turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.catalogue import load_catalogue
from perfsuite.errors import UsageError
from perfsuite.model import Settings, Tier
from perfsuite.packs import packs_at
from perfsuite.panel import inventory
from perfsuite.plan import missing_need
from perfsuite.prove import planted
from perfsuite.prove.raw import SCHEMA, Header, RawFile
from perfsuite.prove.room import Room, Say
from perfsuite.prove.subjects import CHANGE, subjects_of
from perfsuite.repository import git_commit
from perfsuite.sites import open_desks
from perfsuite.sku import sku_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be collected: where, for how long, into which file."""

    path: Path
    root: Path
    device: str = "auto"
    budget_s: float = 1200.0
    settings: Settings = field(default_factory=Settings)


def collect(plan: Plan, say: Say) -> None:
    """Measure until the time is over or Ctrl-C; what was measured is in the file either way."""
    deadline = time.monotonic() + plan.budget_s
    is_cuda = plan.device == "cuda" or (plan.device == "auto" and bool(inventory()))
    tier = Tier.NIGHTLY if is_cuda else Tier.SMOKE
    (pack,) = load_catalogue(packs_at(Path(planted.__file__)), tier=tier)
    if pack.error:
        raise UsageError(f"the planted pack cannot be listed: {pack.error}")
    with ExitStack() as stack:
        desks = open_desks(plan.device, [pack], plan.settings, stack)
        facts = desks[0].facts
        runnable = tuple(
            each
            for each in pack.variants
            if not missing_need(each, facts)
            and not (is_cuda and each.axes[CHANGE] == planted.COARSE_CHANGE)
        )
        header = Header(
            schema=SCHEMA,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=git_commit(plan.root),
            sku=sku_of(facts),
            facts=facts,
            settings=plan.settings,
            variants=runnable,
        )
        file = stack.enter_context(RawFile(plan.path, header))
        subjects = subjects_of(runnable)
        say(f"{len(desks)} x {facts.name}: {len(subjects)} subjects, {len(runnable)} variants")
        rooms = [
            Room(desk, pack, subjects=subjects, file=file, place=(index, len(desks)))
            for index, desk in enumerate(desks)
        ]
        _run(rooms, deadline, say)


def _run(rooms: Sequence[Room], deadline: float, say: Say) -> None:
    with ThreadPoolExecutor(max_workers=len(rooms)) as pool:
        futures = [pool.submit(room.run, deadline, say) for room in rooms]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException as error:
            for room in rooms:
                room.stop()
            if not isinstance(error, KeyboardInterrupt):
                raise
            say("interrupted: what was measured is kept")
