"""Collects measurements for a proof on every unit at hand, and what other tools say there."""

from __future__ import annotations

import importlib
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from perfsuite.boundary import UsageError
from perfsuite.devices.protocol import Device, automatic, open_device
from perfsuite.engine.measure import Session
from perfsuite.model import Result, Settings, Stage, Tier, Variant, built_in
from perfsuite.packs.find import packs_at
from perfsuite.packs.load import load_pack
from perfsuite.packs.select import missing_need
from perfsuite.prove import planted
from perfsuite.prove.raw import (
    CHANGE,
    CUPTI,
    Header,
    Ladder,
    Reading,
    Stretch,
    Wave,
    append,
    ladders_of,
    wave_of,
)
from perfsuite.store.files import refusing
from perfsuite.store.git import commit_of
from perfsuite.store.sku import sku_of
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.messages import read
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import EndedError, Setup, Slot
from perfsuite.workers.units import open_panels

# NVML's utilisation is that of a window of 0.17 s or more.
POLL_S = 0.2
# How a unit's time is shared out. Most of it decides how surely the false alarms are counted.
SHARES = {"panel": 0.75, "tools": 0.25}
# The other tools see every other ladder, this many in a turn.
ASKED = 4
# Those that are asked on devices with units, and on the host; CUPTI is no rival.
RIVALS, HOST_RIVALS = ("do_bench", "torch.utils.benchmark", "nvbench"), ("torch.utils.benchmark",)
PROFILED = 30
FEWEST_ROUNDS = 5
# nvbench and the profiler start slowly; a tool that hangs is given up after this.
ANSWER_LIMIT_S = 120.0

Say = Callable[[str], None]


class Unit:
    """One unit: its panel, it and the other tools measure there in turn.

    ``place`` is which of the ``units`` it is: each starts with other changes.
    """

    def __init__(
        self, panel: Panel, ladders: Sequence[Ladder], file: FileIO, *, place: int, units: int
    ) -> None:
        self.panel, self.facts = panel, panel.facts
        self.ladders, self.file, self.place, self.units = ladders, file, place, units
        self.turns = dict.fromkeys(SHARES, 0)
        self.waves: dict[str, Wave] = {}
        self.asked = 0
        self.has_units = bool(built_in(self.facts.device).unit)
        self.rivals = RIVALS if self.has_units else HOST_RIVALS if self.facts.is_host else ()
        self.stopped = threading.Event()

    def stop(self) -> None:
        """Make ``run`` return soon."""
        self.stopped.set()
        self.panel.stop()

    def run(self, deadline: float, say: Say) -> None:
        """Take turns by their shares of the time until none fits before the deadline."""
        with closing(Slot(0, self.panel.setup)) as slot:
            acts = {"panel": self.measure}
            if self.rivals:
                acts["tools"] = partial(self.ask_tools, slot)
            spent, last = dict.fromkeys(acts, 0.0), dict.fromkeys(acts, 0.0)
            while not self.stopped.is_set():
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

    def measure(self) -> None:
        """Measure each ladder once, at another of its variants each turn.

        The waves of one comparison follow each other, so that a short session has whole ones: the
        base twice, then a change as often as a screen and its confirmation need it; then the next
        change, of which other ladders and units start with others.
        """
        turn, settings = self.turns["panel"], self.panel.setup.settings
        confirming = -(-settings.confirm_processes // settings.processes)
        round_, step = divmod(turn, 3 + confirming)
        chosen = []
        for index, ladder in enumerate(self.ladders):
            base, *changes = ladder.variants.values()
            change = changes[(index + self.place + round_) % len(changes)]
            chosen.append(base if step in {0, 1} else change)
        random.Random(turn).shuffle(chosen)  # noqa: S311 - an order: what runs before what
        # Other processes than in any other turn: their seeds come from the run's.
        setup = self.panel.setup
        self.panel.setup = replace(setup, settings=structs.replace(settings, seed=1 + turn))
        waves: list[Wave] = []

        def take(result: Result) -> None:
            waves.append(wave_of(result, self.facts.unit))
            append(self.file, waves[-1])

        started = time.monotonic()
        # Of what confirms a run takes a block more: what is found here is found there.
        with _polled(self.panel.setup) as polls:
            self.panel.measure(chosen, Stage.SCREEN, processes=settings.processes, on_result=take)
        self.waves |= {wave.variant: wave for wave in waves if wave.processes}
        timed_s = [wave.timed_s * len(wave.processes) for wave in waves]
        spin_s = [wave.pace * each for wave, each in zip(waves, timed_s, strict=True)]
        append(
            self.file,
            Stretch(
                unit=self.facts.unit,
                wall_s=round(time.monotonic() - started, 3),
                timed_s=round(sum(timed_s), 3),
                spin_s=0.0 if self.facts.is_host else round(sum(spin_s), 3),
                busy=round(statistics.fmean(polls), 4) if polls else None,
            ),
        )

    def ask_tools(self, slot: Slot) -> None:
        """Ask the other tools about some ladders, base and change in turn, CUPTI about one."""
        turn = self.turns["tools"]
        chosen = [each for each in self.ladders if not each.is_structural][::2]
        for index in range(turn * ASKED, turn * ASKED + min(ASKED, len(chosen))):
            ladder = chosen[index % len(chosen)]
            both = [ladder.base, ladder.compared]
            for variant in both if index // len(chosen) % 2 else reversed(both):
                self._ask(slot, ladder, variant, self.rivals)
        profiled = turn * self.units + self.place
        if profiled < len(self.ladders) and self.has_units:
            ladder = self.ladders[profiled]
            self._ask(slot, ladder, ladder.base, (CUPTI,))

    def _ask(self, slot: Slot, ladder: Ladder, variant: Variant, tools: tuple[str, ...]) -> None:
        wave = self.waves.get(ladder.base.id)
        if not wave or self.stopped.is_set():
            return
        self.asked += 1
        order = Order(
            variant=variant,
            origin=self.panel.setup.origins[variant.pack],
            unit=self.facts.unit,
            device=self.facts.device,
            seed=self.asked + 10_000 * self.place,
            seconds=wave.busy_s,
            tools=tools,
            wave=wave,
        )
        for reading in ask(slot, order):
            append(self.file, reading)


@contextmanager
def _polled(setup: Setup) -> Iterator[list[float]]:
    """Poll a unit's utilisation meanwhile; the list is of shares of 1, and empty of none."""
    polls: list[float] = []
    watches = built_in(setup.device).watches
    if not watches or not setup.gpus or not setup.gpus[0].uuid:
        yield polls
        return
    watched, done = resolve_name(watches)(setup.gpus[0].uuid), threading.Event()

    def poll() -> None:
        while not done.wait(POLL_S):
            polls.append(watched.foreign_percent() / 100)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield polls
    finally:
        done.set()
        thread.join()
        watched.close()


def collect(path: Path, *, root: Path, device: str, budget_s: float, say: Say) -> None:
    """Measure until the time is over or Ctrl-C; what was measured is in the file either way."""
    deadline = time.monotonic() + budget_s
    has_units = bool(built_in(automatic()[0] if device == "auto" else device).unit)
    tier = Tier.NIGHTLY if has_units else Tier.SMOKE
    (pack,) = load_catalogue(packs_at(Path(planted.__file__)), tier=tier)
    if pack.error:
        raise UsageError(f"the planted pack cannot be listed: {pack.error}")
    with ExitStack() as stack:
        panels = open_panels(device, [pack], Settings(processes=3), stack)
        facts = panels[0].facts
        variants = [each for each in pack.variants if not missing_need(each, facts)]
        if has_units:
            variants = [each for each in variants if each.axes[CHANGE] != planted.COARSE_CHANGE]
        header = Header(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit_of(root)[0],
            sku=sku_of(facts),
            facts=facts,
            settings=Settings(processes=3),
            variants=tuple(variants),
        )
        remedy = "name a file that does not exist yet, in a folder that can be written"
        with refusing("cannot create the raw data", path, remedy=remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("xb", buffering=0))
        append(file, header)
        ladders = ladders_of(variants)
        say(f"{len(panels)} x {facts.name}: {len(ladders)} ladders, {len(variants)} variants")
        units = [
            Unit(panel, ladders, file, place=place, units=len(panels))
            for place, panel in enumerate(panels)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(units)))
        try:
            for future in as_completed(pool.submit(unit.run, deadline, say) for unit in units):
                future.result()
        except BaseException as error:
            for unit in units:
                unit.stop()
            if not isinstance(error, KeyboardInterrupt):
                raise
            say("interrupted: what was measured is kept")


# Other tools that measure the same functions, in processes of their own.

Launches = Sequence[Callable[[], object]]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A variant, the tools to ask about it, and the seconds of GPU each has.

    ``wave`` says how the panel sampled it: the profiler does alike.
    """

    variant: Variant
    origin: str
    unit: str
    device: str
    seed: int
    seconds: float
    tools: tuple[str, ...]
    wave: Wave

    def reading(self, tool: str, **said: Any) -> Reading:
        """Return what a tool said of it."""
        return Reading(variant=self.variant.id, unit=self.unit, tool=tool, **said)


def _triton(order: Order, launches: Launches) -> float:
    """Return triton.testing.do_bench's median: back to back, the L2 flushed before each launch."""
    from triton.testing import do_bench

    rep_ms = 1e3 * order.seconds
    return 1e3 * float(do_bench(launches[0], rep=rep_ms, return_mode="median"))


def _torch_timer(order: Order, launches: Launches) -> float:
    """Return torch.utils.benchmark's median: host time of many launches and one wait."""
    from torch.utils.benchmark import Timer

    timer = Timer("launch()", globals={"launch": launches[0]})
    return 1e6 * float(timer.blocked_autorange(min_run_time=order.seconds).median)


def _nvbench(order: Order, launches: Launches) -> float:
    """Return nvbench's cold measurement: its median where it has one, else its mean."""
    import torch

    bench = importlib.import_module("cuda.bench")
    results = importlib.import_module("cuda.bench.results")

    def body(state: Any) -> None:
        def once(launch: Any) -> None:
            stream = torch.cuda.ExternalStream(launch.get_stream().addressof())
            with torch.cuda.stream(stream):
                launches[0]()

        state.exec(once, batched=False)

    bench.register(body).set_timeout(order.seconds).set_min_samples(FEWEST_ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nvbench.json")
        bench.run_all_benchmarks(["prove", "--json", str(file), "--quiet"])
        (found,) = results.BenchmarkResult.from_json(file).values()
    summaries = found[0].summaries
    median, mean = "nv/cold/time/gpu/median", "nv/cold/time/gpu/mean"
    return 1e6 * float(summaries[median if median in summaries else mean].value)


def _cupti(order: Order, launches: Launches, device: Device) -> float:
    """Return the median over samples of CUPTI's kernel durations per launch.

    Paced as the panel paces, and as many launches in a row: the first after a pause takes longer.
    """
    import torch

    wave = order.wave
    sample_us = wave.launches * statistics.fmean(wave.processes[0].time_us)
    spin = int(1980 * max(100.0, wave.pace * sample_us))

    def issue() -> None:
        for _ in range(PROFILED):
            torch.cuda._sleep(spin)  # noqa: SLF001 - as torch's own benchmarks do
            for index in range(wave.launches):
                launches[index % len(launches)]()

    kernels = [each for each in device.traced(issue) if "spin" not in each.name]
    samples = np.reshape([each.duration_us for each in kernels], (PROFILED, -1))
    return float(np.median(samples.sum(axis=1))) / wave.launches


def answers(given: msgspec.Raw) -> list[Reading]:
    """Return what each tool of an ``Order`` says, asked in random order; or why it failed."""
    order = read(given, Order)
    variant = order.variant
    device = open_device(order.device, seed=order.seed)
    case = load_pack(variant.pack, order.origin).cases[variant.case.name]
    session = Session(device, case, variant.axes, Settings(), order.seed)
    launches = session.launches(order.wave.sets)
    launches[0]()
    device.synchronize()
    tools: dict[str, Callable[[Order, Launches], float]] = {
        "do_bench": _triton,
        "torch.utils.benchmark": _torch_timer,
        "nvbench": _nvbench,
        CUPTI: partial(_cupti, device=device),
    }
    found = []
    for tool in random.Random(order.seed).sample(order.tools, len(order.tools)):  # noqa: S311
        started = time.monotonic()
        try:
            said: dict[str, Any] = {"time_us": tools[tool](order, launches)}
        except Exception as error:  # noqa: BLE001 - whatever a tool has against this machine
            first = str(error).partition("\n")[0]
            said = {"reason": f"{type(error).__name__}: {first}"}
        found.append(order.reading(tool, seconds=round(time.monotonic() - started, 4), **said))
    return found


def ask(slot: Slot, order: Order) -> list[Reading]:
    """Return what each tool says in a process that the slot forks for them, or why none does."""
    worker = slot.fork()
    try:
        asked = (f"{__name__}:{answers.__name__}", order)
        found = worker.do("call", ANSWER_LIMIT_S, asked)
        return list(read(found, list[Reading]))
    except EndedError as ended:
        return [order.reading(tool, reason=ended.reason) for tool in order.tools]
    finally:
        worker.close(0.0)
