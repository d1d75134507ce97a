"""Collects measurements for a proof on every unit at hand, and what other tools say there."""

from __future__ import annotations

import importlib
import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import structs

from perfsuite.boundary import UsageError
from perfsuite.devices.protocol import Device, automatic, open_device
from perfsuite.engine.measure import Session
from perfsuite.judge.rule import Looks, looks_of, needs_pairs
from perfsuite.model import Pack, Result, Settings, Side, Stage, Tier, Variant, built_in
from perfsuite.packs.load import load_pack
from perfsuite.packs.select import missing_need
from perfsuite.prove import planted
from perfsuite.prove.raw import (
    CHANGE,
    Header,
    Ladder,
    Reading,
    Wave,
    append,
    code_of,
    ladders_of,
    verdict_of_pairs,
    wave_of,
)
from perfsuite.store.files import refusing
from perfsuite.store.git import commit_of
from perfsuite.store.sku import sku_of
from perfsuite.workers.messages import read
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Code, EndedError, Slot, load_catalogue
from perfsuite.workers.units import Panels

# How a unit's time is shared out: a tenth of it goes to other tools.
SHARES = {"triage": 0.45, "pairs": 0.45, "tools": 0.1}
# One wave of so many is of a change, the third. The others are of unchanged code: an error of one
# in a thousand takes most trials.
ROUND, CHANGED = 9, 2
RIVALS = ("do_bench", "torch.utils.benchmark", "pytest-benchmark", "nvbench")
FEWEST_ROUNDS = 5
# nvbench starts slowly; a tool that hangs is given up after this.
ANSWER_LIMIT_S = 120.0

# The planted pack, and the same without a change: what pairs have for side A.
PACK = Pack(name="planted", origin=f"module:{planted.__name__}")
SIDES = {
    Side.A: Code(origins={PACK.name: f"{PACK.origin}:unchanged"}),
    Side.B: Code(origins={PACK.name: PACK.origin}),
}

Say = Callable[[str], None]


class Unit:
    """One unit: its panel, it and the other tools measure there in turn.

    ``place`` is which of the units it is: each starts with other changes.
    """

    def __init__(self, panel: Panel, header: Header, file: FileIO, place: int) -> None:
        self.panel, self.facts, self.header = panel, panel.facts, header
        self.ladders = ladders_of(header.variants)
        self.file, self.place = file, place
        self.turns = dict.fromkeys(SHARES, 0)
        self.waves: dict[str, Wave] = {}
        self.stopped = threading.Event()

    def stop(self) -> None:
        """Make ``run`` return soon."""
        self.stopped.set()
        self.panel.stop()

    def run(self, deadline: float, say: Say) -> None:
        """Take turns by their shares of the time until none fits before the deadline."""
        with closing(Slot(0, self.panel.setup)) as slot:
            acts = {"triage": self.triage, "pairs": self.pairs}
            if self.facts.is_host or built_in(self.facts.device).unit:
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

    def triage(self) -> None:
        """Measure each ladder once, as a screen does, at its base or at a change.

        The base comes twice before a change, so that a short session has whole comparisons.
        """
        round_, step = divmod(self.turns["triage"], ROUND)
        chosen = [
            self._change(ladder, index + round_) if step == CHANGED else ladder.base
            for index, ladder in enumerate(self.ladders)
        ]
        waves: list[Wave] = []

        def take(result: Result) -> None:
            waves.append(wave_of(result, self.facts.unit))
            append(self.file, waves[-1])

        self._begin("triage", chosen)
        processes = self.panel.setup.settings.processes
        self.panel.measure(chosen, Stage.SCREEN, processes=processes, on_result=take)
        self.waves |= {wave.variant: wave for wave in waves if wave.processes}

    def pairs(self) -> None:
        """Take pairs of each ladder once, at its base or at a change, until the answer is plain.

        A call needs some, so that as many are taken of all.
        """
        turn = self.turns["pairs"]
        chosen = [
            self._change(ladder, index + turn) if (index + turn) % 3 else ladder.base
            for index, ladder in enumerate(self.ladders)
        ]
        self._begin("pairs", chosen)
        self.panel.compared = frozenset(variant.id for variant in chosen)
        looks, left, taken = looks_of(self.panel.setup.settings), chosen, 0
        waves, of_a = dict[str, Wave](), dict[str, Result]()

        def take(result: Result) -> None:  # that of side A comes first
            if result.side is Side.A:
                of_a[result.variant] = result
                return
            name = result.variant
            wave = wave_of(result, self.facts.unit, of_a=of_a.pop(name, None))
            waves[name] = waves[name].with_more(wave) if name in waves else wave

        while left and not self.stopped.is_set():
            step = looks.step if taken else looks.call
            self.panel.begun = dict.fromkeys(self.panel.compared, 2 * taken)
            self.panel.measure(left, Stage.SCREEN, processes=step, on_result=take)
            taken += step
            found = [each for each in left if each.id in waves]
            left = [each for each in found if self._asks_more(each, waves[each.id], looks)]
            for each in found:
                if each not in left:
                    append(self.file, waves[each.id])
        self.panel.compared, self.panel.begun = frozenset(), {}

    def _asks_more(self, variant: Variant, wave: Wave, looks: Looks) -> bool:
        """Say whether more pairs are needed, and allowed."""
        found = verdict_of_pairs(self.header, variant, wave)
        is_open = bool(found and needs_pairs(found))
        return is_open and len(wave.beside) + looks.step <= looks.most

    def _change(self, ladder: Ladder, turn: int) -> Variant:
        """Return one of a ladder's changes; each unit begins with another."""
        _, *changes = ladder.variants.values()
        return changes[(turn + self.place) % len(changes)]

    def _begin(self, act: str, chosen: list[Variant]) -> None:
        """Mix what is measured, in processes of its own, sampled as the unchanged code is."""
        turn, setup = self.turns[act], self.panel.setup
        random.Random(f"{act} {turn}").shuffle(chosen)  # noqa: S311 - what runs before what
        seed = 1 + 2 * turn + (act == "pairs")
        self.panel.setup = replace(setup, settings=structs.replace(setup.settings, seed=seed))
        known = self.panel.samplings
        for ladder in self.ladders:
            if sampling := known.get(ladder.base.id):
                known |= dict.fromkeys((each.id for each in ladder.variants.values()), sampling)

    def ask_tools(self, slot: Slot) -> None:
        """Ask the other tools about the base and a change of a ladder, the next turn of another."""
        turns, place = divmod(self.turns["tools"], len(self.ladders))
        ladder = self.ladders[place]
        wave = self.waves.get(ladder.base.id)
        if wave is None:
            return
        for variant in (ladder.base, ladder.compared)[:: -1 if turns % 2 else 1]:
            order = Order(
                variant=variant,
                unit=self.facts.unit,
                device=self.facts.device,
                seed=self.turns["tools"] + 10_000 * self.place,
                seconds=wave.busy_s,
                sets=wave.sets,
            )
            for reading in ask(slot, order):
                append(self.file, reading)


def collect(path: Path, *, root: Path, device: str, budget_s: float, say: Say) -> None:
    """Measure until the time is over or Ctrl-C; what was measured is in the file either way."""
    deadline = time.monotonic() + budget_s
    has_units = bool(built_in(automatic()[0] if device == "auto" else device).unit)
    tier = Tier.NIGHTLY if has_units else Tier.SMOKE
    (pack,) = load_catalogue([PACK], tier=tier)
    if pack.error:
        raise UsageError(f"the planted pack cannot be listed: {pack.error}")
    with ExitStack() as stack:
        panels = stack.enter_context(Panels()).of(device, [pack], Settings(), {})
        facts = panels[0].facts
        variants = [each for each in pack.variants if not missing_need(each, facts)]
        if has_units:
            variants = [each for each in variants if each.axes[CHANGE] != planted.COARSE_CHANGE]
        header = Header(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit_of(root)[0],
            code=code_of(),
            sku=sku_of(facts),
            facts=facts,
            settings=Settings(),
            variants=tuple(variants),
        )
        remedy = "name a file that does not exist yet, in a folder that can be written"
        with refusing("cannot create the raw data", path, remedy=remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("xb", buffering=0))
        append(file, header)
        count = len(ladders_of(variants))
        say(f"{len(panels)} x {facts.name}: {count} ladders, {len(variants)} variants")
        units = []
        for place, panel in enumerate(panels):
            panel.compare(SIDES)
            units.append(Unit(panel, header, file, place))
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
    """A variant, the tools to ask about it, and the seconds of GPU each has."""

    variant: Variant
    unit: str
    device: str
    seed: int
    seconds: float
    sets: int
    tools: tuple[str, ...] = RIVALS

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


def _pytest_benchmark(order: Order, launches: Launches, device: Device) -> float:
    """Return pytest-benchmark's median of a launch that is awaited."""
    from pytest_benchmark.fixture import BenchmarkFixture

    def silent(*_: Any, **__: Any) -> None: ...

    def awaited() -> None:
        launches[0]()
        device.synchronize()

    off = ("cprofile", "cprofile_loops", "cprofile_dump", "precision", "confidence", "warmup")
    fixture = BenchmarkFixture(
        node=SimpleNamespace(name="launch", nodeid="launch"),
        timer=SimpleNamespace(target=time.perf_counter),
        disable_gc=False,
        min_rounds=FEWEST_ROUNDS,
        min_time=5e-6,
        max_time=order.seconds,
        warmup_iterations=0,
        calibration_precision=10,
        add_stats=silent,
        logger=SimpleNamespace(debug=silent, info=silent),
        warner=silent,
        disabled=False,
        **dict.fromkeys(off),
    )
    fixture(awaited)
    return 1e6 * float(fixture.stats.stats.median)


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


def answers(given: msgspec.Raw) -> list[Reading]:
    """Return what each tool of an ``Order`` says, asked in random order; or why it failed."""
    order = read(given, Order)
    variant = order.variant
    device = open_device(order.device, seed=order.seed)
    case = load_pack(variant.pack, PACK.origin).cases[variant.case.name]
    session = Session(device, case, variant.axes, Settings(), order.seed)
    launches = session.launches(order.sets)
    launches[0]()
    device.synchronize()
    tools: dict[str, Callable[[Order, Launches], float]] = {
        "do_bench": _triton,
        "torch.utils.benchmark": _torch_timer,
        "pytest-benchmark": partial(_pytest_benchmark, device=device),
        "nvbench": _nvbench,
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
