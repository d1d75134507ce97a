"""Collects measurements for a proof on every unit at hand, and what other tools say there.

The raw data are a JSON line for each thing measured, appended as it is measured.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import random
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import StoreError, UsageError, in_a_line
from perfsuite.devices.protocol import Device, automatic, open_device
from perfsuite.engine.measure import Session
from perfsuite.judge.noise import entries_of
from perfsuite.judge.rule import Looks, looks_of, needs_pairs
from perfsuite.judge.verdict import judge
from perfsuite.packs.load import load_pack
from perfsuite.packs.select import missing_need
from perfsuite.prove import planted
from perfsuite.run.expected import beside
from perfsuite.stats import grouped
from perfsuite.store.files import encode, refusing, round_digits, unpacked
from perfsuite.store.git import commit_of
from perfsuite.store.sku import sku_of
from perfsuite.workers.messages import read
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Code, EndedError, Slot, load_catalogue
from perfsuite.workers.units import Panels

# What takes samples; the model has how many.
INSTRUMENT = ("devices/*.[pc]*", "engine/*.py", "workers/*.py", "model.py", "prove/planted.*")
CHANGE = "change"
# What is no share of work.
STRUCTURAL = "structural"
# What is kept of a process besides its blocks.
KEPT = ("slot", "seed", "launches", "backend", "pace", "sets", "phases_s")
# The change that tools are compared at: the one nearest to this.
COMPARED = 0.01
UNCHANGED = model.Revision("", "the unchanged code")
NO_RAW = "name a file that perfsuite prove wrote"


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured where; the first line of a file. ``code`` is a digest of what ran."""

    schema: Literal["perfsuite.proof/2"] = "perfsuite.proof/2"
    started: str
    commit: str
    code: str = ""
    sku: model.Sku
    facts: model.DeviceFacts
    settings: model.Settings
    variants: tuple[model.Variant, ...]
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version of the code, as far as it is known."""
        return self.code or self.commit


class Wave(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The processes of a variant that one turn of the panel measured, ``reason`` if it failed.

    Those ``beside`` are of the unchanged code, side A of pairs: alive together, in turns. Older
    nights have ``fresh`` ones, each from a server of its own, which are left out.
    """

    variant: str
    unit: str
    fresh: bool = False
    wall_s: float = 0.0
    processes: tuple[model.Evidence, ...] = ()
    beside: tuple[model.Evidence, ...] = ()
    reason: str = ""

    @property
    def busy_s(self) -> float:
        """A process's seconds of settling and sampling."""
        phases = [each.phases_s for each in self.processes]
        return fmean(each.get("settle", 0.0) + each.get("measure", 0.0) for each in phases)

    def with_more(self, other: Wave) -> Wave:
        """Return the wave and more pairs of its variant."""
        if self.reason or other.reason:
            return self if self.reason else other
        return replace(
            self,
            wall_s=self.wall_s + other.wall_s,
            processes=self.processes + other.processes,
            beside=self.beside + other.beside,
        )


class Reading(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What another tool said of a variant in a process of its own: microseconds per launch."""

    variant: str
    unit: str
    tool: str
    time_us: float | None = None
    seconds: float = 0.0
    reason: str = ""


Line = Header | Wave | Reading
KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in (Header, Wave, Reading)}


class Night(Struct, frozen=True, kw_only=True):
    """What one file holds."""

    name: str
    header: Header
    waves: tuple[Wave, ...] = ()
    readings: tuple[Reading, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """The cards that were measured."""
        return tuple(dict.fromkeys(wave.unit for wave in self.waves))


class Raw(Struct, frozen=True):
    """All nights of one version of the code on one product, in their order."""

    nights: tuple[Night, ...]

    @property
    def header(self) -> Header:
        """The newest night's."""
        return self.nights[-1].header

    @property
    def waves(self) -> list[Wave]:
        """The waves of all nights."""
        return [wave for night in self.nights for wave in night.waves]

    @property
    def readings(self) -> list[Reading]:
        """What other tools said in all nights."""
        return [reading for night in self.nights for reading in night.readings]

    @property
    def variants(self) -> dict[str, model.Variant]:
        """The variants of all nights by their ids."""
        return {each.id: each for night in self.nights for each in night.header.variants}

    @property
    def units(self) -> tuple[str, ...]:
        """The cards of all nights."""
        return tuple(dict.fromkeys(unit for night in self.nights for unit in night.units))


def code_of() -> str:
    """Return a digest of the code that measures: what is measured by another is not pooled.

    Comments are none of it, nor is what judges and shows: that is today's for all nights.
    """
    digest, home = hashlib.sha256(), Path(__file__).parents[1]
    for file in sorted(each for part in INSTRUMENT for each in home.glob(part)):
        text = file.read_text(encoding="utf-8")
        digest.update((ast.unparse(ast.parse(text)) if file.suffix == ".py" else text).encode())
    return digest.hexdigest()[:12]


def append(file: FileIO, line: Line) -> None:
    """Add a line, which is on disk before the next thing is measured; from any thread."""
    file.write(encode((type(line).__name__, line)) + b"\n")


def read_raw(paths: Iterable[Path]) -> list[Raw]:
    """Return what files hold, those of one code and product together; the newest are last.

    Of a folder all its raw files. A last line without its end is what an interruption left. What
    is named twice is refused: its processes would be compared with themselves.
    """
    named = (sorted(each.glob("*.jsonl*")) if each.is_dir() else [each] for each in paths)
    files = [*chain.from_iterable(named)]
    nights = sorted(map(_night, files), key=lambda night: night.header.started)
    headers = [night.header for night in nights]
    if any(header in headers[:place] for place, header in enumerate(headers)):
        raise StoreError(
            "the same data is named twice",
            where=", ".join(map(str, files)),
            remedy="name each raw file once, compressed or not",
        )
    alike = grouped(nights, lambda night: (night.header.version, night.header.sku.slug))
    found = [Raw(tuple(group)) for group in alike.values()]
    return sorted(found, key=lambda raw: raw.header.started)


def _night(path: Path) -> Night:
    header, *lines = _lines(path)
    if not isinstance(header, Header) or any(isinstance(line, Header) for line in lines):
        raise StoreError("is no raw data of one night", where=str(path), remedy=NO_RAW)
    return Night(
        name=path.name.partition(".")[0],
        header=header,
        waves=tuple(each for each in lines if isinstance(each, Wave) and not each.fresh),
        readings=tuple(each for each in lines if isinstance(each, Reading)),
    )


def _lines(path: Path) -> Iterator[Line]:
    with refusing("cannot be read", path, remedy=NO_RAW):
        rows = unpacked(path).split(b"\n")[:-1]
    if not rows or not rows[0].startswith(b'["Header"'):
        raise StoreError("is no raw data of a proof", where=str(path), remedy=NO_RAW)
    for number, row in enumerate(rows, start=1):
        where = f"{path}:{number}"
        try:
            name, body = msgspec.json.decode(row, type=tuple[str, msgspec.Raw])
            if name not in KINDS:
                raise StoreError(f"has a line of unknown kind {name!r}", where=where)
            yield msgspec.json.decode(body, type=KINDS[name])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"has a damaged line: {error}", where=where) from error


def wave_of(result: model.Result, unit: str, *, of_a: model.Result | None = None) -> Wave:
    """Return what is kept of a result, and of side A's beside it."""
    wave = Wave(variant=result.variant, unit=unit, wall_s=result.wall_s)
    for each in (of_a or result, result):
        if each.status is not model.Status.OK or not each.evidence:
            return replace(wave, reason=f"{each.status.value}: {each.reason}")
    return replace(
        wave,
        processes=tuple(_kept(each, unit) for each in result.evidence),
        beside=tuple(_kept(each, unit) for each in (of_a.evidence if of_a else ())),
    )


def _kept(process: model.Evidence, unit: str) -> model.Evidence:
    """Return a process by the medians of its blocks; what the host times is kept whole."""
    is_whole, device_us = process.backend == "host", model.DEVICE_TIME.name
    blocks = (
        model.Block(
            time_us=tuple(map(round_digits, each.time_us)) if is_whole else _median(each.time_us),
            cycles=_median(each.cycles),
            metrics={k: _median(v) for k, v in each.metrics.items() if k == device_us},
        )
        for each in process.blocks
    )
    known = {name: getattr(process, name) for name in KEPT}
    return model.Evidence(unit=unit, blocks=tuple(blocks), **known)


def _median(values: Sequence[float]) -> tuple[float, ...]:
    return (round_digits(median(values)),) if values else ()


def result_of(
    variant: model.Variant, wave: Wave, side: model.Side = model.Side.B, most: int | None = None
) -> model.Result:
    """Return a recorded wave as the result of a screen, or the first so many of its processes."""
    return model.Result(
        variant=variant.id,
        status=model.Status.OK,
        evidence=(wave.processes if side is model.Side.B else wave.beside)[:most],
        case_version=variant.case.version,
        side=side,
    )


def run_of(header: Header, *variants: model.VariantRun) -> model.Run:
    """Return variants as a run of the proof's device has them."""
    return model.Run(
        id="proof",
        started="",
        command="",
        sku=header.sku,
        facts=header.facts,
        settings=header.settings,
        variants=variants,
    )


def entry_of(header: Header, variant: model.Variant, waves: Sequence[Wave]) -> model.BaselineEntry:
    """Return waves as the product would store them as a baseline."""
    results = [result_of(variant, wave) for wave in waves]
    whole = replace(results[0], evidence=tuple(e for each in results for e in each.evidence))
    return entries_of(run_of(header, model.VariantRun(variant=variant, results=(whole,))))[
        variant.id
    ]


def verdict_of_pairs(header: Header, variant: model.Variant, wave: Wave) -> model.Verdict | None:
    """Return what pairs come to, of which the product takes more until it is plain."""
    step, found = looks_of(header.settings).step, None
    for count in range(step, len(wave.beside) + 1, step):
        sides = tuple(result_of(variant, wave, side, count) for side in model.Side)
        run = run_of(header, model.VariantRun(variant=variant, results=sides))
        found = next(iter(judge(beside(replace(run, against=UNCHANGED)))), None)
        if found is None or not needs_pairs(found):
            break
    return found


class Ladder(NamedTuple):
    """Variants of a case that differ in ``change`` only, by it; that of 0 is the base."""

    name: str
    variants: dict[float, model.Variant]

    @property
    def base(self) -> model.Variant:
        """The variant to which nothing was added."""
        return self.variants[0.0]

    @property
    def compared(self) -> model.Variant:
        """The variant that tools are compared at."""
        changes = [change for change in self.variants if change]
        return self.variants[min(changes, key=lambda each: abs(each - COMPARED))]

    @property
    def is_host_timed(self) -> bool:
        """Say whether the host takes its times."""
        return self.base.case.regime is model.Regime.END_TO_END


def ladders_of(variants: Iterable[model.Variant]) -> list[Ladder]:
    """Group variants; those without a base or without a change are left out."""
    groups: dict[str, dict[float, model.Variant]] = defaultdict(dict)
    for variant in variants:
        if CHANGE in variant.axes and STRUCTURAL not in variant.case.tags:
            others = [model.format_value(v) for k, v in variant.axes.items() if k != CHANGE]
            name = " ".join((variant.case.name, *others))
            groups[name][float(variant.axes[CHANGE])] = variant
    ladders = [Ladder(name, dict(sorted(group.items()))) for name, group in groups.items()]
    return [each for each in ladders if 0.0 in each.variants and len(each.variants) > 1]


# Measuring them.

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
PACK = model.Pack(name="planted", origin=f"module:{planted.__name__}")
SIDES = {
    model.Side.A: Code(origins={PACK.name: f"{PACK.origin}:unchanged"}),
    model.Side.B: Code(origins={PACK.name: PACK.origin}),
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
            if self.facts.is_host or model.built_in(self.facts.device).unit:
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

        def take(result: model.Result) -> None:
            waves.append(wave_of(result, self.facts.unit))
            append(self.file, waves[-1])

        self._begin("triage", chosen)
        processes = self.panel.setup.settings.processes
        self.panel.measure(chosen, model.Stage.SCREEN, processes=processes, on_result=take)
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
        self.panel.compared = {variant.id: variant for variant in chosen}
        looks, left, taken = looks_of(self.panel.setup.settings), chosen, 0
        waves, of_a = dict[str, Wave](), dict[str, model.Result]()

        def take(result: model.Result) -> None:  # that of side A comes first
            if result.side is model.Side.A:
                of_a[result.variant] = result
                return
            name = result.variant
            wave = wave_of(result, self.facts.unit, of_a=of_a.pop(name, None))
            waves[name] = waves[name].with_more(wave) if name in waves else wave

        while left and not self.stopped.is_set():
            step = looks.step if taken else looks.call
            self.panel.begun = dict.fromkeys(self.panel.compared, 2 * taken)
            self.panel.measure(left, model.Stage.SCREEN, processes=step, on_result=take)
            taken += step
            found = [each for each in left if each.id in waves]
            left = [each for each in found if self._asks_more(each, waves[each.id], looks)]
            for each in found:
                if each not in left:
                    append(self.file, waves[each.id])
        self.panel.compared, self.panel.begun = {}, {}

    def _asks_more(self, variant: model.Variant, wave: Wave, looks: Looks) -> bool:
        """Say whether more pairs are needed, and allowed."""
        found = verdict_of_pairs(self.header, variant, wave)
        is_open = bool(found and needs_pairs(found))
        return is_open and len(wave.beside) + looks.step <= looks.most

    def _change(self, ladder: Ladder, turn: int) -> model.Variant:
        """Return one of a ladder's changes; each unit begins with another."""
        _, *changes = ladder.variants.values()
        return changes[(turn + self.place) % len(changes)]

    def _begin(self, act: str, chosen: list[model.Variant]) -> None:
        """Mix what is measured, in processes of its own, sampled as the unchanged code is."""
        turn, setup = self.turns[act], self.panel.setup
        random.Random(f"{act} {turn}").shuffle(chosen)  # noqa: S311 - what runs before what
        seed = 1 + 2 * turn + (act == "pairs")
        self.panel.setup = dataclasses.replace(setup, settings=replace(setup.settings, seed=seed))
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
                sets=wave.processes[0].sets,
            )
            for reading in ask(slot, order):
                append(self.file, reading)


def collect(path: Path, *, root: Path, device: str, budget_s: float, say: Say) -> None:
    """Measure until the time is over or Ctrl-C; what was measured is in the file either way."""
    deadline = time.monotonic() + budget_s
    has_units = bool(model.built_in(automatic()[0] if device == "auto" else device).unit)
    tier = model.Tier.NIGHTLY if has_units else model.Tier.SMOKE
    (pack,) = load_catalogue([PACK], tier=tier)
    if pack.error:
        raise UsageError(f"the planted pack cannot be listed: {pack.error}")
    with ExitStack() as stack:
        panels = stack.enter_context(Panels()).of(device, [pack], model.Settings(), {})
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
            settings=model.Settings(),
            variants=tuple(variants),
        )
        remedy = "name a file that does not exist yet, in a folder that can be written"
        with refusing("cannot create the raw data", path, remedy=remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("xb", buffering=0))
        append(file, header)
        count = len(ladders_of(variants))
        say(f"{len(panels)} x {facts.name}: {count} ladders, {len(variants)} variants")
        for panel in panels:
            panel.compare(SIDES)
            # As an entry has one for all cards: numbers of another sampling are not compared.
            panel.samplings = panels[0].samplings
        units = [Unit(panel, header, file, place) for place, panel in enumerate(panels)]
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


class Order(Struct, frozen=True, kw_only=True):
    """A variant, the tools to ask about it, and the seconds of GPU each has."""

    variant: model.Variant
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
    session = Session(device, case, variant.axes, model.Settings(), order.seed)
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
            said = {"reason": in_a_line(error)}
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
