"""A run is told completely and safely on its page, and as text for other tools."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report_data as data
from report_data import replace
from store_data import changed, ran

from perfsuite.boundary import StoreError, plain
from perfsuite.judge.peaks import GENERIC
from perfsuite.model import (
    BaselineEntry,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Evidence,
    Metric,
    Result,
    Revision,
    Run,
    Status,
    Verdict,
    Word,
    Work,
)
from perfsuite.report import data as report
from perfsuite.report import text, view
from perfsuite.report.data import MARKS, RunView, VariantView, read
from perfsuite.report.html import inline, prose, render_beside, render_page, roof, write_report

GOLD = Path(__file__).parent / "gold"
SCHEMA = Path(__file__).parents[1] / "docs" / "verdict.schema.json"
SOURCE = "baseline nvidia-h200"
SOURCE_FILE = "plugins/memory/perfsuite_memory/stream.py"
VOID = {"meta", "link", "br", "wbr", "input", "img"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</style><style>*{display:none}",
    "{{ 7*7 }}{% raw %}",
    "[click](javascript:alert(1)) | `x` <b>",
)
EVERYTHING = (
    "4 failed, 1 over budget, 3 slower, 1 disturbed, 2 unclear of 28 variants; "
    "1 claim broken, 3 skipped"
)
COPY, SLOWER = data.STORY[0], data.STORY[1]


class _Reader(HTMLParser):
    """Collects elements and attributes, and text but scripts; sees that what opens is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, found: str) -> None:
        self.text += found.replace(view.SPACE, " ") * (not {"script", "style"} & {*self.open})

    def values(self, attribute: str) -> list[str]:
        return [held[attribute] or "" for _, held in self.elements if attribute in held]


def read_of(*story: data.Told, **changes: Any) -> RunView:
    told = story or data.STORY
    run = changed(data.run_of(told), **changes)
    return read(run, baselines=data.baselines_of(told), source=SOURCE)


def alone(told: data.Told, **changes: Any) -> RunView:
    return read_of(told, **{"claims": (), **changes})


def view_of(told: data.Told = COPY, **changes: Any) -> VariantView:
    return replace(read_of(told).variants[0], **changes)


def counted(**exact: float) -> Result:
    return replace(data.result_of(COPY), evidence=(Evidence(slot=0, seed=1, exact=exact),))


@pytest.fixture(scope="module")
def shown() -> str:
    return render_page(read_of())


@pytest.fixture(scope="module")
def reader(shown: str) -> _Reader:
    return _Reader(shown)


def test_page_is_as_it_was(shown: str) -> None:
    actual = re.sub(r"<(style|script)([^>]*)>.*?</\1>", r"<\1\2>", shown, flags=re.DOTALL)
    actual = re.sub(r"sha256-[\w+/=]+", "HASH", actual)
    actual = re.sub(r' d="M[^"]{120,}"', ' d="DOTS"', actual)
    expected = GOLD / "report.html"
    if not expected.exists() or actual != expected.read_text("utf-8"):
        kept = GOLD / "actual" / "report.html"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(actual, "utf-8")
        pytest.fail(f"the page differs: diff {expected} {kept}, then copy it over if it is right")


def test_page_is_well_formed_and_loads_nothing(reader: _Reader, shown: str) -> None:
    ids, tags = reader.values("id"), [tag for tag, _ in reader.elements]
    assert reader.open == []
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in reader.values("href") if link.startswith("#")} <= set(ids)
    policy = next(v for v in reader.values("content") if "default-src" in v)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert {*tags} & {"link", "img", "iframe", "object", "base"} == set()
    assert reader.values("src") + reader.values("style") == []
    assert "@import" not in shown
    assert "url(" not in shown
    assert tags.count("caption") == tags.count("table")
    assert all("scope" in held for tag, held in reader.elements if tag == "th")


@pytest.mark.parametrize(
    ("book", "headline", "tone"),
    [
        (alone(COPY), "No change in 1 variant", "faster"),
        (alone(replace(COPY, word=Word.NEW)), "1 new variant, nothing to compare with yet", ""),
        (alone(replace(COPY, word=Word.FASTER)), "1 faster", "faster"),
        (alone(replace(COPY, word=Word.UNCLEAR)), "1 unclear of 1 variant", "unclear"),
        (alone(replace(COPY, word=Status.SKIPPED)), "No variant ran; 1 skipped", "other"),
        (alone(COPY, verdicts=(), finished=""), "1 measured", "unclear"),
        (alone(COPY, results=(counted(),), verdicts=(), finished=""), "1 checked", "unclear"),
        (alone(COPY, results=()), "No variant ran; 1 not run", "other"),
        (read_of(), EVERYTHING, "slower"),
    ],
)
def test_headline_counts_what_needs_a_reader(book: RunView, headline: str, tone: str) -> None:
    page = render_page(book)
    assert f"<h1>{headline}</h1>" in page
    assert f'<header class="{tone}' in page
    assert ("This run fails" in page) == (tone == "slower")
    assert ("This run was interrupted" in page) == (not book.run.finished)


def test_a_page_follows_what_the_device_has() -> None:
    result = data.result_of(COPY)
    blocks = tuple(replace(block, cycles=(), health=None) for block in result.evidence[0].blocks)
    evidence = tuple(replace(one, blocks=blocks) for one in result.evidence)
    facts = DeviceFacts(device="cpu", name="AMD EPYC", unit="cafe", identity={"model": "EPYC"})
    sku = replace(data.run_of().sku, slug="cpu-epyc")
    book = alone(COPY, results=(replace(result, evidence=evidence),), facts=facts, sku=sku)
    words = _Reader(render_page(replace(book, baselines={}))).text
    assert re.findall(r"GPU|SM c|SM-|hbm|nvlink|MIG|ECC|card|β|by the driver", words) == []
    assert "268 MB read, 268 MB written" in words


def test_the_page_of_a_comparison_shows_what_differs() -> None:
    run, previous = data.run_of(), data.previous_of()
    page = render_page(read(run, baselines=data.baselines_of(), previous=previous))
    changed = re.findall(r'<tr class="d"><th scope="row">(\w+)</th><td>([^<]*)</td>', page)
    assert ("driver", "575.57.08") in changed
    assert "before 1 · unit 3f2a" in page
    assert "9c1e4f70a2b8 (before: 41b7c2d9e6f0)" in page


def test_cases_of_one_anchor_get_two_and_an_empty_run_is_a_page() -> None:
    book = alone(COPY)
    (one,) = (each.variant for each in book.run.variants)
    twin = replace(one, id=one.id.replace("=copy", "=COPY"))
    run = replace(book.run, variants=ran(one, twin))
    assert len({one.anchor for one in read(run, baselines={}).variants}) == 2
    assert "<h1>No variant ran</h1>" in render_page(alone(COPY, variants=()))


def test_prose_is_text_but_what_stands_in_backticks() -> None:
    assert prose('``a<b>`` of `n` is "x"') == [
        "<code>a&lt;b&gt;</code> of <code>n</code> is &#34;x&#34;"
    ]
    for source in ("a ` b", "``", "`a``", "&lt;", "<code>"):
        assert "<" not in prose(source)[0]
    assert prose("One.\n\n  \nTwo\nlines.") == ["One.", "Two\nlines."]


def test_an_untimed_variant_shows_the_metric_that_was_judged() -> None:
    case = data.variant_of(COPY).case
    declared = (Metric("regs", "regs"), Metric("tokens_per_s", "1/s", "higher"))
    variant = replace(data.variant_of(COPY), case=replace(case, metrics=declared))
    bare = view_of(variant=variant, result=counted(b=5, tokens_per_s=7, regs=40), verdict=None)
    assert (bare.shown.name, bare.shown.now) == ("regs", f"40{view.SPACE}regs")
    change = replace(data.change_of(COPY), metric="tokens_per_s", unit="1/s", theta=0.5, low=0.5)
    change = replace(change, high=0.5, threshold=0.0, baseline=14.0, current=7.0)
    verdict = Verdict(variant="a", word=Word.SLOWER, reason="", changes=(change,))
    judged = replace(bare, verdict=verdict)
    told = (judged.shown.baseline, judged.shown.now, judged.shown.note)
    assert told == (f"14{view.SPACE}per second", f"7{view.SPACE}per second", "higher is better")
    assert "tokens_per_s" in render_page(
        alone(COPY, results=(bare.result,), verdicts=(replace(verdict, variant=variant.id),))
    )


def test_another_metric_that_decided_is_named_in_the_row() -> None:
    change = replace(data.change_of(COPY), metric="peak_bytes", unit="bytes", theta=0.5, low=0.5)
    change = replace(change, high=0.5, baseline=100.0, current=150.0)
    verdict = Verdict(
        variant=data.variant_of(COPY).id,
        word=Word.SLOWER,
        reason="",
        changes=(data.change_of(COPY), change),
    )
    assert view_of(verdict=verdict).aside.startswith("peak_bytes +50.00")


def test_metrics_stand_in_their_units() -> None:
    told = {
        line.name: line.now for line in view_of(result=counted(n_bytes=5, device_us=12)).metrics
    }
    assert told == {"n_bytes": f"5{view.SPACE}B", "device_us": f"12.0{view.SPACE}µs"}
    (rate, *_) = view_of(SLOWER).rates
    change = view_of(SLOWER).change
    assert change is not None
    moved = 2 * 4 * 2**28 / 1e3
    assert rate.now == view.rate(moved / change.current, "GB/s")
    assert rate.baseline == view.rate(moved / change.baseline, "GB/s")


def test_a_variant_is_measured_again_as_it_was() -> None:
    given = "pytest --perf --perf-pack 'my packs/acme' --perf-device=cpu -k softmax --perf-packs x"
    book = read_of(COPY, command=given, against=Revision(commit="abc", name="HEAD"))
    kept = " '--perf-pack=my packs/acme' --perf-device=cpu --perf-against=HEAD"
    assert book.variants[0].command.endswith(kept)
    assert "acme" not in read_of(COPY, command=f"{given} 'unclosed").variants[0].command


def test_in_short_a_variant_tells_its_processes_now_and_before() -> None:
    told = view_of().brief.replace(view.SPACE, " ")
    assert told.startswith("now: 128.")
    assert "; baseline, unit 3f2a: 128." in told
    assert view_of(data.STORY[24]).brief == ""


def test_of_very_many_variants_the_urgent_are_told_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FULL_DETAIL", 40)
    many = [replace(COPY, axes={"n": n}) for n in range(41)]
    small, large = (
        render_page(read_of(*many, *(replace(COPY, axes={"m": n}) for n in range(more))))
        for more in (0, 20)
    )
    assert (len(large.encode()) - len(small.encode())) / 20 < 3200
    slower = [replace(SLOWER, axes={"n": n}) for n in range(61)]
    book = read_of(*slower)
    assert (len(book.full), len(book.brief)) == (40, 21)
    page = render_page(book)
    assert all(f'id="{one.anchor}"' in page for one in book.variants)


def test_rows_are_found_by_words_urgent_ones_first() -> None:
    fields = read_of().filters
    assert [word for word, _ in fields["verdict"]][:2] == ["wrong", "crashed"]
    assert [word for word, _ in fields["metric"]] == ["time_us", "launches", "peak_bytes"]
    assert dict(fields["verdict"])["slower"] == 3
    assert "tag" not in fields  # it would choose nothing
    words = [one.mark.word for one in read_of().ran]
    assert words == sorted(words, key=lambda word: MARKS[word].rank)


def test_coverage_counts_what_ran_and_groups_what_did_not() -> None:
    compute, memory = read_of().coverage
    assert (compute.pack, compute.ran, compute.chosen) == ("compute", 14, 17)
    assert [len(ids) for ids in compute.gaps.values()] == [2, 1]
    assert (memory.ran, memory.chosen, memory.gaps) == (14, 14, {})
    reasons = ("needs arch sm_100a", "needs 4 GPUs, this run has 2", "needs 2 GB of memory")
    assert {report.gap_kind(reason) for reason in reasons} == {"another device"}
    assert report.gap_kind("needs package x >= 2") == "other software"
    assert report.gap_kind("the run ended before it") == "another reason"


def claim_of(name: str, ratio: float | None, word: ClaimWord, pack: str = "memory") -> Any:
    fast, slow = (f"memory.h2d[mb=256,pinned={one}]" for one in ("true", "false"))
    id_ = f"{pack}.h2d:{name}[mb=256]"
    told = ClaimInstance(id=id_, pack=pack, name=name, faster=fast, than=slow, by=2, source="s")
    told = replace(told, file=SOURCE_FILE, line=7)
    verdict = ClaimVerdict(claim=id_, word=word, reason="r", required=2.0, source="s", ratio=ratio)
    return told, replace(verdict, low=ratio, high=ratio, fails=word is ClaimWord.BROKEN)


def test_claims_are_told_by_pack_what_is_broken_first() -> None:
    found = [
        claim_of("pinned", 4.0, ClaimWord.HELD),
        claim_of("fast", 3.0, ClaimWord.HELD, "zeta"),
        claim_of("slow", None, ClaimWord.BROKEN, "zeta"),
    ]
    instances, verdicts = zip(*found, strict=True)
    book = read_of(instances=instances, claims=verdicts)
    assert [(pack, [name for name, _ in tips]) for pack, tips in book.chapters.items()] == [
        ("zeta", ["slow", "fast"]),
        ("memory", ["pinned"]),
    ]
    (pinned,) = book.chapters["memory"]["pinned", "s"]
    assert (pinned.axes, pinned.than) == ("mb=256", "pinned=true over pinned=false")
    assert pinned.anchor == "v-memory-h2d-mb-256-pinned-true"
    assert pinned.logs == pytest.approx([0.6931] * 3, rel=1e-3)
    assert book.claims[0].logs == []
    assert {one.pack for one in read_of().claims} == {"compute", "memory"}  # of an old run


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (data.gemm(8192, "cublas", 1399.0), ("bf16", 798e12, "786 TFLOP/s, 98 % of the ceiling")),
        (data.stream("copy", 2**28, 1, 503.9), ("hbm", 4.36e12, "4.26 TB/s, 98 % of the ceiling")),
        (replace(COPY, work=Work(read_bytes=1e9, flops=1e9, rate_dtype="fp32")), ("hbm_read",)),
        (replace(COPY, work=Work(flops=1e11, rate_dtype="bf16")), ("bf16", 798e12)),
        (replace(COPY, work=None), None),
        (replace(COPY, work=Work()), None),
        (data.STORY[24], None),
    ],
)
def test_a_variant_stands_under_its_nearest_ceiling(told: data.Told, expected: Any) -> None:
    place = view_of(told).place
    if place is None or expected is None:
        assert place is expected
        return
    ceiling = place.ceiling.value if place.ceiling else None
    found = (place.limit, ceiling, place.said.replace(view.SPACE, " "))
    assert found[: len(expected)] == expected


def test_a_roofline_has_what_moved_and_the_ceilings_that_are_known() -> None:
    slower = view_of(data.gemm(8192, "cublas", 1399.0, word=Word.SLOWER, theta=0.03))
    chart = roof([slower, view_of(data.gemm(4096, "cublas", 187.4))])
    (_, rate, before, tone, title), still = chart["points"]
    assert before > rate
    assert still[2] is None
    assert (tone, title.partition(":")[0]) == ("slower", slower.variant.id)
    assert [name.partition(" ")[0] for name, *_ in chart["links"] + chart["operations"]] == [
        "hbm",
        "bf16",
    ]
    bare = roof([replace(slower, peaks=GENERIC)])
    assert bare["links"] + bare["operations"] == []
    assert roof([view_of(COPY)])["points"][0][0] is None


@pytest.mark.parametrize(
    ("devices", "busy", "spin"), [(("a", "a"), 0.4, 0.6), (("a", "b"), 0.2, 0.3)]
)
def test_where_the_run_s_own_time_went(devices: tuple[str, str], busy: float, spin: float) -> None:
    spent = {"start": 1.0, "measure": 1.0, "spin": 3.0}
    results = tuple(
        Result(
            variant=data.variant_of(data.STORY[at]).id,
            status=Status.OK,
            wall_s=5.0 + at,
            evidence=(Evidence(slot=0, seed=0, unit=unit, phases_s=spent, busy_s=2.0),),
        )
        for at, unit in enumerate(devices)
    )
    book = read_of(results=results, wall_s=7.0, phases_s={"open": 2.0, "judge": 0.5})
    profile = view.profile_of(book.run, report_s=1.0)
    assert list(profile.phases)[:6] == ["open", "start", "spin", "measure", "judge", "report"]
    assert [profile.phases[name] for name in ("start", "spin", "report")] == [2.0, 6.0, 1.0]
    assert (profile.busy, profile.spin) == pytest.approx((busy, spin))
    assert [seconds for _, seconds in profile.slowest] == [6.0, 5.0]
    assert "Where the run's own time went" in render_page(book)
    assert "Where the run's own time went" not in render_page(read_of(COPY))


def test_runs_stand_beside_each_other() -> None:
    story = tuple(replace(told, time_us=told.time_us / 2) for told in data.STORY[1:])
    hostile = "<script>alert(1)</script>"
    run = data.run_of(story)
    facts = replace(run.facts, environment={hostile: hostile, "driver": "590.1"})
    other = replace(run, id="other", sku=replace(run.sku, slug="b200"), facts=facts, commit=hostile)
    books = [read(one, baselines={}) for one in (data.run_of(), other)]
    page, same = render_beside(books), render_beside([books[0], books[0]])
    assert f"<b>2.00{view.TIMES}</b>" in page
    assert "<h1>nvidia-h200 · b200</h1>" in page
    assert "perfsuite compare A B" in same
    assert hostile not in page
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th>(.*)</tr>', page))
    assert rows["driver"] == "<td>580.159.03</td><td>590.1</td>"
    assert "sm_count" not in rows


def hostile_run(told: str) -> tuple[Run, Mapping[str, BaselineEntry]]:
    """Return a run with the text in every place where a pack, a store or git may have put it."""
    story = replace(data.STORY[9], reason=told)
    run = data.run_of((story, data.STORY[24]))
    plain = [one.variant for one in run.variants]
    case = replace(plain[0].case, doc=told, file=told, source=told, tags=(told,))
    case = replace(case, pack=told, name=told)
    variants = tuple(replace(one, case=case, id=f"{one.id}{told}") for one in plain)
    verdicts = tuple(replace(v, variant=f"{v.variant}{told}", reason=told) for v in run.verdicts)
    results = [
        replace(r, variant=f"{r.variant}{told}", reason=told, output=told) for r in run.results
    ]
    noted = [replace(one, notes=(told,), backend=told) for one in results[0].evidence]
    run = changed(
        run,
        facts=replace(run.facts, name=told, environment={told: told, "driver": told}),
        sku=replace(run.sku, slug=told, name=told),
        variants=ran(*variants),
        claims=(replace(run.claims[0], claim=told, reason=told, source=told),),
        notes=(told,),
        commit=told,
        command=told,
        verdicts=verdicts,
        results=(replace(results[0], evidence=tuple(noted)), *results[1:]),
    )
    entry = replace(data.entry_of(story), state={told: told, "driver": told})
    return run, {variants[0].id: entry}


@pytest.mark.parametrize("told", HOSTILE)
def test_hostile_text_is_shown_as_text(told: str) -> None:
    run, baselines = hostile_run(told)
    book = read(run, baselines=baselines, source=told)
    reader, empty = _Reader(render_page(book)), _Reader(render_page(read_of(COPY)))
    assert reader.open == []
    assert reader.text.count(told) >= 10
    tags, usual = ([tag for tag, _ in one.elements] for one in (reader, empty))
    assert [tags.count(one) for one in ("script", "style")] == [
        usual.count(one) for one in ("script", "style")
    ]
    assert {*tags} & {"img", "b2", "raw"} == set()
    assert [name for _, held in reader.elements for name in held if name.startswith("on")] == []
    assert all(link.startswith(("#", "https://")) for link in reader.values("href"))
    assert all(re.fullmatch(r"[a-z0-9-]+", anchor) for anchor in reader.values("id"))
    markdown = text.summary(book)
    assert re.findall(r"<(?!/?(?:details|summary)>)", markdown) == []
    assert re.search(r"(?<!\\)\]\(", markdown) is None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("@octocat", "\\@&#8203;octocat"),
        ("a@b.example", "a\\@&#8203;b.example"),
        ("#12", "\\#&#8203;12"),
        ("https://x.example", "https:&#8203;//x.example"),
        ("www.x.example", "w&#8203;ww.x.example"),
        (":rocket:", ":&#8203;rocket:"),
        ("a|b `c` <d>", "a\\|b \\`c\\` &lt;d&gt;"),
        ("&lt;b&gt; &#64;x", "&amp;lt;b&amp;gt; &amp;\\#&#8203;64;x"),
        ("two\nlines", "two lines"),
        ("memory.h2d:pinned[mb=256]", "memory.h2d:pinned\\[mb=256\\]"),
    ],
)
def test_markdown_lets_no_text_act(told: str, expected: str) -> None:
    assert text.in_markdown(told) == expected


def test_markdown_has_ten_rows_and_folds_the_rest() -> None:
    shown = text.summary(read_of())
    lines = shown.splitlines()
    assert lines[0].endswith(EVERYTHING)
    visible = shown.partition("<details>")[0].partition("Broken claims:")[0]
    assert visible.count("\n| ") - 2 == 10
    assert "4 more: see the report" in lines
    assert "the worker died of SIGSEGV while measuring |" in shown
    assert "<summary>Claims: 3 others</summary>" in shown
    assert re.search(r"^\| compute \| 17 \| 14 \| .*3 skipped", shown, re.MULTILINE)
    huge = [replace(SLOWER, axes={"op": "copy" * 150, "n": n}) for n in range(900)]
    assert len(text.summary(read_of(*huge)).encode()) < 20_000


def test_properties_are_plain_and_complete() -> None:
    found = dict(text.properties(data.result_of(SLOWER), data.verdict_of(SLOWER)))
    assert found["perf_verdict"] == "slower"
    assert found["perf_time_us_change"] == pytest.approx(0.0213)
    assert {type(value) for value in found.values()} <= {str, int, float}
    crashed = Result(variant="a", status=Status.CRASHED, reason="SIGSEGV")
    assert dict(text.properties(crashed, None))["perf_reason"] == "SIGSEGV"


def test_written_report_has_four_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):
        path = write_report(read_of(), tmp_path)
    assert path == tmp_path / data.run_of().id / "index.html"
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["benchmark.json", "index.html", "summary.md", "verdict.json"]
    decision = json.loads((path.parent / "verdict.json").read_text("utf-8"))
    assert decision["fails"] is True
    assert decision["counts"]["slower"] == 3
    assert len(decision["variants"]) == len(data.STORY)


def test_a_report_is_written_whole_and_below_its_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, f"no space for {target} from {self}")

    run = data.run_of(())
    folder, out = tmp_path / "reports", tmp_path / "out"
    out.mkdir()
    folder.mkdir()
    for odd in (str(out), "..", "../out"):
        with pytest.raises(StoreError, match="cannot be a file name"):
            write_report(read(replace(run, id=odd), baselines={}), folder)
    (folder / run.id).symlink_to(out)
    with pytest.raises(StoreError, match="a link leads out of the folder"):
        write_report(read(run, baselines={}), folder)
    assert not list(out.iterdir())
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StoreError, match="cannot write the report: no space"):
        write_report(read(run, baselines={}), tmp_path)
    assert list((tmp_path / run.id).iterdir()) == []


def test_verdict_json_is_as_its_schema_and_docs_say() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    if SCHEMA.read_text("utf-8") != text.json_schema():
        actual = GOLD / "actual" / SCHEMA.name
        actual.parent.mkdir(exist_ok=True)
        actual.write_text(text.json_schema(), "utf-8")
        pytest.fail(f"the schema differs: diff {SCHEMA} {actual}, then copy it over if it is right")
    written = json.loads(text.verdict_json(read_of()))
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    assert list(validator.iter_errors(written)) == []
    wrong = {"schema": 2, "fails": "yes", "counts": {"same": "all"}, "run": None}
    assert all(list(validator.iter_errors({**written, key: wrong[key]})) for key in wrong)
    judged = next(
        one for one in written["variants"] if one["verdict"] and one["verdict"]["changes"]
    )
    keys = {*written, *judged, *judged["verdict"], *judged["verdict"]["changes"][0]}
    keys |= {key for claim in written["claims"] for key in claim}
    documented = SCHEMA.with_name("verdict.md").read_text("utf-8")
    assert [key for key in sorted(keys) if f"`{key}`" not in documented] == []


def commands(book: RunView, folder: Path) -> list[tuple[str, dict[str, str], str]]:
    """Take commands apart as GitHub's runner does: properties at commas, then what is escaped."""

    def unescaped(told: str) -> str:
        for mark, code in (("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C"), ("%", "%25")):
            told = told.replace(code, mark)
        return told

    found = []
    for line in text.commands_of(book, here=folder, workspace=folder):
        assert not {"\n", "\r"} & {*line}
        kind, rest = line.removeprefix("::").split(" ", 1)
        properties, message = rest.split("::", 1)
        pairs = (each.split("=", 1) for each in properties.split(","))
        found.append((kind, {key: unescaped(value) for key, value in pairs}, unescaped(message)))
    return found


def test_a_failure_is_an_error_at_the_line_of_its_case(tmp_path: Path) -> None:
    instance, broken = claim_of("fast", 1.0, ClaimWord.BROKEN)
    book = read_of(SLOWER, claims=(broken,), instances=(instance,))
    assert [set(place) for _, place, _ in commands(book, tmp_path)] == [{"title"}] * 2
    file = tmp_path / SOURCE_FILE
    file.parent.mkdir(parents=True)
    file.touch()
    (kind, place, message), claim = commands(book, tmp_path)
    assert (kind, place["file"], place["line"]) == ("error", SOURCE_FILE, "24")
    assert place["title"] == "slower +2.13\u202f%: memory.stream[op=copy,n=268435456]"
    assert message.startswith("slower by +2.13%")
    assert (claim[0], claim[1]["line"], claim[2]) == ("error", "7", "r")


def test_at_most_ten_annotations_of_a_kind_the_worst_first(tmp_path: Path) -> None:
    slower = [replace(SLOWER, axes={"n": n}) for n in range(30)]
    unclear = [replace(data.STORY[12], axes={"n": n}) for n in range(10)]
    rest = [told for told in data.STORY if told.word in {Status.WRONG, Word.SAME, Word.FASTER}]
    found = commands(read_of(*slower, *unclear, *rest, claims=()), tmp_path)
    assert [kind for kind, *_ in found] == ["error"] * 10 + ["warning"] * 10
    assert [found[at][1]["title"].partition(" ")[0] for at in (0, 1)] == ["wrong:", "slower"]
    assert found[9][2].startswith("and ")


def test_text_cannot_end_an_annotation_or_add_a_property(tmp_path: Path) -> None:
    told = "50 % of it\x1b[2J::error file=x,line=1::\r\n::set-output name=a::b %0A"
    broken = replace(data.CLAIMS[2], claim=f"c,{told}", reason=told)
    ((_, place, message),) = commands(read_of(COPY, claims=(broken,)), tmp_path)
    assert place == {"title": plain(f"broken: c,{told}")}
    assert message == plain(told)


def test_the_step_s_summary_is_appended_to_if_it_has_room(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    file.write_text("before\n")
    text.append_summary(read_of(), file)
    assert file.read_text("utf-8").startswith("before\n### ❌")
    file.write_bytes(b"x" * (text.MOST_BYTES - 10))
    text.append_summary(read_of(), file)
    assert file.stat().st_size == text.MOST_BYTES - 10
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        text.append_summary(read_of(), tmp_path / "pipe")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "paper"), [(0, "#f2f3f4"), (1, "#24282d")])
def test_tones_are_readable_on_every_paper(theme: int, paper: str) -> None:
    roots = re.findall(r":root \{([^}]*)\}", str(inline("style.css").text))
    defined = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})", roots[theme]))
    for tone in {mark.tone for mark in MARKS.values()}:
        light, dark = sorted((luminance(defined[tone]), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, tone
