"""A run is rendered completely, safely and in one file, from the values handed over."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_data as data
from msgspec import structs

from perfsuite.boundary import StoreError
from perfsuite.model import (
    BaselineEntry,
    Change,
    DeviceFacts,
    Evidence,
    Reason,
    Result,
    Run,
    Stage,
    Status,
    Verdict,
    Word,
    Work,
    because,
)
from perfsuite.report import data as page
from perfsuite.report import text as summary
from perfsuite.report import view
from perfsuite.report.data import read, subjects
from perfsuite.report.html import inline, prose, write_report
from perfsuite.report.html import render_render as html
from perfsuite.report.text import properties
from perfsuite.report.text import summary as markdown
from perfsuite.report.view import sentence
from perfsuite.report.why import cause

GOLD = Path(__file__).parent / "gold"
SOURCE = "baseline nvidia-h200"
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


class _Reader(HTMLParser):
    """Collects elements, attributes, ids and text, and sees that what opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.text += text

    def values(self, attribute: str) -> list[str]:
        return [held[attribute] or "" for _, held in self.elements if attribute in held]


def render(run: Run | None = None, previous: Run | None = None) -> str:
    book = read(
        run or data.run_of(), baselines=data.baselines_of(), source=SOURCE, previous=previous
    )
    return html(book)


@pytest.fixture(scope="module")
def shown() -> str:
    return render()


@pytest.fixture(scope="module")
def reader(shown: str) -> _Reader:
    return _Reader(shown)


def one_of(told: data.Told, **changes: object) -> Run:
    return structs.replace(data.run_of((told,)), claims=(), **changes)


def section(text: str, anchor: str) -> str:
    return text.partition(f'<details id="{anchor}"')[2].partition("</details>")[0]


def test_page_is_as_it_was(shown: str) -> None:
    actual = shown.replace(inline("style.css").text, "STYLE").replace(
        inline("app.js").text, "SCRIPT"
    )
    actual = re.sub(r"sha256-[\w+/=]+", "HASH", actual)
    actual = re.sub(r' d="M[^"]{120,}"', ' d="DOTS"', actual)
    expected = GOLD / "report.html"
    if not expected.exists() or actual != expected.read_text("utf-8"):
        kept = GOLD / "actual" / "report.html"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(actual, "utf-8")
        pytest.fail(f"the page differs: diff {expected} {kept}, then copy it over if it is right")


def test_page_is_well_formed_with_unique_ids_and_no_dead_anchor(reader: _Reader) -> None:
    assert reader.open == []
    ids = reader.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in reader.values("href") if link.startswith("#")} <= set(ids)


def test_page_loads_nothing_and_forbids_it(reader: _Reader, shown: str) -> None:
    policy = next(v for v in reader.values("content") if "default-src" in v)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert {tag for tag, _ in reader.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "base",
    } == set()
    assert reader.values("src") + reader.values("style") == []
    assert "@import" not in shown
    assert "url(" not in shown


def test_page_has_every_variant_once_in_table_or_skips(reader: _Reader) -> None:
    rows = [held for tag, held in reader.elements if tag == "tr" and "data-g" in held]
    skipped = [told for told in data.STORY if told.word is Status.SKIPPED]
    assert len(rows) + len(skipped) == len(data.STORY)
    assert "needs arch sm_100a" in reader.text


def test_failures_stand_first_and_same_last(shown: str) -> None:
    words = re.findall(r"<tr data-g.*?</i>([\w-]+)<", shown, flags=re.DOTALL)
    assert words[:4] == ["wrong", "crashed", "timed-out", "error"]
    assert words[4:8] == ["over-budget", "slower", "slower", "slower"]
    assert set(words[-13:]) == {"same"}


def test_headline_counts_what_needs_a_reader_with_unclear_and_skips(shown: str) -> None:
    assert (
        "<h1>4 failed, 1 over budget, 3 slower, 1 disturbed, 2 unclear of 28 variants; "
        "1 claim broken, 3 skipped</h1>" in shown
    )


@pytest.mark.parametrize(
    ("word", "headline"),
    [
        (Word.SAME, "No change in 1 variant"),
        (Word.NEW, "1 new variant, nothing to compare with yet"),
        (Word.FASTER, "1 faster"),
        (Status.SKIPPED, "No variant ran; 1 skipped"),
    ],
)
def test_headline_of_a_quiet_run(word: Word | Status, headline: str) -> None:
    run = one_of(replace(data.STORY[0], word=word))
    assert f"<h1>{headline}</h1>" in render(run)
    assert "This run fails" not in render(run)


def test_tables_have_captions_and_scoped_headers(reader: _Reader) -> None:
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("caption") == tags.count("table")
    assert all("scope" in held for tag, held in reader.elements if tag == "th")


def test_section_has_both_clocks_evidence_and_command(shown: str) -> None:
    text = _Reader(section(shown, "v-compute-gemm-size-8192-impl-cublas")).text
    for expected in ("SM cycles per launch", "SM clock", "graph", "fresh processes", "412", "54"):
        assert expected in text
    assert "pytest --perf --perf-select 'compute.gemm[size=8192,impl=cublas]'" in text
    assert "now 6" in text
    assert "screen 3" in text
    assert "baseline · unit b07c" in text


def test_section_of_a_failure_has_reason_and_output(shown: str) -> None:
    text = _Reader(section(shown, "v-compute-softmax-rows-4096-cols-32768-impl-cuda")).text
    assert "the worker died of SIGSEGV while measuring" in text
    assert "Traceback (most recent call last)" in text


def test_environment_shows_what_differs_from_the_previous_run() -> None:
    text = render(previous=data.previous_of())
    changed = re.findall(r'<tr class="d"><th scope="row">(\w+)</th><td>([^<]*)</td>', text)
    assert ("driver", "575.57.08") in changed
    assert "before 1 · unit 3f2a" in text
    assert "baseline · card" not in text
    assert "9c1e4f70a2b8 (before: 41b7c2d9e6f0)" in text


def test_cases_of_one_anchor_get_two() -> None:
    run = data.run_of(data.STORY[:1])
    twin = structs.replace(run.variants[0], id=run.variants[0].id.replace("=copy", "=COPY"))
    text = render(structs.replace(run, variants=(*run.variants, twin)))
    assert text.count("v-memory-stream-op-copy-n-67108864") >= 2
    assert "the run ended before it" in text


def test_exact_metric_that_decided_is_named_in_the_row() -> None:
    told = data.STORY[0]
    change = structs.replace(
        data.change_of(told), metric="peak_bytes", unit="bytes", theta=0.5, low=0.5
    )
    change = structs.replace(change, high=0.5, baseline=100.0, current=150.0)
    verdict = Verdict(
        variant=data.variant_of(told).id,
        word=Word.SLOWER,
        reason="peak_bytes rose",
        changes=(data.change_of(told), change),
    )
    text = _Reader(render(one_of(told, verdicts=(verdict,)))).text
    assert "peak_bytes +50.00" in text.replace(view.SPACE, " ")


def test_device_with_one_clock_shows_time_alone() -> None:
    told = data.STORY[0]
    result = data.result_of(told)
    blocks = tuple(
        structs.replace(block, cycles=(), health=None) for block in result.evidence[0].blocks
    )
    evidence = tuple(structs.replace(one, blocks=blocks) for one in result.evidence)
    text = render(one_of(told, results=(structs.replace(result, evidence=evidence),)))
    assert "SM cycles" not in section(text, "v-memory-stream-op-copy-n-67108864")
    assert "Time per launch" in text


def test_a_cpu_s_page_says_nothing_of_what_only_a_gpu_has() -> None:
    told = data.STORY[0]
    result = data.result_of(told)
    blocks = tuple(
        structs.replace(block, cycles=(), health=None) for block in result.evidence[0].blocks
    )
    evidence = tuple(structs.replace(one, blocks=blocks) for one in result.evidence)
    facts = DeviceFacts(device="cpu", name="AMD EPYC", unit="cafe", identity={"model": "EPYC"})
    run = one_of(told, results=(structs.replace(result, evidence=evidence),), facts=facts)
    text = html(
        read(structs.replace(run, sku=structs.replace(run.sku, slug="cpu-epyc")), baselines={})
    )
    words = _Reader(re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)).text
    assert re.findall(r"GPU|SM c|SM-|hbm|nvlink|MIG|ECC|card|β", words) == []
    assert "268 MB read, 268 MB written" in words.replace(view.SPACE, " ")
    assert "by the driver" not in words


def test_backticks_of_a_docstring_are_code_and_the_rest_stays_text() -> None:
    assert prose('``a<b>`` of `n` is "x"') == (
        "<code>a&lt;b&gt;</code> of <code>n</code> is &#34;x&#34;"
    )
    for text in ("a ` b", "``", "`a``", "&lt;"):
        assert "<" not in prose(text)
    assert prose("<code>") == "&lt;code&gt;"
    assert prose("`<img src=x onerror=alert(1)>`") == (
        "<code>&lt;img src=x onerror=alert(1)&gt;</code>"
    )


def test_a_variant_without_a_time_shows_the_metric_it_was_judged_by() -> None:
    told = data.STORY[0]
    counted = Evidence(slot=0, seed=1, exact={"sass_lines": 812.0})
    result = structs.replace(data.result_of(told), evidence=(counted,))
    verdict = Verdict(variant=result.variant, word=Word.NEW, reason="new")
    run = one_of(told, results=(result,), verdicts=(verdict,))
    row = render(run).partition('<tbody class="chunk">')[2].partition("</tbody>")[0]
    assert '<td class="n w1">812<br><small>sass_lines</small></td>' in row
    assert "812 sass\\_lines" in markdown(read(run, baselines={}))


def test_measured_but_not_judged_is_its_own_word() -> None:
    told = data.STORY[0]
    text = render(one_of(told, verdicts=(), finished="", results=(data.result_of(told),)))
    assert "<h1>1 measured</h1>" in text
    assert '<header class="unclear">' in text


def test_checked_only_and_interrupted_runs_say_so() -> None:
    told = data.STORY[0]
    result = structs.replace(data.result_of(told), evidence=(Evidence(slot=0, seed=1, error=0.0),))
    text = render(one_of(told, results=(result,), verdicts=(), finished=""))
    assert "<h1>1 checked</h1>" in text
    assert "This run was interrupted" in text


def hostile_run(text: str) -> tuple[Run, Mapping[str, BaselineEntry]]:
    """Return a run with the text in every place where a pack, a store or git may have put it."""
    told = replace(data.STORY[9], reason=text)
    run = data.run_of((told, data.STORY[24]))
    case = structs.replace(run.variants[0].case, doc=text, file=text, source=text, tags=(text,))
    case = structs.replace(case, pack=text, name=text)
    variants = tuple(structs.replace(one, case=case, id=f"{one.id}{text}") for one in run.variants)
    verdicts = tuple(
        structs.replace(v, variant=f"{v.variant}{text}", reason=text) for v in run.verdicts
    )
    results = [
        structs.replace(r, variant=f"{r.variant}{text}", reason=text, output=text)
        for r in run.results
    ]
    evidence = tuple(
        structs.replace(one, notes=(text,), backend=text, exact={"bytes": 1.0})
        for one in results[0].evidence
    )
    facts = structs.replace(run.facts, name=text, environment={text: text, "driver": text})
    run = structs.replace(
        run,
        facts=facts,
        sku=structs.replace(run.sku, slug=text, name=text),
        variants=variants,
        verdicts=verdicts,
        results=(structs.replace(results[0], evidence=evidence), *results[1:]),
        claims=(structs.replace(run.claims[0], claim=text, reason=text, source=text),),
        notes=(text,),
        commit=text,
        command=text,
    )
    entry = structs.replace(data.entry_of(told), state={text: text, "driver": text})
    return run, {variants[0].id: entry}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text(text: str) -> None:
    run, baselines = hostile_run(text)
    reader = _Reader(html(read(run, baselines=baselines, source=text)))
    assert reader.open == []
    assert reader.text.count(text) >= 10
    assert [tag for tag, _ in reader.elements].count("script") == 1
    assert [tag for tag, _ in reader.elements].count("style") == 1
    assert {tag for tag, _ in reader.elements} & {"img", "b2", "raw"} == set()
    assert [name for _, held in reader.elements for name in held if name.startswith("on")] == []
    assert all(link.startswith(("#", "https://")) for link in reader.values("href"))
    assert all(re.fullmatch(r"[a-z0-9-]+", anchor) for anchor in reader.values("id"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text_in_markdown(text: str) -> None:
    run, baselines = hostile_run(text)
    shown = markdown(read(run, baselines=baselines, source=text))
    assert re.findall(r"<(?!/?(?:details|summary)>)", shown) == []
    assert re.search(r"(?<!\\)\]\(", shown) is None


def test_markdown_starts_with_the_outcome() -> None:
    lines = markdown(read(data.run_of(), baselines=data.baselines_of(), source=SOURCE)).splitlines()
    assert lines[0].endswith("1 disturbed, 2 unclear of 28 variants; 1 claim broken, 3 skipped")
    visible = "\n".join(lines).partition("<details>")[0].partition("Broken claims:")[0]
    assert visible.count("\n| ") - 2 == 10
    assert "4 more: see the report" in lines


def test_a_cause_says_what_no_column_does() -> None:
    told = data.STORY[1]
    run = data.run_of((told,))
    reasons = (because("clock_lost"), Reason("interval", {}), because("more_power"))
    verdict = structs.replace(run.verdicts[0], reasons=reasons)
    (subject,) = subjects(
        structs.replace(run, verdicts=(verdict,)), baselines={}, previous=None, history={}
    )
    assert cause(subject) == "; ".join(map(sentence, (reasons[0], reasons[2])))


def test_markdown_says_why_and_counts_claims_and_coverage() -> None:
    shown = markdown(read(data.run_of(), baselines=data.baselines_of(), source=SOURCE))
    assert "| ✕ crashed | compute.softmax" in shown
    assert "the worker died of SIGSEGV while measuring |" in shown
    assert "<summary>Claims: 3 others</summary>" in shown
    assert re.search(r"^\| compute \| \d+ \| \d+ \| .*3 skipped", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "shown"),
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
def test_markdown_lets_no_text_act(text: str, shown: str) -> None:
    assert summary.plain_summary(text) == shown


def test_markdown_of_a_huge_run_is_short() -> None:
    told = [replace(data.STORY[1], axes={"op": "copy" * 150, "n": n}) for n in range(900)]
    shown = markdown(read(data.run_of(tuple(told)), baselines={}, source=SOURCE))
    assert len(shown.encode()) < 20_000


def test_markdown_shows_ten_rows_and_counts_the_rest() -> None:
    story = tuple(replace(data.STORY[1], axes={"op": "copy", "n": n}) for n in range(30))
    shown = markdown(read(data.run_of(story), baselines={}, source=SOURCE))
    assert shown.count("slower | memory") == 10
    assert "\n20 more: see the report\n" in shown


def test_properties_are_plain_and_complete() -> None:
    told = data.STORY[1]
    found = dict(properties(data.result_of(told), data.verdict_of(told)))
    assert found["perf_verdict"] == "slower"
    assert found["perf_time_us_change"] == pytest.approx(0.0213)
    assert {type(value) for value in found.values()} <= {str, int, float}
    crashed = Result(variant="a", status=Status.CRASHED, reason="SIGSEGV")
    assert dict(properties(crashed, None))["perf_reason"] == "SIGSEGV"
    assert properties(None, None) == []


def test_written_report_has_four_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    run = data.run_of()
    for _ in range(2):
        book = read(run, baselines=data.baselines_of(), source=SOURCE)
        path = write_report(book, tmp_path)
    assert path == tmp_path / run.id / "index.html"
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["benchmark.json", "index.html", "summary.md", "verdict.json"]
    decision = json.loads((path.parent / "verdict.json").read_text("utf-8"))
    assert decision["fails"] is True
    assert decision["counts"]["slower"] == 3
    assert len(decision["variants"]) == len(data.STORY)


def test_report_that_cannot_be_written_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, f"no space for {target} from {self}")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StoreError, match="cannot write the report: no space"):
        write_report(read(data.run_of(()), baselines={}), tmp_path)
    assert list((tmp_path / data.run_of().id).iterdir()) == []


def test_a_report_is_written_below_its_folder_alone(tmp_path: Path) -> None:
    run = data.run_of(())
    folder, out = tmp_path / "reports", tmp_path / "out"
    out.mkdir()
    folder.mkdir()
    for odd in (str(out), "..", "../out"):
        with pytest.raises(StoreError, match="cannot be a file name"):
            write_report(read(structs.replace(run, id=odd), baselines={}), folder)
    (folder / run.id).symlink_to(out)
    with pytest.raises(StoreError, match="a link leads out of the folder"):
        write_report(read(run, baselines={}), folder)
    assert not list(out.iterdir())


def quiet(count: int) -> Run:
    told = data.STORY[0]
    return data.run_of(tuple(replace(told, axes={"op": "copy", "n": n}) for n in range(count)))


def test_quiet_variants_of_a_large_page_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "FULL_DETAIL", 40)
    small, large = (html(read(quiet(count), baselines={}, source=SOURCE)) for count in (41, 61))
    assert (len(large.encode()) - len(small.encode())) / 20 < 3200
    assert "in short" in large


def test_page_of_very_many_changes_tells_the_first_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "FULL_DETAIL", 40)
    slower = replace(data.STORY[1], word=Word.SLOWER)
    story = tuple(replace(slower, axes={"op": "copy", "n": n}) for n in range(61))
    book = read(data.run_of(story), baselines=data.baselines_of(story), source=SOURCE)
    found = page.sections(book)
    assert [one.is_full for one in found] == [True] * 40 + [False] * 21
    text = html(book)
    assert all(one.row.subject.anchor in text for one in found)


def test_quiet_variant_without_evidence_fits_a_large_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "FULL_DETAIL", 0)
    told = data.STORY[0]
    result = Result(variant=data.variant_of(told).id, status=Status.OK)
    assert "No change in 1 variant" in render(one_of(told, results=(result,)))


def test_unclear_run_has_the_tone_of_unclear() -> None:
    assert '<header class="unclear">' in render(one_of(replace(data.STORY[0], word=Word.UNCLEAR)))


def test_work_without_bytes_or_operations_has_no_rate() -> None:
    text = render(one_of(replace(data.STORY[0], work=Work())))
    assert "GB/s" not in text
    assert "Bytes moved" not in text


def test_accepted_card_without_values_is_left_out() -> None:
    told = data.STORY[0]
    entry = data.entry_of(told)
    metric = structs.replace(entry.metrics["time_us"], values={"aaaa": (), "bbbb": (128.0,)})
    entry = structs.replace(entry, metrics={"time_us": metric})
    text = html(read(one_of(told), baselines={entry.variant: entry}))
    assert "baseline · unit bbbb" in text
    assert "unit aaaa" not in text


def test_style_and_script_stay_small() -> None:
    assert sum(len(inline(name).text.encode()) for name in ("style.css", "app.js")) <= 20_480


def tones() -> Iterator[str]:
    from perfsuite.report import data as marks

    yield from {mark.tone for mark in marks.MARKS.values()}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "paper"), [(0, "#f2f3f4"), (1, "#24282d")])
def test_tones_are_readable_on_every_paper(theme: int, paper: str) -> None:
    style = str(inline("style.css").text)
    roots = re.findall(r":root \{([^}]*)\}", style)
    defined = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})", roots[theme]))
    for tone in tones():
        light, dark = sorted((luminance(defined[tone]), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, tone


def test_book_of_nothing_is_a_page_too() -> None:
    empty = Run(
        id="r",
        started="",
        command="",
        sku=data.run_of(()).sku,
        facts=DeviceFacts(device="fake", name="", unit="", identity={}),
        settings=data.run_of(()).settings,
    )
    assert "<h1>No variant ran</h1>" in html(read(empty, baselines={}))
    assert read(empty, baselines={}, source="", previous=None).fails is False


def test_change_without_interval_is_drawn() -> None:
    told = data.STORY[0]
    flat: Change = structs.replace(
        data.change_of(told), theta=0.0, low=0.0, high=0.0, gate=0.0, threshold=0.0
    )
    verdict = Verdict(variant=data.variant_of(told).id, word=Word.SAME, reason="", changes=(flat,))
    assert "0.00" in render(one_of(told, verdicts=(verdict,)))


def test_confirmed_result_is_the_one_that_counts() -> None:
    told = data.STORY[1]
    crashed = structs.replace(
        data.result_of(told, Stage.CONFIRM), status=Status.CRASHED, evidence=()
    )
    text = render(one_of(told, results=(data.result_of(told), crashed), verdicts=()))
    assert "1 failed of 1 variant" in text
