"""One unit of a proof: its panel, the other tools and fresh servers measure there in turn."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from perfsuite.model import Pack, Result, Stage, Variant
from perfsuite.panel import Panel, Site
from perfsuite.prove.meter import Meter
from perfsuite.prove.peer_server import PeerServer
from perfsuite.prove.peers import CUPTI, ON_HOST, TOOLS, Order
from perfsuite.prove.raw import RawFile, Stretch, Wave, wave_of
from perfsuite.prove.subjects import Subject
from perfsuite.sites import Desk

# How a unit's time is shared out. Most of it decides how surely the false alarms are counted.
SHARES = {"panel": 0.68, "peers": 0.22, "fresh": 0.10}
# The other tools see every other subject, this many in a turn; fresh servers measure a few.
PEERED, FRESH = 4, 4

Say = Callable[[str], None]


class Room:
    """One unit with all that measures on it, from one thread."""

    def __init__(
        self,
        desk: Desk,
        pack: Pack,
        *,
        subjects: Sequence[Subject],
        file: RawFile,
        place: tuple[int, int],
    ) -> None:
        if not isinstance(desk.panel, Panel):
            raise TypeError("a gang's panel proves nothing here")
        self.panel, self.unit, self.device = desk.panel, desk.facts.unit, desk.facts.device
        self.pack, self.subjects, self.file = pack, subjects, file
        self.index, self.desks = place
        self.tools = {"cuda": tuple(TOOLS), "cpu": ON_HOST}.get(self.device, ())
        settings = desk.panel.site.settings
        self.confirming = -(-settings.confirm_processes // settings.processes)
        self.asked = 0
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
        waves_each = 1 + self.confirming
        chosen = [
            _arm(subject, turn, start=index + self.index, waves_each=waves_each)
            for index, subject in enumerate(self.subjects)
        ]
        random.Random(turn).shuffle(chosen)  # noqa: S311 - an order: what runs before what
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
        # Of what confirms a run takes a block more: what is found here is found there.
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
        """Ask the other tools about some subjects, base and change in turn, CUPTI about one."""
        turn = self.turns["peers"]
        chosen = [each for each in self.subjects if not each.is_structural][::2]
        for index in range(turn * PEERED, turn * PEERED + min(PEERED, len(chosen))):
            subject = chosen[index % len(chosen)]
            arms = [subject.base, subject.compared()[1]]
            for variant in arms if index // len(chosen) % 2 else reversed(arms):
                self._ask(peers, subject, variant, self.tools)
        profiled = turn * self.desks + self.index
        if profiled < len(self.subjects) and self.device == "cuda":
            subject = self.subjects[profiled]
            self._ask(peers, subject, subject.base, (CUPTI,))

    def _ask(
        self, peers: PeerServer, subject: Subject, variant: Variant, tools: tuple[str, ...]
    ) -> None:
        known = [wave for each in subject.variants for wave in self.waves.get(each.id, ())]
        known = [wave for wave in known if wave.processes]
        if not known or self.is_stopped.is_set():
            return
        self.asked += 1
        order = Order(
            variant=variant.id,
            unit=self.unit,
            pack=variant.pack,
            origin=self.pack.origin,
            case=variant.case.name,
            axes=variant.axes,
            device=self.device,
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


def _arm(subject: Subject, turn: int, *, start: int, waves_each: int) -> Variant:
    """Return the variant that is measured in a turn.

    The waves of one comparison follow each other, so that a short session has whole ones: the
    base twice, then a change as often as a screen and its confirmation need it; then the next
    change, of which subjects ``start`` with others.
    """
    round_, step = divmod(turn, 2 + waves_each)
    changes = list(subject.planted.values())
    return subject.base if step < 2 else changes[(start + round_) % len(changes)]  # noqa: PLR2004 - twice


def _seeded(panel: Panel, turn: int) -> Site:
    settings = panel.site.settings
    return replace(panel.site, settings=replace(settings, seed=turn))
