"""Collects measurements for a proof, on every unit at hand."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import IO, Self

import msgspec
from msgspec import structs

from perfsuite.boundary import UsageError
from perfsuite.model import Pack, Result, Settings, Stage, Tier, Variant
from perfsuite.packs.find import packs_at
from perfsuite.packs.select import missing_need
from perfsuite.prove import planted
from perfsuite.prove.peers import CUPTI, ON_HOST, TOOLS, Order
from perfsuite.prove.raw import (
    CHANGE,
    SCHEMA,
    Header,
    RawFile,
    Reading,
    Stretch,
    Subject,
    Wave,
    subjects_of,
    wave_of,
)
from perfsuite.store.git import commit_of
from perfsuite.store.sku import sku_of
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Site, inventory
from perfsuite.workers.units import Desk, open_desks

# NVML's utilisation is that of a window of 0.17 s or more.
POLL_S = 0.2
# How a unit's time is shared out. Most of it decides how surely the false alarms are counted.
SHARES = {"panel": 0.68, "peers": 0.22, "fresh": 0.10}
# The other tools see every other subject, this many in a turn; fresh servers measure a few.
PEERED, FRESH = 4, 4

Say = Callable[[str], None]


# The controller's side of the other tools: a server for each unit, a process for each order.


# nvbench and the profiler start slowly; a tool that hangs is given up after this.
ANSWER_LIMIT_S = 120.0


class PeerServer:
    """A process that asks the other tools; it is started again after it was given up."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the server
        self._server: subprocess.Popen[bytes] | None = None

    def ask(self, order: Order) -> list[Reading]:
        """Return what each tool says; a tool without an answer has a reason."""
        server = self._server = self._server or self._started()
        assert server.stdin is not None and server.stdout is not None  # noqa: S101, PT018 - pipes
        try:
            server.stdin.write(msgspec.json.encode(order) + b"\n")
            server.stdin.flush()
            ready, _, _ = select.select([server.stdout], [], [], ANSWER_LIMIT_S)
            said = server.stdout.readline() if ready else b""
        except OSError:
            said = b""
        if not said:
            self.close()
        found = msgspec.json.decode(said or b"[]", type=list[Reading])
        reason = "no answer" if said else f"no answer within {ANSWER_LIMIT_S:g} s"
        return found or [
            Reading(variant=order.variant, unit=order.unit, tool=tool, reason=reason)
            for tool in order.tools
        ]

    def close(self) -> None:
        """End the server and what it forked."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
            for pipe in (self._server.stdin, self._server.stdout):
                if pipe is not None:
                    pipe.close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._log.close()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "perfsuite.prove.peers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._site.environment(),
            start_new_session=True,
        )


# One unit of a proof: its panel, the other tools and fresh servers measure there in turn.


class UnitProof:
    """One unit with all that measures on it, from one thread; ``place`` is its own, and of all."""

    def __init__(
        self, desk: Desk, pack: Pack, subjects: Sequence[Subject], *, file: RawFile,
        place: tuple[int, int],
    ) -> None:  # fmt: skip
        self.panel, self.facts = desk.panel, desk.facts
        self.pack, self.subjects, self.file = pack, subjects, file
        self.index, self.units = place
        self.tools = {"cuda": tuple(TOOLS), "cpu": ON_HOST}.get(desk.facts.device, ())
        self.asked = 0
        self.turns = dict.fromkeys(SHARES, 0)
        self.waves: list[Wave] = []
        self.is_stopped = threading.Event()

    def stop(self) -> None:
        """Make ``run`` return soon."""
        self.is_stopped.set()
        self.panel.stop()

    def run(self, deadline: float, say: Say) -> None:
        """Take turns by their shares of the time until none fits before the deadline."""
        with PeerServer(self.panel.site) as peers:
            acts: dict[str, Callable[[], None]] = {
                "panel": self._panel_turn,
                "fresh": self._fresh_turn,
            }
            if self.tools:
                acts["peers"] = lambda: self._peers_turn(peers)
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
                took = f"{name} turn {self.turns[name]} took {last[name]:.0f} s"
                say(f"unit {self.facts.unit}: {took}")

    def _panel_turn(self) -> None:
        """Measure every subject once, in another of its variants each turn.

        The waves of one comparison follow each other, so that a short session has whole ones: the
        base twice, then a change as often as a screen and its confirmation need it; then the next
        change, of which other subjects and units start with others.
        """
        turn, settings = self.turns["panel"], self.panel.site.settings
        confirming = -(-settings.confirm_processes // settings.processes)
        round_, step = divmod(turn, 2 + 1 + confirming)
        chosen = []
        for index, subject in enumerate(self.subjects):
            changes = list(subject.planted.values())
            change = changes[(index + self.index + round_) % len(changes)]
            chosen.append(subject.base if step < 2 else change)  # noqa: PLR2004 - twice
        random.Random(turn).shuffle(chosen)  # noqa: S311 - an order: what runs before what
        # Other processes than in any other turn: their seeds come from the run's.
        self.panel.site = _seeded(self.panel, 1 + turn)
        waves: list[Wave] = []

        def take(result: Result) -> None:
            waves.append(wave_of(result, self.facts.unit))
            self.file.append(waves[-1])

        started = time.monotonic()
        # Of what confirms a run takes a block more: what is found here is found there.
        busy = self._busy_during(
            lambda: self.panel.measure(
                chosen, Stage.SCREEN, processes=settings.processes, on_result=take
            )
        )
        self.waves += waves
        timed_s = [wave.timed_s * len(wave.processes) for wave in waves]
        spin_s = [wave.pace * each for wave, each in zip(waves, timed_s, strict=True)]
        self.file.append(
            Stretch(
                unit=self.facts.unit,
                wall_s=round(time.monotonic() - started, 3),
                timed_s=round(sum(timed_s), 3),
                spin_s=0.0 if self.facts.is_host else round(sum(spin_s), 3),
                busy=busy,
            )
        )

    def _busy_during(self, act: Callable[[], object]) -> float | None:
        """Do something; return the GPU's mean utilisation meanwhile, a share of 1; None of none."""
        gpus = self.panel.site.gpus
        if not gpus or not gpus[0].uuid:
            act()
            return None
        from perfsuite.devices.nvml import Nvml

        nvml, done, polls = Nvml(gpus[0].uuid), threading.Event(), [0.0]

        def poll() -> None:
            while not done.wait(POLL_S):
                polls.append(nvml.foreign_percent() / 100)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            act()
        finally:
            done.set()
            thread.join()
            nvml.close()
        return round(fmean(polls[1:] or polls), 4)

    def _fresh_turn(self) -> None:
        """Measure a few bases by a server that is exec'd for one process of each."""
        chosen = self.subjects[:: max(1, len(self.subjects) // FRESH)][:FRESH]
        site = replace(_seeded(self.panel, 10_000 + self.turns["fresh"]), slots=1)

        def take(result: Result) -> None:
            self.file.append(structs.replace(wave_of(result, self.facts.unit), fresh=True))

        with Panel(site) as panel:
            bases = [subject.base for subject in chosen]
            panel.measure(bases, Stage.SCREEN, processes=1, on_result=take)

    def _peers_turn(self, peers: PeerServer) -> None:
        """Ask the other tools about some subjects, base and change in turn, CUPTI about one."""
        turn = self.turns["peers"]
        chosen = [each for each in self.subjects if not each.is_structural][::2]
        for index in range(turn * PEERED, turn * PEERED + min(PEERED, len(chosen))):
            subject = chosen[index % len(chosen)]
            both = [subject.base, subject.compared()]
            for variant in both if index // len(chosen) % 2 else reversed(both):
                self._ask(peers, subject, variant, self.tools)
        profiled = turn * self.units + self.index
        if profiled < len(self.subjects) and self.facts.device == "cuda":
            subject = self.subjects[profiled]
            self._ask(peers, subject, subject.base, (CUPTI,))

    def _ask(
        self, peers: PeerServer, subject: Subject, variant: Variant, tools: tuple[str, ...]
    ) -> None:
        names = {subject.base.id, *(each.id for each in subject.planted.values())}
        known = [wave for wave in self.waves if wave.variant in names and wave.processes]
        if not known or self.is_stopped.is_set():
            return
        known.sort(key=lambda wave: wave.variant != subject.base.id)
        self.asked += 1
        order = Order(
            variant=variant.id,
            unit=self.facts.unit,
            pack=variant.pack,
            origin=self.pack.origin,
            case=variant.case.name,
            axes=variant.axes,
            device=self.facts.device,
            seed=self.asked + 10_000 * self.index,
            seconds=median(wave.busy_s for wave in known),
            tools=tools,
            time_us=fmean(known[0].processes[0].time_us),
            pace=known[0].pace,
            launches=known[0].launches,
            sets=known[0].sets,
        )
        for reading in peers.ask(order):
            self.file.append(reading)


def _seeded(panel: Panel, turn: int) -> Site:
    return replace(panel.site, settings=structs.replace(panel.site.settings, seed=turn))


def collect(path: Path, *, root: Path, device: str, budget_s: float, say: Say) -> None:
    """Measure until the time is over or Ctrl-C; what was measured is in the file either way."""
    deadline = time.monotonic() + budget_s
    is_cuda = device == "cuda" or (device == "auto" and bool(inventory()))
    tier = Tier.NIGHTLY if is_cuda else Tier.SMOKE
    (pack,) = load_catalogue(packs_at(Path(planted.__file__)), tier=tier)
    if pack.error:
        raise UsageError(f"the planted pack cannot be listed: {pack.error}")
    settings = Settings()
    with ExitStack() as stack:
        desks = open_desks(device, [pack], settings, stack)
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
            commit=commit_of(root)[0],
            sku=sku_of(facts),
            facts=facts,
            settings=settings,
            variants=runnable,
        )
        file = stack.enter_context(RawFile(path, header))
        subjects = subjects_of(runnable)
        say(f"{len(desks)} x {facts.name}: {len(subjects)} subjects, {len(runnable)} variants")
        units = [
            UnitProof(desk, pack, subjects, file=file, place=(index, len(desks)))
            for index, desk in enumerate(desks)
        ]
        _run(units, deadline, say)


def _run(units: Sequence[UnitProof], deadline: float, say: Say) -> None:
    with ThreadPoolExecutor(max_workers=len(units)) as pool:
        futures = [pool.submit(unit.run, deadline, say) for unit in units]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException as error:
            for unit in units:
                unit.stop()
            if not isinstance(error, KeyboardInterrupt):
                raise
            say("interrupted: what was measured is kept")
