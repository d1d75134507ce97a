"""Whole runs on the fake device: stages, resumption, skips, several panels."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from msgspec import structs
from report_data import run_of

from perfsuite import model
from perfsuite.boundary import DeviceError, StoreError, UsageError
from perfsuite.devices.peaks import PEAKS, Peaks
from perfsuite.packs.find import discover
from perfsuite.run.accept import accept
from perfsuite.run.config import ALWAYS, Config
from perfsuite.run.run import Outcome, execute, refusal
from perfsuite.store.runs import RunFile, list_runs
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Setup, load_catalogue
from perfsuite.workers.units import Panels, count_on, measure_on

PACK = """
    import json
    import pathlib
    import perfsuite

    SPEEDS = pathlib.Path(__file__).with_name("speeds.json")

    @perfsuite.case(
        smoke={"us": [100, 200]}, source="made up", needs=[perfsuite.cuda().when(us=300)]
    )
    def double(ctx, us):
        '''Double numbers and take as long as the axis says, times what slow_down() wrote.'''
        factor = json.loads(SPEEDS.read_text()).get(str(us), 1) if SPEEDS.exists() else 1

        def fn(x):
            ctx.spend(us * factor)
            return [2 * value for value in x]

        return perfsuite.Workload(
            fn=fn,
            make_inputs=lambda rng: (rng.randn(16),),
            reference=lambda x: [value + value for value in x],
            wrong=lambda x: list(x),
        )

    @perfsuite.hookimpl
    def perf_cases():
        return [double]
"""
QUICK = model.Settings(samples=5, sample_us=50.0)


def failing_by(*words: str, **limits: float) -> model.Settings:
    return structs.replace(QUICK, policy=model.Policy(fail_on=words, **limits))


class Log:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[str] = []

    def planned(self, total: int, facts: model.DeviceFacts, estimate_s: float) -> None:
        self.notes.append(f"{total} on {facts.name} in {estimate_s > 0}")

    def phase(self, variant: str, phase: str) -> None:
        pass

    def finished(self, result: model.Result, done: int, total: int, left_s: float) -> None:
        self.done.append(f"{done}/{total} {result.variant}")

    def note(self, text: str) -> None:
        self.notes.append(text)


@cache
def listed(file: Path, text: str) -> tuple[model.Pack, ...]:
    """Return the pack of a text that the file has had; nothing is listed twice."""
    del text
    return load_catalogue(discover(None, allow=[str(file)]), tier=model.Tier.FULL)


def request(folder: Path, text: str = PACK, **fields: Any) -> Config:
    """Return a request for all variants of a pack written to ``folder``."""
    file, text = folder / "acme.py", textwrap.dedent(text)
    file.write_text(text, encoding="utf-8")
    # A file of the same second and size would count as the one that was compiled.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    packs = listed(file, text)
    given: dict[str, Any] = {"device": "fake", "settings": QUICK, "root": folder, **fields}
    return Config(
        variants=tuple(variant for pack in packs for variant in pack.variants),
        packs=packs,
        baselines=(given["root"] / "baselines",),
        **given,
    )


def slow_down(folder: Path, *us: int, by: float) -> None:
    """Let variants of the pack in ``folder`` take longer from now on."""
    (folder / "speeds.json").write_text(json.dumps(dict.fromkeys(us, by)), encoding="utf-8")


class Place(NamedTuple):
    """Where the runs of a module find their pack, and servers that they share."""

    folder: Path
    panels: Panels
    root: Path

    def request(self, text: str = PACK, **fields: Any) -> Config:
        return request(self.folder, text, root=self.root, **fields)

    def execute(self, asked: Config | None = None, log: Log | None = None) -> Outcome:
        return execute(asked or self.request(), log or Log(), self.panels)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("pack")
    with Panels() as panels:
        yield Place(folder, panels, folder)


@pytest.fixture
def place(shared: Place, tmp_path: Path) -> Place:
    (shared.folder / "speeds.json").unlink(missing_ok=True)
    return shared._replace(root=tmp_path)


def words(outcome: Outcome) -> list[str]:
    return [verdict.word.value for verdict in outcome.run.verdicts]


def test_a_run_knows_the_ceilings_that_were_accepted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = "work=lambda us: perfsuite.Work(flops=1e6), ceilings={'fp32': lambda us: us < 200}, "
    asked = place.request(PACK.replace('source="made up", ', f'source="made up", {declared}'))
    monkeypatch.setitem(PEAKS, "fake", Peaks({}, {}))
    first = place.execute(asked)
    assert first.basis.reached == Peaks({}, {})
    accept(first.run, place.root / "baselines", reason="r", by="b")
    peaks = place.execute(asked).basis.reached
    assert peaks is not None
    assert peaks.operations["fp32"].value == pytest.approx(1e10, rel=0.05)


# It takes 445 us, a hundredth less than what makes another sampling, times what is written.
# 45 sets of inputs are cold. Of 445 us they fill a sample; of more one set is flushed instead, and
# what has its inputs to itself for long then takes two thirds longer.
FLIPPING = PACK.replace("[100, 200]", "[445]")
FLIPPING = FLIPPING.replace(
    "\n        def fn(x):\n            ctx.spend(us * factor)\n",
    """
        cache = json.loads(SPEEDS.read_text()).get("cache", 1) if SPEEDS.exists() else 1
        ctx.owner.cache_bytes = 15 * 128 * cache
        last = [None, 0]

        def fn(x):
            last[:] = [x, last[1] + 1 if last[0] is x else 1]
            ctx.spend(0.99 * us * factor * (1.66 if last[1] > 12 else 1))
""",
)


@pytest.mark.parametrize(("before", "now", "sampling"), [(1, 1.02, (45, 45)), (1.02, 1, (1, 1))])
def test_a_change_that_crosses_a_limit_of_sampling_is_judged_as_it_is(
    place: Place, before: float, now: float, sampling: tuple[int, int]
) -> None:
    ways = []
    for factor in (before, now):
        slow_down(place.folder, 445, by=factor)
        run = place.execute(place.request(FLIPPING)).run
        ways += [process.sampling for each in run.results for process in each.evidence]
    assert set(ways) == {model.Sampling(*sampling)}
    (found,) = run.verdicts
    assert found.word is (model.Word.SLOWER if now > before else model.Word.FASTER)
    assert (found.confirmation, found.fails) == ("fresh processes", now > before)
    assert [each.stage for each in run.results] == [model.Stage.SCREEN, model.Stage.CONFIRM]
    assert found.changes[0].theta == pytest.approx(now / before - 1, abs=0.003)


def test_a_damaged_baseline_leaves_no_run_behind(place: Place) -> None:
    (place.root / "baselines" / "fake").mkdir(parents=True)
    (place.root / "baselines" / "fake" / "acme.json").write_text("{")
    with pytest.raises(StoreError):
        place.execute()
    assert list_runs(place.root / ".perfsuite") == ()


WATCHED = PACK.replace("[100, 200]", "[100, 200, 400, 50]").replace(
    'source="made up", ', 'source="made up", regime="sustained", canary={"fake": {"us": 50}}, '
)


def watched(folder: Path, **fields: Any) -> Config:
    """Return a request for three variants of a pack whose fourth is a canary."""
    asked = request(folder, WATCHED, **fields)
    return replace(asked, variants=asked.variants[:3])


def canary_stages(outcome: Outcome) -> list[str]:
    (canary,) = outcome.run.canaries
    assert canary.id == "acme.double[us=50]"
    return sorted(one.stage.value for one in canary.results)


def test_an_interrupted_run_goes_on_where_it_stopped(place: Place) -> None:
    asked = watched(place.folder, root=place.root)
    whole = place.execute(asked)
    # Canaries are measured at both ends, and stored.
    assert canary_stages(whole) == ["canary-end", "canary-start"]
    assert len(whole.run.verdicts) == len(whole.run.asked) == 3
    # Cut the stored run back to its plan and first two results, as a kill would leave it.
    lines = whole.run_file.read_bytes().splitlines(keepends=True)
    results = [i for i, line in enumerate(lines) if b'"kind":"result"' in line]
    kept = re.sub(rb'"wall_s":[0-9.]+', b'"wall_s":100.0', lines[results[1]])
    whole.run_file.write_bytes(b"".join([*lines[: results[1]], kept]) + b'{"kind":"resu')
    log = Log()
    resumed = place.execute(replace(asked, resume=ALWAYS), log)
    assert resumed.run.id == whole.run.id
    assert len(log.done) == 2
    assert words(resumed) == ["new"] * 3
    assert canary_stages(resumed) == canary_stages(whole)
    before = {r.variant: r for r in whole.run.results if r.stage is not model.Stage.CANARY_END}
    again = [r for r in resumed.run.results if r.wall_s == 100.0]
    assert again == [structs.replace(before[again[0].variant], wall_s=100.0)]
    assert 100.0 < resumed.run.wall_s < 200.0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"facts": structs.replace(run_of().facts, unit="b" * 12)}, "on another unit of"),
        ({"facts": structs.replace(run_of().facts, environment={"driver": "5"})}, "driver was 5"),
        ({"facts": structs.replace(run_of().facts, state={"ecc": "off"})}, "ecc was off and is on"),
        ({"against": model.Revision(commit="a" * 40, name="main")}, "was compared with revision"),
        ({"variants": run_of().variants[:1]}, "was not asked for "),
    ],
)
def test_another_run_is_not_resumed(changed: dict[str, Any], said: str) -> None:
    what, remedy = refusal(run_of(), structs.replace(run_of(), **changed)) or ("", "")
    assert said in what
    assert bool(remedy) is bool(said)


def test_a_run_of_other_code_is_not_resumed(place: Place) -> None:
    asked = place.request()
    run = place.execute(asked).run
    part = structs.replace(run, id="29990101-000000-aaaa", commit="abc-dirty")
    RunFile.create(asked.folder, part).close()
    edited = replace(place.request(PACK + "# edited\n"), resume=ALWAYS)
    told = rf"commit abc-dirty \(code {run.code}\), and now it is commit .* \(code (?!{run.code})"
    with pytest.raises(UsageError, match=told):
        place.execute(edited)
    # It fails by what was asked for when it was started, and says so.
    other = structs.replace(failing_by("new", gate=0.07), processes=3)
    again = place.execute(replace(place.request(settings=other), resume=ALWAYS)).run
    assert (again.id, any(each.fails for each in again.verdicts)) == (part.id, False)
    said = re.findall(r"as the run was started, (\S+) is ([\w -]+)", "\n".join(again.notes))
    as_started = {"--perf-fail-on": "over-budget", "--perf-processes": "2", "perf_gate": "not set"}
    assert dict(said) == as_started


class Stopped:
    """A panel that remembers that it was stopped."""

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


def test_a_failing_panel_stops_the_others_and_is_reported() -> None:
    panels: Any = [Stopped(), Stopped()]
    shares: list[Any] = []

    def measure(panel: Any, share: Any) -> None:
        shares.append(list(share))
        if panel is panels[1]:
            raise DeviceError("lost")

    variants: list[Any] = [SimpleNamespace(number=number, is_gang=False) for number in (1, 2, 3)]
    with pytest.raises(DeviceError, match="lost"):
        measure_on(panels, variants, measure)
    assert sorted([each.number for each in share] for share in shares) == [[1, 3], [2]]
    assert all(panel.is_stopped for panel in panels)


def test_what_is_only_counted_is_shared_out_over_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    shares: list[int] = []
    with Panel(Setup(device="fake", slots=3)) as panel:
        variants: list[Any] = [SimpleNamespace(is_gang=False) for _ in range(32)]
        count_on([panel], variants, lambda _panel, share: shares.append(len(share)))
        count_on([panel], variants[:8], lambda _panel, share: shares.append(len(share)))
    assert shares == [8, 8, 8, 8, 8]
