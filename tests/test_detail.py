"""What a report says of rates and of metrics that are no clock."""

from __future__ import annotations

from dataclasses import replace

import report_data as data
from msgspec import structs

from perfsuite.judge.peaks import PEAKS
from perfsuite.model import Change, Evidence, Metric, Result, Revision, Verdict, Word, Work
from perfsuite.report import data as detail
from perfsuite.report import plots, view
from perfsuite.report.data import Subject, judged, middles, others, rates, read, subjects
from perfsuite.report.view import NOTHING, SPACE


def subject_with(metrics: dict[str, tuple[float, ...]], *declared: Metric) -> Subject:
    told = data.STORY[0]
    variant = data.variant_of(told)
    variant = structs.replace(variant, case=structs.replace(variant.case, metrics=declared))
    result: Result = data.result_of(told)
    evidence = tuple(
        structs.replace(
            one, blocks=tuple(structs.replace(block, metrics=metrics) for block in one.blocks)
        )
        for one in result.evidence
    )
    result = structs.replace(result, evidence=evidence)
    return Subject(
        variant=variant, anchor="a", result=result, middles=middles(result), screen=None,
        verdict=None, entry=None, before=None,
    )  # fmt: skip


def test_a_scenarios_metrics_stand_in_their_units() -> None:
    lines = others(subject_with({"ttft_ms": (40.0, 42.0)}, Metric("ttft_ms", "ms")))
    (line,) = [each for each in lines if each.name == "ttft_ms"]
    assert (line.now, line.baseline) == (f"41{SPACE}ms", NOTHING)


def test_the_devices_own_time_is_a_time() -> None:
    lines = others(subject_with({"device_us": (12.5, 12.5)}))
    (line,) = [each for each in lines if each.name == "device_us"]
    assert "12.5" in line.now
    assert line.now.endswith("µs")


def test_rates_of_a_launch_s_work_stand_before_and_now() -> None:
    told = data.STORY[1]
    run = data.run_of((told,))
    (subject,) = subjects(run, baselines=data.baselines_of(), previous=None, history={})
    work = Work(read_bytes=8e9, link="nvlink")
    (rate,) = rates(
        replace(subject, variant=structs.replace(subject.variant, work=work)), PEAKS["nvidia-h200"]
    )
    change = subject.change
    assert change is not None
    assert (rate.name, rate.now) == ("gb_per_s", view.rate(8e6 / change.current, "GB/s"))
    assert rate.baseline == view.rate(8e6 / change.baseline, "GB/s")


def test_an_untimed_variant_shows_the_metric_that_was_judged() -> None:
    subject = subject_with({}, Metric("regs", "regs"), Metric("tokens_per_s", "1/s", "higher"))
    exact = {"bytes": 5.0, "tokens_per_s": 7.0, "regs": 40.0}
    assert subject.result is not None
    result = structs.replace(subject.result, evidence=(Evidence(slot=0, seed=1, exact=exact),))
    bare = replace(subject, result=result, middles={})
    first = judged(bare)
    assert first is not None
    assert (first.name, first.now) == ("regs", f"40{SPACE}regs")
    moved = Change(
        metric="tokens_per_s", unit="1/s", baseline=14.0, current=7.0, theta=0.5, low=0.5,
        high=0.5, threshold=0.0, gate=0.0, detectable=0.0,
    )  # fmt: skip
    verdict = Verdict(variant=bare.variant.id, word=Word.SLOWER, reason="", changes=(moved,))
    found = judged(replace(bare, verdict=verdict))
    assert found is not None
    assert (found.baseline, found.now) == (f"14{SPACE}per second", f"7{SPACE}per second")
    assert judged(subject) is None


def test_a_variant_is_measured_again_against_the_same_revision() -> None:
    variant = data.variant_of(data.STORY[0])
    run = structs.replace(data.run_of(), command="pytest --perf")
    against = structs.replace(run, against=Revision(commit="abc", name="HEAD"))
    assert detail.command(variant, against).endswith(" --perf-against=HEAD")
    assert "against" not in detail.command(variant, run)


def test_a_variant_of_a_pack_that_was_named_is_measured_again_with_it() -> None:
    variant = data.variant_of(data.STORY[0])
    given = "pytest --perf --perf-pack 'my packs/acme' --perf-device=cpu -k softmax --perf-packs x"
    run = structs.replace(data.run_of(), command=given)
    told = detail.command(variant, run)
    assert told.endswith(" '--perf-pack=my packs/acme' --perf-device=cpu")
    assert "acme" not in detail.command(variant, structs.replace(run, command=f"{given} 'unclosed"))


def test_in_short_a_variant_tells_its_processes_now_and_before() -> None:
    told = data.STORY[0]
    book = read(data.run_of((told,)), baselines=data.baselines_of((told,)))
    text = detail.brief(book.subjects[0]).replace(SPACE, " ")
    assert text.startswith("now: 128.")
    assert "; baseline, unit 3f2a: 128." in text
    assert text.count("; ") == 2
    unmeasured = read(data.run_of((data.STORY[24],)), baselines={}).subjects[0]
    assert detail.brief(unmeasured) == ""


def test_a_docstring_is_told_by_paragraph() -> None:
    variant = data.variant_of(data.STORY[0])
    variant = structs.replace(
        variant, case=structs.replace(variant.case, doc="One.\n\n  \nTwo\nlines.\n")
    )
    assert detail.paragraphs(variant) == ["One.", "Two\nlines.\n"]


def test_tracks_are_time_and_what_the_device_did_meanwhile() -> None:
    subject = read(data.run_of(data.STORY[:1]), baselines={}).subjects[0]
    found = {track.label: track for track in plots.tracks(subject)}
    assert list(found) == ["Time", "SM clock", "Power", "Temperature"]
    assert (found["Power"].low, found["Temperature"].high) == (f"412{SPACE}W", f"54{SPACE}°C")
