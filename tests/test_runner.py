"""Whole runs on the fake device: stages, resumption, skips, several panels."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from report_data import run_of
from store_data import stored

from perfsuite.boundary import DeviceError, StoreError, UsageError
from perfsuite.judge.peaks import PEAKS, Peaks
from perfsuite.model import DeviceFacts, Result, Revision, Settings, Stage, Status, Tier
from perfsuite.packs.find import discover
from perfsuite.run.accept import accept
from perfsuite.run.config import Config
from perfsuite.run.expected import source_of
from perfsuite.run.run import Outcome, execute, refusal
from perfsuite.store.runs import RunFile, list_runs, load_run
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Setup
from perfsuite.workers.units import count_on, measure_on

PACK = """
    import os
    import perfsuite

    @perfsuite.case(
        axes={"us": [100, 200]}, source="made up", needs=[perfsuite.cuda().when(us=300)]
    )
    def double(ctx, us):
        '''Double numbers and take as long as the axis says, times FACTOR.'''
        factor = float(os.environ.get("FACTOR_%d" % us, "1"))

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
QUICK = Settings(samples=5, sample_us=50.0)


class Log:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[str] = []

    def planned(self, total: int, facts: DeviceFacts, estimate_s: float) -> None:
        self.notes.append(f"{total} on {facts.name} in {estimate_s > 0}")

    def phase(self, variant: str, phase: str) -> None:
        pass

    def finished(self, result: Result, done: int, total: int) -> None:
        self.done.append(f"{done}/{total} {result.variant}")

    def note(self, text: str) -> None:
        self.notes.append(text)


def request(folder: Path, text: str = PACK, **fields: Any) -> Config:
    """Return a request for all variants of a pack written to ``folder``."""
    (folder / "acme.py").write_text(textwrap.dedent(text), encoding="utf-8")
    sources = discover(None, extra=[folder / "acme.py"], allow=["acme"])
    packs = load_catalogue(sources, tier=Tier.FULL)
    return Config(
        variants=tuple(variant for pack in packs for variant in pack.variants),
        claims=(),
        packs=packs,
        **{"device": "fake", "settings": QUICK, **fields},
        root=folder,
        baselines=(folder / "baselines",),
    )


def words(outcome: Outcome) -> list[str]:
    return [verdict.word.value for verdict in outcome.run.verdicts]


def test_a_run_knows_the_ceilings_that_were_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = "work=lambda us: perfsuite.Work(flops=1e6), ceilings={'fp32': lambda us: us < 200}, "
    text = PACK.replace('source="made up", ', f'source="made up", {declared}')
    monkeypatch.setitem(PEAKS, "fake", Peaks({}, {}))
    first = execute(request(tmp_path, text), Log())
    assert first.basis.reached == Peaks({}, {})
    accept(first.run, tmp_path / "baselines", reason="r", by="b")
    peaks = execute(request(tmp_path, text), Log()).basis.reached
    assert peaks is not None
    assert peaks.operations["fp32"].value == pytest.approx(1e10, rel=0.05)


def test_a_second_run_is_compared_and_a_change_confirmed_on_fresh_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(request(tmp_path), Log())
    monkeypatch.setenv("FACTOR_200", "1.03")
    outcome = execute(request(tmp_path), Log())
    assert words(outcome) == ["same", "slower"]
    slower = outcome.run.verdicts[1]
    assert (slower.confirmation, slower.fails) == ("fresh processes", True)
    assert slower.changes[0].theta == pytest.approx(0.03, abs=0.003)
    stages = [r.stage for r in outcome.run.results if r.variant == slower.variant]
    assert stages == [Stage.SCREEN, Stage.CONFIRM]
    assert source_of(outcome.run).startswith("runs up to ")


def test_a_later_run_samples_as_the_earlier_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = execute(request(tmp_path), Log()).run.results
    monkeypatch.setenv("FACTOR_200", "1.5")
    second = execute(request(tmp_path), Log()).run.results
    (sampling,) = {process.sampling for process in first[1].evidence}
    ours = [result for result in second if result.variant == first[1].variant]
    assert {process.sampling for result in ours for process in result.evidence} == {sampling}


def test_a_clock_that_was_set_back_hides_no_earlier_run(tmp_path: Path) -> None:
    first, later = execute(request(tmp_path), Log()), "20990101-000000-00000000"
    text = first.run_file.read_text("utf-8").replace(first.run.id, later)
    first.run_file.unlink()
    first.run_file.with_stem(later).write_text(text, "utf-8")
    for _ in range(2):
        outcome = execute(request(tmp_path), Log())
        assert outcome.basis.previous is not None
        assert outcome.basis.previous.id == later
        assert any("clock is behind its runs" in note for note in outcome.run.notes)
        assert outcome.run.id > later
        later = outcome.run.id


def test_a_damaged_baseline_leaves_no_run_behind(tmp_path: Path) -> None:
    (tmp_path / "baselines" / "fake").mkdir(parents=True)
    (tmp_path / "baselines" / "fake" / "acme.json").write_text("{")
    with pytest.raises(StoreError):
        execute(request(tmp_path), Log())
    assert list_runs(tmp_path / ".perfsuite") == ()


def test_an_unmet_need_skips_with_its_reason(tmp_path: Path) -> None:
    outcome = execute(request(tmp_path, PACK.replace("[100, 200]", "[100, 300]")), Log())
    skipped = next(r for r in outcome.run.results if r.status is Status.SKIPPED)
    assert skipped.reason.startswith("needs device cuda")
    assert words(outcome) == ["new"]


def test_check_only_measures_and_judges_nothing(tmp_path: Path) -> None:
    outcome = execute(request(tmp_path, settings=structs.replace(QUICK, check_only=True)), Log())
    assert [result.status for result in outcome.run.results] == [Status.OK] * 2
    assert outcome.run.verdicts == ()


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    asked = request(tmp_path)
    whole = execute(asked, Log())
    # Cut the stored run back to its plan and first result, as a kill would leave it.
    lines = whole.run_file.read_bytes().splitlines(keepends=True)
    results = [i for i, line in enumerate(lines) if b'"kind":"result"' in line]
    kept = re.sub(rb'"wall_s":[0-9.]+', b'"wall_s":100.0', lines[results[0]])
    whole.run_file.write_bytes(b"".join([*lines[: results[0]], kept]) + b'{"kind":"resu')
    log = Log()
    resumed = execute(replace(asked, resume=True), log)
    assert resumed.run.id == whole.run.id
    assert len(log.done) == 1
    assert words(resumed) == ["new", "new"]
    assert resumed.run.results[0] == structs.replace(whole.run.results[0], wall_s=100.0)
    assert 100.0 < resumed.run.wall_s < 200.0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"facts": structs.replace(run_of().facts, unit="b" * 12)}, "on another unit of"),
        ({"against": Revision(commit="a" * 40, name="main")}, "was compared with revision"),
        ({"code": "abc"}, "was measured with other code: "),
        ({"variants": run_of().variants[:1]}, "was not asked for "),
    ],
)
def test_another_run_is_not_resumed(changed: dict[str, Any], said: str) -> None:
    what, remedy = refusal(run_of(), structs.replace(run_of(), **changed)) or ("", "")
    assert said in what
    assert bool(remedy) is bool(said)


def test_a_run_of_other_code_is_not_resumed(tmp_path: Path) -> None:
    asked = request(tmp_path)
    run = execute(asked, Log()).run
    part = structs.replace(run, id="29990101-000000-aaaa", commit="abc-dirty")
    RunFile.create(asked.folder, part).close()
    (tmp_path / "acme.py").write_text(textwrap.dedent(PACK) + "# edited\n", encoding="utf-8")
    told = rf"commit abc-dirty \(code {run.code}\), and now it is commit .* \(code (?!{run.code})"
    with pytest.raises(UsageError, match=told):
        execute(replace(asked, resume=True), Log())
    (tmp_path / "acme.py").write_text(textwrap.dedent(PACK), encoding="utf-8")
    assert execute(replace(asked, resume=True), Log()).run.id == part.id


WATCHED = PACK.replace("[100, 200]", "[100, 200, 400, 50]").replace(
    'source="made up", ', 'source="made up", canary={"fake": {"us": 50}}, '
)


def watched(folder: Path, **fields: Any) -> Config:
    """Return a request for three variants of a pack whose fourth is a canary."""
    asked = request(folder, WATCHED, **fields)
    return replace(asked, variants=asked.variants[:3])


def stages(outcome: Outcome) -> list[tuple[str, str]]:
    return [(one.variant, one.stage.value) for run in outcome.run.canaries for one in run.results]


def test_canaries_are_measured_at_both_ends_and_stored(tmp_path: Path) -> None:
    outcome = execute(watched(tmp_path), Log())
    canary = "acme.double[us=50]"
    assert stages(outcome) == [(canary, "canary-start"), (canary, "canary-end")]
    assert len(outcome.run.verdicts) == len(outcome.run.asked) == 3
    assert load_run(outcome.run_file) == stored(outcome.run)
    ends = [result for result in outcome.run.results if result.stage.is_canary]
    assert [len(result.evidence) for result in ends] == [2, 2]


def test_a_shifted_machine_is_one_verdict_and_no_later_yardstick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = watched(tmp_path)
    execute(asked, Log())
    for us in (50, 100, 200, 400):
        monkeypatch.setenv(f"FACTOR_{us}", "1.03")
    for _ in range(2):  # the shifted run itself is nothing to compare the next one with
        outcome = execute(asked, Log())
        assert outcome.run.shift is not None
        assert (outcome.run.shift.moved, outcome.run.shift.comparable) == (3, 3)
        assert words(outcome) == ["unclear"] * 3
        assert not any(verdict.fails for verdict in outcome.run.verdicts)
        assert load_run(outcome.run_file).shift == outcome.run.shift


def test_canaries_that_were_measured_are_not_measured_again(tmp_path: Path) -> None:
    asked = watched(tmp_path)
    whole = execute(asked, Log())
    lines = whole.run_file.read_bytes().splitlines(keepends=True)
    results = [i for i, line in enumerate(lines) if b'"kind":"result"' in line]
    whole.run_file.write_bytes(b"".join(lines[: results[1] + 1]))
    resumed = execute(replace(asked, resume=True), Log())
    assert sorted(stages(resumed)) == sorted(stages(whole))
    assert resumed.run.results[0] == whole.run.results[0]


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


def test_what_is_only_counted_is_shared_out_over_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    shares: list[int] = []
    with Panel(Setup(device="fake", slots=3)) as panel:
        variants: list[Any] = [SimpleNamespace(is_gang=False) for _ in range(32)]
        count_on([panel], variants, lambda _panel, share: shares.append(len(share)))
        count_on([panel], variants[:8], lambda _panel, share: shares.append(len(share)))
    assert shares == [8, 8, 8, 8, 8]
