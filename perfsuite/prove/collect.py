"""Collects raw data until the time is over: panel, other tools and fresh servers take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

from perfsuite.catalogue import load_catalogue
from perfsuite.errors import UsageError
from perfsuite.model import Pack, Result, Settings, Stage, Tier, Variant
from perfsuite.packs import packs_at
from perfsuite.panel import Panel, Site, inventory
from perfsuite.plan import missing_need
from perfsuite.prove import planted
from perfsuite.prove.meter import Meter
from perfsuite.prove.peer_server import PeerServer
from perfsuite.prove.peers import CUPTI, ON_HOST, TOOLS, Order
from perfsuite.prove.raw import SCHEMA, Header, RawFile, Reading, Stretch, Wave, wave_of
from perfsuite.prove.subjects import Subject, subjects_of
from perfsuite.sites import Desk, git_commit, open_desks
from perfsuite.sku import sku_of

# How a unit's time is shared out. Most of it decides how surely the false alarms are counted.
SHARES = {"panel": 0.68, "peers": 0.22, "fresh": 0.10}
# Of each change, one wave for two of the base: a baseline and a screen.
BASES = 2
# Subjects that the other tools see in one turn, and those that fresh servers measure.
PEERED, FRESH = 5, 4

Say = Callable[[str], None]


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
        runnable = tuple(each for each in pack.variants if not missing_need(each, facts))
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
            _Room(desk, pack, subjects=subjects, file=file, index=index)
            for index, desk in enumerate(desks)
        ]
        _run(rooms, deadline, say)


def _run(rooms: Sequence[_Room], deadline: float, say: Say) -> None:
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


class _Room:
    """One unit with all that measures on it, from one thread."""

    def __init__(
        self, desk: Desk, pack: Pack, *, subjects: Sequence[Subject], file: RawFile, index: int
    ) -> None:
        if not isinstance(desk.panel, Panel):
            raise TypeError("a gang's panel proves nothing here")
        self.panel, self.unit, self.device = desk.panel, desk.facts.unit, desk.facts.device
        self.pack, self.subjects, self.file, self.index = pack, subjects, file, index
        self.tools = {"cuda": tuple(TOOLS), "cpu": ON_HOST}.get(self.device, ())
        self.turns = dict.fromkeys(SHARES, 0)
        self.waves: dict[str, list[Wave]] = {}
        self.is_stopped = threading.Event()

    def stop(self) -> None:
        """Make ``run`` return soon."""
        self.is_stopped.set()
        self.panel.stop()

    def run(self, deadline: float, say: Say) -> None:
        """Take turns by their shares of the time until none fits before the deadline."""
        gpus = self.panel.site.gpus
        with Meter(gpus[0].uuid if gpus else "") as meter, PeerServer(self.panel.site) as peers:
            acts: dict[str, Callable[[], None]] = {
                "panel": lambda: self._panel_turn(meter),
                "peers": lambda: self._peers_turn(peers),
                "fresh": self._fresh_turn,
            }
            if not self.tools:
                del acts["peers"]
            self._take_turns(acts, deadline, say)

    def _take_turns(
        self, acts: Mapping[str, Callable[[], None]], deadline: float, say: Say
    ) -> None:
        spent, last = dict.fromkeys(acts, 0.0), dict.fromkeys(acts, 0.0)
        while not self.is_stopped.is_set():
            left_s = deadline - time.monotonic()
            fitting = [name for name in acts if last[name] < left_s]
            if left_s <= 0 or not fitting:
                return
            name = min(fitting, key=lambda each: spent[each] / SHARES[each])
            started = time.monotonic()
            acts[name]()
            last[name] = time.monotonic() - started
            spent[name] += last[name]
            self.turns[name] += 1
            say(f"unit {self.unit}: {name} turn {self.turns[name]} took {last[name]:.0f} s")

    def _panel_turn(self, meter: Meter) -> None:
        """Measure every subject once, in another of its variants each turn."""
        turn = self.turns["panel"]
        chosen = [
            _arm(subject, turn + index + self.index) for index, subject in enumerate(self.subjects)
        ]
        # Other processes than in any other turn: their seeds come from the run's.
        self.panel.site = _seeded(self.panel, 1 + turn)
        waves: list[Wave] = []
        started = time.monotonic()
        busy = meter.over(lambda: self._measure(self.panel, chosen, waves))
        timed_s = sum(wave.timed_s * len(wave.processes) for wave in waves)
        is_spinning = self.device != "cpu"
        spin_s = is_spinning * sum(w.pace * w.timed_s * len(w.processes) for w in waves)
        stretch = Stretch(
            unit=self.unit,
            wall_s=round(time.monotonic() - started, 3),
            timed_s=round(timed_s, 3),
            spin_s=round(spin_s, 3),
            busy=busy,
        )
        self.file.append(stretch)

    def _measure(self, panel: Panel, variants: Sequence[Variant], waves: list[Wave]) -> None:
        def take(result: Result) -> None:
            wave = wave_of(result, self.unit)
            waves.append(wave)
            self.waves.setdefault(wave.variant, []).append(wave)
            self.file.append(wave)

        processes = panel.site.settings.processes
        panel.measure(variants, Stage.SCREEN, processes=processes, on_result=take)

    def _fresh_turn(self) -> None:
        """Measure a few bases by a server that is exec'd for one process of each."""
        step = max(1, len(self.subjects) // FRESH)
        site = replace(_seeded(self.panel, 10_000 + self.turns["fresh"]), slots=1)
        with Panel(site) as panel:
            panel.measure(
                [subject.base for subject in self.subjects[::step][:FRESH]],
                Stage.SCREEN,
                processes=1,
                on_result=lambda r: self.file.append(replace(wave_of(r, self.unit), fresh=True)),
            )

    def _peers_turn(self, peers: PeerServer) -> None:
        """Ask the other tools about some subjects, base and change in turn."""
        turn, count = self.turns["peers"], len(self.subjects)
        for index in range(turn * PEERED, turn * PEERED + min(PEERED, count)):
            subject = self.subjects[index % count]
            arms = [subject.base, subject.compared()[1]]
            for variant in arms if index // count % 2 else reversed(arms):
                self._ask(peers, variant, self.tools, seed=index)
            if index < count and self.device == "cuda":
                self._ask(peers, subject.base, (CUPTI,), seed=index)

    def _ask(self, peers: PeerServer, variant: Variant, tools: tuple[str, ...], seed: int) -> None:
        known = [wave for wave in self.waves.get(variant.id, ()) if wave.processes]
        if not known or self.is_stopped.is_set():
            return
        order = Order(
            pack=variant.pack,
            origin=self.pack.origin,
            case=variant.case.name,
            axes=variant.axes,
            device=self.device,
            seed=1 + seed + 10_000 * self.index,
            seconds=median(wave.busy_s for wave in known),
            tools=tools,
            time_us=fmean(known[-1].processes[0].time_us),
            pace=known[-1].pace,
            sets=known[-1].sets,
        )
        for answer in peers.ask(order):
            self.file.append(
                Reading(
                    variant=variant.id,
                    unit=self.unit,
                    tool=answer.tool,
                    time_us=answer.time_us,
                    seconds=answer.seconds,
                    reason=answer.reason,
                )
            )


def _arm(subject: Subject, turn: int) -> Variant:
    """Return the variant that is measured in a turn: the base twice, then a change, and again."""
    cycle = [
        each for planted in subject.planted.values() for each in (*BASES * [subject.base], planted)
    ]
    return cycle[turn % len(cycle)]


def _seeded(panel: Panel, turn: int) -> Site:
    settings = panel.site.settings
    return replace(panel.site, settings=replace(settings, seed=turn))
