"""A run is told completely and safely: on its page, on a terminal, and as text for other tools."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report_data as data
from report_data import CLAIMS, INSTANCES, SOURCE_FILE, STORY, replace
from store_data import changed, ran

from perfsuite.boundary import StoreError, plain
from perfsuite.model import (
    BaselineEntry,
    ClaimWord,
    DeviceFacts,
    Evidence,
    Expected,
    Metric,
    Reason,
    Result,
    Revision,
    Run,
    Section,
    Status,
    Verdict,
    Word,
    Work,
)
from perfsuite.report import data as report
from perfsuite.report import files, terminal, view
from perfsuite.report.data import RunView, VariantView, read
from perfsuite.report.files import prose, render_beside, render_page, write_report
from perfsuite.report.terminal import Ticker, accounts_of
from perfsuite.run.expected import find_expected, source_of
from perfsuite.run.run import entries_in
from perfsuite.store.runs import load_run

GOLD = Path(__file__).parent / "gold"
SCHEMA = Path(__file__).parents[1] / "docs" / "verdict.schema.json"
EXAMPLE = Path(__file__).parents[1] / "reports" / "example"
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1) onmouseover='alert(1)",
    "javascript:alert(1)",
    "</style><style>*{display:none}",
    "{{ 7*7 }}{% raw %}[click](javascript:alert(1)) | `x` <b>",
)
COPY, SLOWER, UNCLEAR, CRASHED = STORY[0], STORY[1], STORY[12], STORY[24]
EVERYTHING = (
    "7 of 28 variants fail: 1 wrong, 1 crashed, 1 timed-out, 1 error, 1 over-budget, 2 slower; "
    "1 claim fails"
)


# Of every kind of reason.
FACTS: dict[str, Any] = json.loads((GOLD.parent / "data" / "reasons.json").read_text("utf-8"))


class Reader(HTMLParser):
    """Collects elements and attributes, and text but scripts; sees that what opens is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open += [tag] if tag not in {"meta", "link", "br", "wbr", "input", "img"} else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, found: str) -> None:
        self.text += found.replace(view.SPACE, " ") * (not {"script", "style"} & {*self.open})

    def values(self, attribute: str) -> list[str]:
        return [held[attribute] or "" for _, held in self.elements if attribute in held]


def told_of(word: Word | Status) -> data.Told:
    return next(told for told in STORY if told.word is word)


def read_of(*story: data.Told, **changes: Any) -> RunView:
    told = story or STORY
    run = changed(data.run_of(told), **changes)
    return read(run, baselines=data.baselines_of(told), source="baseline nvidia-h200")


def alone(told: data.Told, **changes: Any) -> RunView:
    return read_of(told, **{"claims": (), **changes})


def view_of(told: data.Told = COPY, **changes: Any) -> VariantView:
    return replace(read_of(told).variants[0], **changes)


def counted(**exact: float) -> Result:
    return replace(data.result_of(COPY), evidence=(Evidence(slot=0, seed=1, exact=exact),))


def is_as_it_was(actual: str, expected: Path) -> None:
    if not expected.exists() or actual != expected.read_text("utf-8"):
        kept = GOLD / "actual" / expected.name
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(actual, "utf-8")
        pytest.fail(f"it differs: diff {expected} {kept}, then copy it over if it is right")


def test_every_kind_of_reason_has_its_sentence() -> None:
    told = [f"{kind}: {view.sentence(Reason(kind, FACTS))}" for kind in view.SENTENCES]
    for of, word in (("code", "slower"), ("time", "same"), ("", "unclear")):
        facts = {**FACTS, "of": of, "word": word, "better": "lower" if of else "higher"}
        told.append(f"interval: {view.sentence(Reason('interval', facts))}")
    assert "\n".join(told) + "\n" == GOLD.joinpath("sentences.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (view.time(234.0, 0.3), "230 us"),
        (view.time(234.0, 4.0), "200 us"),  # as much noise as value leaves one digit
        (view.time(0.0421, None), "42.1 ns"),
        (view.time(0.0, 0.01), "0 ns"),
        (view.time(998.7, 0.001, like=1002.0), "0.9987 ms"),
        (view.time(None, None), "-"),
        (view.percent(0.00001, half_width=0.0008), "0.00 %"),
        (view.percent(12.5), "+1 250.0 %"),
        (view.percent(None), "-"),
        ("|".join(view.beside(100.04, 109.96, "us")), "100.04 us|109.96 us|+9.9 %"),
        (view.beside(4.0, 4.0, "")[2], "="),
        (view.beside(0.0, 4.0, "")[2], "from none"),
        (view.beside(None, 4.0, "")[2], "-"),
        (view.amount(0.0634, "TFLOP/s"), "63.4 GFLOP/s"),
        (view.amount(536870912, "launches"), "536 870 912 launches"),
        (view.amount(2.5, "1/s"), "2.50 per second"),
        (view.share(0.00001), "0.0010 %"),
        (view.share(0.0996), "10 %"),
        (view.duration(59.7), "1 min 0 s"),
        (view.duration(7260), "2 h 1 min"),
        (view.moment("2026-11-21T11:30:00+01:00"), "2026-11-21 10:30 UTC"),
        (view.moment("yesterday"), "yesterday"),
        (view.commit("9c1e4f70a2b8-dirty"), "9c1e4f70a2b8-dirty"),
        (view.command("a.b[n=; rm ~]"), "pytest --perf --perf-select 'a.b[n=; rm ~]'"),
        *((view.href(each), "") for each in ("javascript:alert(1)", "data:text/html,x", "ftp://a")),
        *((view.href(each), "") for each in (" https://a.b", 'https://a.b" onclick="x')),
    ],
)
def test_values_are_told_with_their_unit_to_their_noise(shown: str, told: str) -> None:
    assert shown.translate(view.PLAIN) == told


def test_every_word_has_a_mark_with_a_glyph_and_a_meaning() -> None:
    words = [word.value for word in itertools.chain(Word, Status, ClaimWord)]
    marks = [view.mark(word) for word in words if word != Status.OK]
    assert all(mark.meaning and mark.glyph for mark in marks)
    assert view.mark("haunted").word == "haunted"


@pytest.fixture(scope="module")
def shown() -> str:
    return render_page(read_of())


def test_page_is_as_it_was(shown: str) -> None:
    actual = re.sub(r"<(style|script)([^>]*)>.*?</\1>", r"<\1\2>", shown, flags=re.DOTALL)
    actual = re.sub(r"sha256-[\w+/=]+", "HASH", actual)
    is_as_it_was(re.sub(r' d="M[^"]{120,}"', ' d="DOTS"', actual), GOLD / "report.html")


def test_the_committed_example_is_rendered_from_its_run(tmp_path: Path) -> None:
    run = load_run(EXAMPLE / "run.jsonl")
    run = find_expected([EXAMPLE / "baselines"], tmp_path, run=run).hold(run)
    page = render_page(read(run, baselines=entries_in(run), source=source_of(run)))
    is_as_it_was(page, EXAMPLE / "index.html")


def test_texts_are_as_they_were(tmp_path: Path) -> None:
    run_view = data.explained()
    accounts = accounts_of(run_view)
    # A file that is not there is named to nobody.
    assert not [line for line in commands(run_view, tmp_path) if "file=" in line]
    (tmp_path / SOURCE_FILE).parent.mkdir(parents=True)
    (tmp_path / SOURCE_FILE).touch()
    told = {
        "terminal": "\n".join(terminal.summary(run_view)),
        "step": files.summary(run_view),
        "comment": files.comment(run_view),
        "annotations": "\n".join(commands(run_view, tmp_path)),
        **{name: account.text for name, account in accounts.items()},
    }
    text = "".join(f"==== {name}\n{each.strip()}\n\n" for name, each in told.items())
    is_as_it_was(text, GOLD / "texts.txt")
    assert ("perf_ratio", 1.06) in accounts[INSTANCES[2].id].properties
    errors = {dict(each.properties)["perf_status"] for each in accounts.values() if each.is_error}
    assert errors == {"crashed", "timed-out", "error"}
    assert "claims: " not in "".join(terminal.summary(read_of(claims=CLAIMS[:3])))
    huge = [replace(SLOWER, axes={"op": "copy" * 150, "n": n}) for n in range(90)]
    assert len(files.summary(read_of(*huge)).encode()) < 20_000


def test_a_comment_is_short_whatever_the_run_holds() -> None:
    words = "@<#" * 300  # each of these is longer where it is escaped
    # 25 groups of 50 variants, and 1,250 variants that are alone.
    cases = [f"memory.case{n % 50 if n % 2 else n}" for n in range(2_500)]
    many = [replace(SLOWER, case=c, axes={"op": "_" * 900, "n": n}) for n, c in enumerate(cases)]
    broken = replace(CLAIMS[2], claim=words, reason=words, word=ClaimWord.BROKEN)
    declared = (replace(INSTANCES[2], id=words),)
    comment = files.comment(read_of(*many, claims=(broken,), instances=declared))
    assert len(comment) < files.MOST_CHARACTERS
    first, *rest = comment.splitlines()
    assert re.match(r"### ❌ memory\.case\d+: all 50 slower by 2\.1 ", first)
    rows = [line for line in rest if line.startswith("| ▲")]
    assert 1 <= len(rows) <= files.MOST_ROWS
    assert f"{1_276 - len(rows)} more: see the report" in rest


def test_page_is_well_formed_and_loads_nothing(shown: str) -> None:
    reader = Reader(shown)
    ids, tags = reader.values("id"), [tag for tag, _ in reader.elements]
    assert reader.open == []
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in reader.values("href") if link.startswith("#")} <= set(ids)
    policy = next(v for v in reader.values("content") if "default-src" in v)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert {*tags} & {"link", "img", "iframe", "object", "base"} == set()
    assert reader.values("src") + reader.values("style") == []
    assert re.search(r"@import|url\(", shown) is None
    assert tags.count("caption") == tags.count("table")
    assert all("scope" in held for tag, held in reader.elements if tag == "th")


@pytest.mark.parametrize(
    ("run_view", "headline", "tone"),
    [
        (alone(COPY), "No change in 1 variant", "faster"),
        (
            alone(replace(COPY, word=Word.NEW)),
            "1 new variant, nothing to compare with yet",
            "faster",
        ),
        (alone(replace(COPY, word=Word.FASTER)), "1 faster", "faster"),
        (alone(replace(COPY, word=Word.UNCLEAR)), "1 unclear of 1 variant", "unclear"),
        (alone(replace(COPY, word=Status.SKIPPED)), "No variant ran: 1 skipped", "other"),
        (alone(COPY, verdicts=(), finished=""), "the run was interrupted; 1 measured", "unclear"),
        (alone(COPY, results=(counted(),), verdicts=()), "1 checked", "faster"),
        (alone(COPY, results=()), "No variant ran: 1 not run", "other"),
        (alone(COPY, variants=()), "No variant ran", "other"),
        (read_of(), EVERYTHING, "slower"),
    ],
)
def test_headline_counts_what_needs_a_reader(run_view: RunView, headline: str, tone: str) -> None:
    assert (run_view.headline, run_view.tone) == (headline, tone)


def test_a_page_follows_what_the_device_has() -> None:
    result = data.result_of(COPY)
    blocks = tuple(replace(block, cycles=(), health=None) for block in result.evidence[0].blocks)
    evidence = tuple(replace(one, blocks=blocks) for one in result.evidence)
    facts = DeviceFacts(device="cpu", name="AMD EPYC", unit="cafe", identity={"model": "EPYC"})
    run = changed(data.run_of((COPY,)), results=(replace(result, evidence=evidence),), claims=())
    run = replace(run, facts=facts, sku=replace(run.sku, slug="cpu-epyc"))
    page = render_page(read(run, baselines={}))
    assert '"links":{},"operations":{}' in page
    assert view_of(replace(COPY, work=Work())).place is None
    words = Reader(page).text
    assert re.findall(r"GPU|SM c|SM-|hbm|nvlink|MIG|ECC|card|β|by the driver", words) == []
    assert "268 MB read, 268 MB written" in words


def test_the_page_of_a_comparison_shows_what_differs() -> None:
    run, previous = data.run_of(), data.previous_of()
    page = render_page(read(run, baselines=data.baselines_of(), previous=previous))
    changed = re.findall(r'<tr class="d"><th scope="row">(\w+)</th><td>([^<]*)</td>', page)
    assert ("driver", "575.57.08") in changed
    assert "baseline 1 · GPU 3f2a" in page
    assert "9c1e4f70a2b8 against 41b7c2d9e6f0" in " ".join(Reader(page).text.split())
    there = Revision("", "", "old", {"driver": "1.2"})
    page = render_page(read(replace(run, against=there), baselines={}, previous=previous))
    assert '<th scope="row">driver</th><td>1.2</td>' in page
    one = run.variants[0].variant
    twins = replace(run, variants=ran(one, replace(one, id=one.id.replace("=copy", "=COPY"))))
    assert len({one.anchor for one in read(twins, baselines={}).variants}) == 2


def answer(run_view: RunView) -> str:
    """Return the text above the table."""
    return " ".join(Reader(render_page(run_view)).text.partition("+ is slower")[0].split())


def since(*story: data.Told) -> Run:
    """Return a run that is held against an earlier commit."""
    run, known = data.run_of(story), Expected(commit="41b7c2d9e6f0", environment={"torch": "2.1"})
    held = tuple(replace(one, expected=known) for one in run.variants)
    return changed(run, claims=(), notes=(), variants=held, remote="https://git.io/a/b")


def test_what_has_no_noise_is_not_measured_in_turns_and_its_own_source_is_shown() -> None:
    kernel = replace(SLOWER, case="codegen.kernel", axes={"kernel": "memory.copy_rows"})
    run = since(kernel, COPY)
    worse = replace(run.verdicts[0].changes[0], metric="spills", low=0.02, high=0.02)
    exact = replace(worse, metric="loads", theta=-0.1, low=-0.1, high=-0.1), worse
    run = run.having(verdicts=[replace(each, changes=exact) for each in run.verdicts])
    told = answer(read(run, baselines=data.baselines_of((kernel, COPY))))
    assert "git diff 41b7c2d9e6f0 9c1e4f70a2b8 -- plugins/memory/perfsuite_memory" in told
    assert ("slower in spills" in told, "--perf-against" in told) == (True, False)


def test_the_first_screen_is_the_answer() -> None:
    slower = [replace(SLOWER, axes={"op": "copy", "n": n}) for n in (1, 2)]
    run, entries = since(*slower, COPY), data.baselines_of((*slower, COPY))
    page = Reader(render_page(read(run, baselines=entries)))
    commit = "https://git.io/a/b/commit/9c1e4f70a2b85d3340cc"
    assert page.values("href").count(commit) == 2  # in the head and below
    assert commit.replace("commit/", "compare/41b7c2d9e6f0...") in page.values("href")
    assert f"commit [9c1e4f70a2b8]({commit})" in files.comment(read(run, baselines=entries))
    told = answer(read(run, baselines=entries, source="baseline nvidia-h200"))
    assert "memory.stream 2 of 3 slower by 2.1 % all fail" in told
    assert "1 unchanged. The same within 0.19 %." in told
    coded = [replace(v, word=Word.SAME_CODE) if v.word is Word.SAME else v for v in run.verdicts]
    of_code = answer(read(run.having(verdicts=coded), baselines=entries))
    assert "1 of the same code. Their environment is not judged." in of_code
    assert "unchanged" not in of_code
    assert "9c1e4f70a2b8 against 41b7c2d9e6f0, baseline nvidia-h200, measured 2026-11-20" in told
    assert "torch 2.1 \u2192 2.11.0" in told
    near = [Reason(kind, {"share": 0.004}) for kind in ("detectable", "within")]
    beside = [replace(v, in_turns=True, reasons=(*v.reasons, *near)) for v in run.verdicts]
    views = read(run.having(verdicts=beside), baselines=entries).variants
    assert all(a.environment == b.environment for a, b in filter(None, (o.sides for o in views)))
    assert [one.because.count("0.40") for one in views] == [0, 0, 2]
    names = "memory.stream[op=copy,n=1] memory.stream[op=copy,n=2]"
    again = f"pytest --perf --perf-select '{names}' --perf-tier=nightly"
    assert f"{again} --perf-against=41b7c2d9e6f0" in told
    assert "git diff 41b7c2d9e6f0 9c1e4f70a2b8 -- plugins/memory/perfsuite_memory" in told


@pytest.mark.parametrize(
    ("run_view", "is_offered"),
    [
        *((alone(each), True) for each in (SLOWER, replace(COPY, word=Word.NEW))),
        *((alone(each), False) for each in (COPY, UNCLEAR, CRASHED)),
        (alone(SLOWER, against=Revision(commit="abc", name="HEAD")), False),
    ],
)
def test_only_what_may_be_meant_is_offered_to_be_accepted(
    run_view: RunView, *, is_offered: bool
) -> None:
    told = answer(run_view)
    assert ("perfsuite baseline accept" in told) == is_offered
    assert ("What to do next Nothing." in told) == (run_view.headline == "No change in 1 variant")


def test_of_a_lost_clock_time_and_cycles_are_told_and_no_corrected_number() -> None:
    (verdict,) = data.run_of((UNCLEAR,)).verdicts
    change = replace(verdict.changes[0], time_change=0.08, clock_change=-0.08)
    verdict = replace(verdict, changes=(change,), reasons=(Reason("clock_lost"),))
    run_view = alone(UNCLEAR, verdicts=(verdict,))
    assert run_view.variants[0].shown.change.translate(view.PLAIN) == "time +8.3 %, cycles 0.00 %"
    assert 'class="bar unclear"' not in render_page(run_view)


def test_prose_is_text_but_what_stands_in_backticks() -> None:
    assert prose('``a<b>`` of `n` is "x"') == [
        "<code>a&lt;b&gt;</code> of <code>n</code> is &#34;x&#34;"
    ]
    assert all("<" not in prose(source)[0] for source in ("a ` b", "``", "`a``", "&lt;", "<code>"))
    assert prose("One.\n\n  \nTwo\nlines.") == ["One.", "Two\nlines."]


def test_the_metric_that_was_judged_stands_in_the_row() -> None:
    case = data.variant_of(COPY).case
    declared = (Metric("regs", "regs"), Metric("tokens_per_s", "1/s", "higher"))
    variant = replace(data.variant_of(COPY), case=replace(case, metrics=declared))
    results = (counted(b=5, tokens_per_s=7, regs=40),)
    bare = view_of(variant=variant, results=results, verdict=None)
    assert bare.shown[:3] == ("regs", view.NOTHING, f"40{view.SPACE}regs")
    change = replace(data.change_of(COPY), metric="tokens_per_s", unit="1/s", theta=0.5, low=0.5)
    change = replace(change, high=0.5, threshold=0.0, baseline=14.0, current=7.0)
    verdict = Verdict(variant=variant.id, word=Word.SLOWER, changes=(change,))
    told = replace(bare, verdict=verdict).shown
    assert "|".join(told[1:3]).replace(view.SPACE, " ") == "14 per second|7 per second"
    both = replace(verdict, variant=bare.id, changes=(data.change_of(COPY), change))
    run_view = alone(COPY, verdicts=(both,))
    assert "tokens_per_s \u221250.0" in render_page(run_view)
    row = next(line for line in terminal.summary(run_view) if line.startswith("  slower"))
    assert re.split(r"  +", row)[2:5] == ["7 per second", "-50.0 %", "tokens_per_s"]
    now = {
        one.name: (one.unit, one.better)
        for one in view_of(results=(counted(other=5, energy_j=12),)).measured
    }
    assert now == {"other": ("", ""), "energy_j": ("J", "lower")}


def test_a_variant_is_measured_again_as_it_was() -> None:
    given = "pytest --perf '--perf-packs=my packs/acme' --perf-device=cpu -k softmax"
    told = f"{given} --override-ini=perf_gate=9 --override-ini=perf_seed=7"
    (one,) = read_of(COPY, command=told, against=Revision(commit="abc", name="HEAD")).variants
    kept = "'--perf-packs=my packs/acme' --perf-device=cpu --override-ini=perf_seed=7"
    assert one.command.endswith(f"' {kept} --perf-against=abc --perf-tier=nightly")
    claim = accounts_of(read_of(claims=CLAIMS[:1], command=told))[INSTANCES[0].id]
    assert f"'{INSTANCES[0].faster} {INSTANCES[0].than}' {kept} --perf-tier" in claim.text
    (one,) = read_of(COPY, command=f"{given} 'unclosed").variants
    assert "acme" not in one.command


def test_of_very_many_variants_the_urgent_are_told_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FULL_DETAIL", 40)
    run_view = read_of(*(replace(SLOWER, axes={"n": n}) for n in range(61)))
    assert (len(run_view.ran), len(run_view.full)) == (61, 10)
    page = render_page(run_view)
    assert all(f'id="{one.anchor}"' in page for one in run_view.variants)


def test_a_side_of_a_claim_that_is_not_in_the_run_is_named_in_whole() -> None:
    run_view = read_of(instances=(*INSTANCES[1:], replace(INSTANCES[0], than="a.b[n=1]")))
    assert "pinned=true over a.b[n=1]" in Reader(render_page(run_view)).text


def test_where_the_run_s_own_time_went() -> None:
    spent = {"start": 1.0, "measure": 1.0, "spin": 3.0}
    results = []
    for told, unit in zip(STORY, "ab", strict=False):
        one = Evidence(slot=0, seed=0, unit=unit, phases_s=spent, busy_s=2.0)
        ended = Result(variant=data.variant_of(told).id, status=Status.OK, evidence=(one,))
        results.append(ended)
    run_view = read_of(*STORY[:2], results=tuple(results), wall_s=8.0, phases_s={"open": 2.0})
    found = {name: (seconds, share) for name, seconds, share in view.phases_of(run_view.run)}
    assert (found["start"][0], found["spin"][0]) == (2.0, 6.0)
    assert found["busy"][1] == pytest.approx(0.2)


def test_runs_stand_beside_each_other() -> None:
    run = data.run_of(tuple(replace(told, time_us=told.time_us / 2) for told in STORY[1:]))
    facts = replace(run.facts, environment={HOSTILE[0]: HOSTILE[0], "driver": "590.1"})
    other = replace(run, id="other", sku=replace(run.sku, slug="b200"), facts=facts)
    run_views = [
        read(one, baselines={}) for one in (data.run_of(), replace(other, commit=HOSTILE[0]))
    ]
    page, same = render_beside(run_views), render_beside([run_views[0], run_views[0]])
    assert f"<b>2.00{view.TIMES}</b>" in page
    assert "<h1>nvidia-h200 · b200</h1>" in page
    assert "perfsuite compare A B" in same
    assert HOSTILE[0] not in page
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th>(.*)</tr>', page))
    assert rows["driver"] == "<td>580.159.03</td><td>590.1</td>"
    assert "sm_count" not in rows


def hostile_run(told: str) -> tuple[Run, Mapping[str, BaselineEntry]]:
    """Return a run with the text in every place where a pack, a store or git may have put it."""
    story = replace(STORY[9], reason=told)
    run = data.run_of((story, CRASHED))
    declared = [one.variant for one in run.variants]
    case = replace(declared[0].case, doc=told, file=told, source=told, tags=(told,))
    case = replace(case, pack=told, name=told)
    variants = tuple(replace(one, case=case, id=f"{one.id}{told}") for one in declared)
    verdicts = tuple(replace(v, variant=f"{v.variant}{told}", reason=told) for v in run.verdicts)
    results = []
    for result in run.results:
        noted = tuple(replace(one, notes=(told,), backend=told) for one in result.evidence)
        renamed = replace(result, variant=f"{result.variant}{told}", evidence=noted)
        results.append(replace(renamed, reason=told, output=told))
    run = changed(
        run,
        facts=replace(run.facts, name=told, environment={told: told, "driver": told}),
        sku=replace(run.sku, slug=told, name=told),
        variants=ran(*variants),
        verdicts=verdicts,
        results=tuple(results),
        instances=(replace(INSTANCES[0], id=told, name=told, pack=told, metric=told),),
        claims=(replace(CLAIMS[0], claim=told, reason=told, source=told),),
        notes=(told,),
        commit=told,
        remote=told,
        command=told,
    )
    return run, {variants[0].id: replace(data.entry_of(story), state={told: told, "driver": told})}


@pytest.mark.parametrize("told", HOSTILE)
def test_hostile_text_is_shown_as_text(told: str) -> None:
    run, baselines = hostile_run(told)
    section = Section(title=told, text=told, columns=("variant", told), rows=[("one", told)])
    run_view = read(run, baselines=baselines, source=told, sections=(section,))
    reader, empty = Reader(render_page(run_view)), Reader(render_page(read_of(COPY)))
    assert reader.open == []
    assert reader.text.count(told) >= 10
    tags, usual = ([tag for tag, _ in one.elements] for one in (reader, empty))
    assert [tags.count(one) for one in ("script", "style", "img", "b2", "raw")] == [
        usual.count(one) for one in ("script", "style", "img", "b2", "raw")
    ]
    assert [name for _, held in reader.elements for name in held if name.startswith("on")] == []
    assert all(link.startswith(("#", "https://")) for link in reader.values("href"))
    assert all(re.fullmatch(r"[a-z0-9-]+", anchor) for anchor in reader.values("id"))
    markdown = files.summary(run_view)
    assert re.findall(r"<(?!/?(?:details|summary)>)", markdown) == []
    assert re.search(r"(?<!\\)\]\(", markdown) is None


def test_markdown_lets_no_text_act() -> None:
    acting = {
        "@octocat": "\\@&#8203;octocat",
        "#12": "\\#&#8203;12",
        "https://x.example": "https:&#8203;//x.example",
        "www.x.example": "w&#8203;ww.x.example",
        ":rocket:": ":&#8203;rocket:",
        "a|b `c` <d>": "a\\|b \\`c\\` &lt;d&gt;",
        "&lt;b&gt; &#64;x": "&amp;lt;b&amp;gt; &amp;\\#&#8203;64;x",
        "two\nlines": "two lines",
    }
    assert {told: files.in_markdown(told) for told in acting} == acting


def test_written_report_has_five_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):
        path = write_report(read_of(), tmp_path)
    assert path == tmp_path / data.run_of().id / "index.html"
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["benchmark.json", "comment.md", "index.html", "summary.md", "verdict.json"]
    decision = json.loads((path.parent / "verdict.json").read_text("utf-8"))
    assert decision["fails"] is True
    assert decision["counts"]["slower"] == 3
    assert len(decision["variants"]) == len(STORY)


def test_a_report_is_written_below_its_folder_alone(tmp_path: Path) -> None:
    run, folder, out = data.run_of(()), tmp_path / "reports", tmp_path / "out"
    for each in (folder, out):
        each.mkdir()
    (folder / run.id).symlink_to(out)
    with pytest.raises(StoreError, match="a link leads out of the folder"):
        write_report(read(run, baselines={}), folder)
    assert not list(out.iterdir())


def test_verdict_json_is_as_its_schema_and_docs_say() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    is_as_it_was(files.json_schema(), SCHEMA)
    written = json.loads(files.verdict_json(read_of()))
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    assert list(validator.iter_errors(written)) == []
    wrong = {"schema": 1, "fails": "yes", "counts": {"same": "all"}, "run": None}
    assert all(list(validator.iter_errors({**written, key: wrong[key]})) for key in wrong)
    judged = next(one for one in written["variants"] if (one["verdict"] or {}).get("changes"))
    told = (written, judged, judged["verdict"], judged["verdict"]["changes"][0], *written["claims"])
    documented = SCHEMA.with_name("verdict.md").read_text("utf-8")
    assert {key for each in told for key in each if f"`{key}`" not in documented} == set()


def commands(run_view: RunView, folder: Path) -> list[str]:
    lines = list(files.commands_of(run_view, here=folder, workspace=folder))
    assert not {"\n", "\r"} & {*"".join(lines)}
    return lines


def test_at_most_ten_annotations_of_a_kind_the_worst_first(tmp_path: Path) -> None:
    slower = [replace(SLOWER, case=f"memory.c{n // 2}", axes={"n": n}) for n in range(30)]
    unclear = [replace(UNCLEAR, case=f"memory.u{n // 2}", axes={"n": n}) for n in range(20)]
    rest = [told for told in STORY if told.word in {Status.WRONG, Word.SAME, Word.FASTER}]
    found = commands(read_of(*slower, *unclear, *rest, claims=()), tmp_path)
    assert [line.split()[0] for line in found] == ["::error"] * 10 + ["::warning"] * 10
    assert re.findall(r"%3A (?:all \d |\d of \d )?(\w+)", "".join(found[:2])) == ["wrong", "slower"]
    assert "::and 7 more" in found[9]


def test_text_cannot_end_an_annotation_or_add_a_property(tmp_path: Path) -> None:
    told = "50 % of it\x1b[2J::error file=x,line=1::\r\n::set-output name=a::b %0A"
    broken = replace(CLAIMS[2], claim=f"c,{told}", reason=told, word=ClaimWord.BROKEN)
    declared = replace(INSTANCES[2], id=broken.claim, file="")
    (line,) = commands(read_of(COPY, claims=(broken,), instances=(declared,)), tmp_path)
    title, message = line.removeprefix("::error title=").split("::", 1)
    for mark, code in (("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C"), ("%", "%25")):
        title, message = title.replace(code, mark), message.replace(code, mark)
    assert (title, message.partition("fails; ")[2]) == (plain(f"broken: c,{told}"), plain(told))


def test_the_step_s_summary_is_appended_to_if_it_has_room(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    file.write_text("before\n")
    files.append_summary(read_of(), file)
    assert file.read_text("utf-8").startswith("before\n### ❌")
    file.write_bytes(b"x" * (files.MOST_BYTES - 10))
    files.append_summary(read_of(), file)
    assert file.stat().st_size == files.MOST_BYTES - 10


# On the terminal.


def test_of_many_items_ten_are_told_and_long_texts_are_cut() -> None:
    many = [replace(told_of(Word.SLOWER), axes={"n": n}) for n in range(25)]
    story = many[:20]
    crashed = replace(told_of(Status.CRASHED), reason="word " * 900)
    story += [crashed, *(replace(crashed, case=f"memory.c{n}") for n in range(12))]
    run = replace(data.run_of(tuple(story)), claims=(), notes=("a note",) * 12)
    run_view = read(run, baselines={})
    lines = terminal.summary(run_view, width=90)
    # Nothing that fails is left out, since pytest does not list it.
    assert sum(": crashed; fails" in line for line in lines) == 13
    pairs = itertools.pairwise(lines)
    assert sum("crashed; fails" in one and why.endswith("word ...") for one, why in pairs) == 3
    assert "  the last 4 in full: perfsuite why VARIANT" in lines
    # As one of a group, and in the table of numbers.
    assert lines.count("  memory.stream: all 20 slower by 2.1 %; all fail") == 1
    assert sum(line.startswith("  slower ") for line in lines) == 20
    assert lines[-1] == "note: 2 more: see the report"
    assert max(len(line) for line in lines if "pytest" not in line) <= 90
    assert all(line.isascii() for line in lines)
    # A file has room for all.
    assert max(map(len, terminal.summary(run_view))) > 3900
    for is_verbose in (False, True):
        lines = terminal.summary(read_of(*many, claims=()), is_verbose=is_verbose)
        assert lines.count("  ... and 5 variants more: -v shows all") == (not is_verbose)


def test_what_is_unclear_is_told_with_the_load_of_others() -> None:
    (quiet,) = read_of(told_of(Word.UNCLEAR)).variants
    process, loud = quiet.evidence[0], replace(data.HEALTH, foreign_percent=34.0)
    loaded = replace(process, blocks=(replace(process.blocks[0], health=loud),))
    results = tuple(replace(each, evidence=(loaded,)) for each in quiet.results)
    cause = replace(quiet, results=results).cause
    told = "the change may be anything from -4 to +6 %; the threshold is 0.25 %"
    assert terminal.plain(cause) == f"load by others up to 34 %; {told}"
    stored = replace(quiet.verdict, reasons=(Reason("stored_time"),))
    assert "stored one; the change may" in replace(quiet, verdict=stored).cause


def test_progress_is_a_line_for_what_matters_or_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    with Ticker(lines.append) as ticker:
        ticker.planned(3, data.FACTS, 4.0)
        ticker.phase("a.b[n=1]", "check")
        for at, status in enumerate((Status.OK, Status.CRASHED, Status.OK), start=1):
            ticker.finished(Result(variant=f"a.b[n={at}]", status=status), at, 3, 0.0)
        ticker.note("confirming 1")
    assert lines == [
        "perfsuite: 3 variants on NVIDIA H200, about 4.0 s",
        "[2/3] a.b[n=2]: crashed",
        "[3/3] a.b[n=3]: ok",
        "note: confirming 1",
    ]
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", screen)
    for name, value in (("COLUMNS", "200"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with Ticker(print) as ticker:
        ticker.planned(1, data.FACTS, 0.0)
        ticker.phase("w.fail[how=x]", "\x1b]0;mine\x07" + "check" * 100)
    assert "w.fail[how=x]" in screen.getvalue()
    assert "\x1b]0;" not in screen.getvalue()
    assert "check" * 5 not in screen.getvalue()
