"""Waivers and quarantine: what they excuse, until when, and what a bad file says."""

from __future__ import annotations

import json
import subprocess
from datetime import date
from pathlib import Path

import pytest
from arms_data import PLANTED, last, perf, project_in
from msgspec.structs import replace
from store_data import planned, variant
from test_baselines import MERGE
from test_runner import Log, request, watched

from perfsuite.boundary import StoreError
from perfsuite.model import (
    Change,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    Revision,
    Run,
    Verdict,
    Word,
    because,
)
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.report.data import read
from perfsuite.report.html import write_report
from perfsuite.report.terminal import summary
from perfsuite.report.text import properties
from perfsuite.run.run import Outcome, execute

pytest_plugins = ["pytester"]

TODAY = date(2026, 11, 22)
ISSUE = "https://example.org/issues/7"
COPY = variant("copy", 1024)


def waiver(select: str = "memory.copy[*]", **more: object) -> str:
    fields = {"select": select, "reason": "new driver", "issue": ISSUE, "up_to": "+8 %", **more}
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items() if value is not None]
    return "\n".join(["[[waiver]]", *lines, "expires = 2026-12-01", ""])


def quarantine(select: str = "memory.copy[*]", expires: str = "2026-12-01") -> str:
    return f"[[quarantine]]\nselect = '{select}'\nreason = 'flaky'\nexpires = {expires}\n"


def load(folder: Path, text: str, today: date = TODAY) -> Exceptions:
    (folder / "exceptions.toml").write_text(text, encoding="utf-8")
    return Exceptions.load([folder], today)


def slower(theta: float) -> Verdict:
    change = Change(
        metric="time_us", unit="us", baseline=100, current=100 * (1 + theta), theta=theta,
        low=theta - 0.001, high=theta + 0.001, threshold=0.0025, gate=0.01, detectable=0.004,
    )  # fmt: skip
    return Verdict(
        variant=COPY.id, word=Word.SLOWER, reason="slower", changes=(change,), fails=True
    )


def judged(exceptions: Exceptions, theta: float, run: Run | None = None) -> Verdict:
    (found,) = exceptions.applied([slower(theta)], run or planned(COPY))
    return found


def test_a_waived_regression_stays_slower_and_does_not_fail(tmp_path: Path) -> None:
    found = judged(load(tmp_path, waiver()), 0.06)
    assert (found.word, found.fails) == (Word.SLOWER, False)
    assert str(found.excepted) == f"waived until 2026-12-01 up to +8.0%: new driver ({ISSUE})"


def test_what_is_worse_than_waived_fails_and_says_so(tmp_path: Path) -> None:
    found = judged(load(tmp_path, waiver()), 0.09)
    assert (found.fails, found.excepted) == (True, None)
    why = because("worse_than_waived", theta=0.09, up_to=0.08, issue=ISSUE)
    assert found.reasons[0] == why


@pytest.mark.parametrize(("day", "fails"), [(date(2026, 12, 1), False), (date(2026, 12, 2), True)])
def test_an_exception_acts_to_the_end_of_its_day(tmp_path: Path, *, day: date, fails: bool) -> None:
    for text in (waiver(), quarantine()):
        exceptions = load(tmp_path, text, day)
        assert judged(exceptions, 0.06).fails is fails
        (note,) = exceptions.notes(planned(COPY))
        assert ("acts no more: it expired on 2026-12-01" in note) is fails


def test_a_waiver_is_no_answer_to_a_comparison_with_a_revision(tmp_path: Path) -> None:
    run = replace(planned(COPY), against=Revision("a" * 40, "main"))
    assert judged(load(tmp_path, waiver()), 0.06, run).fails
    assert not judged(load(tmp_path, quarantine()), 0.06, run).fails


@pytest.mark.parametrize(
    ("select", "is_covered"),
    [
        ("memory.copy[n=1024]", True),
        ("memory.copy[n=*]", True),
        ("*.copy*", True),
        ("memory.*", True),
        ("n>=1000,case=copy", True),
        ("pack=memory", True),
        ("n=7", False),
        ("memory.copy", False),
        ("memory.copy[nm=1024]", False),
        ("nowhere=1", False),
    ],
)
def test_a_rule_selects_by_conditions_or_glob(
    tmp_path: Path, *, select: str, is_covered: bool
) -> None:
    (rule,) = load(tmp_path, quarantine(select)).rules
    assert rule.accepts(COPY) is is_covered


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (f"{quarantine()}\n[[waiver]\n", "exceptions.toml", "not valid TOML: .* line 6"),
        (f"{quarantine()}\n{waiver(up_to='much')}", "line 6", "key 'up_to' is 'much'"),
        (waiver(issue="soon"), "line 1", "key 'issue' is 'soon'"),
        (waiver(up_to=None), "line 1", "missing required field `up_to`"),
        (waiver(severity="high"), "line 1", "unknown field `severity`"),
        (quarantine(expires="'soon'"), "line 1", "date - at .*expires"),
        (quarantine(select=" "), "line 1", "key 'select' is empty"),
        (quarantine(select="n=1,,"), "line 1", "which is no condition"),
        ("[quarantine]\nselect = 'x'\n", "exceptions.toml", "Expected `array`.*quarantine"),
        ("version = 1\n", "exceptions.toml", "unknown field `version`"),
        ("a = '\udcff'", "exceptions.toml", "not valid TOML"),
        (f"a = {'9' * 5000}", "exceptions.toml", "not valid TOML"),
        (
            f"[[waiver]]\nselect = {'[' * 200}{']' * 200}",
            "exceptions.toml",
            "Expected `str`",
        ),
        (f"a = {'[' * 50_000}", "exceptions.toml", "not valid TOML"),
    ],
)
def test_a_bad_file_names_line_and_remedy(tmp_path: Path, text: str, where: str, what: str) -> None:
    path = tmp_path / "exceptions.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StoreError, match=what) as caught:
        Exceptions.load([tmp_path], TODAY)
    assert where in caught.value.where
    assert caught.value.remedy


def test_what_is_excepted_breaks_no_claim(tmp_path: Path) -> None:
    claim = ClaimInstance(
        id="memory.twice", pack="memory", name="twice", faster=COPY.id, than="b", by=2, source="s"
    )
    broken = ClaimVerdict(
        claim=claim.id, word=ClaimWord.BROKEN, reason="was 2", required=2, source="s", fails=True
    )
    for text, theta, word, fails in (
        (quarantine(), 0.2, ClaimWord.NOT_APPLICABLE, False),
        (waiver(), 0.05, ClaimWord.BROKEN, False),
        (waiver(), 0.2, ClaimWord.BROKEN, True),
    ):
        exceptions = load(tmp_path, text)
        asked = replace(planned(COPY), instances=(claim,))
        run = replace(asked, verdicts=exceptions.applied([slower(theta)], asked))
        (found,) = exceptions.claims([broken], run)
        assert (found.word, found.fails) == (word, fails)


HOSTILE = "<script>alert(1)</script> \\u001b[2J"


def second_night(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Outcome:
    """Two runs on the fake device, the second slower by 3 % in one variant."""
    execute(request(folder), Log())
    monkeypatch.setenv("FACTOR_200", "1.03")
    exceptions = load(folder, text)
    return execute(request(folder, exceptions=exceptions), Log())


def test_an_excepted_verdict_is_shown_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = waiver("us=200").replace("new driver", HOSTILE)
    outcome = second_night(tmp_path, monkeypatch, text)
    book = read(outcome.run, baselines=outcome.baselines, source=outcome.source)
    assert not book.fails
    page = write_report(book, tmp_path / "reports")
    html, terminal = page.read_text("utf-8"), "\n".join(summary(book))
    markdown = (page.parent / "summary.md").read_text("utf-8")
    for text in (html, markdown.replace("\\", ""), terminal):
        assert "waived until 2026-12-01" in text
        assert "slower" in text
    assert "<script>alert" not in html + markdown
    assert "\x1b" not in terminal
    decided = json.loads((page.parent / "verdict.json").read_text("utf-8"))
    excepted = [one["verdict"]["excepted"] for one in decided["variants"]]
    assert [one["until"] for one in excepted if one] == ["2026-12-01"]
    told = dict(properties(None, outcome.run.verdicts[1]))
    assert told["perf_excepted"] == "waiver"
    assert (told["perf_excepted_until"], told["perf_excepted_issue"]) == ("2026-12-01", ISSUE)


def test_a_quarantined_canary_shifts_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(watched(tmp_path), Log())
    for us in (50, 100, 200, 400):
        monkeypatch.setenv(f"FACTOR_{us}", "1.03")
    exceptions = load(tmp_path, quarantine("us=50"))
    run = execute(watched(tmp_path, exceptions=exceptions), Log()).run
    assert run.shift is None
    assert [each.word for each in run.verdicts] == [Word.SLOWER] * 3


@pytest.fixture
def nightly(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose second night is slower than its baseline by 30 % in one variant."""
    project = project_in(pytester, monkeypatch)
    perf(project, "--perf-accept", "--perf-reason=first")
    (project.path / "speed.py").write_text(PLANTED, encoding="utf-8")
    return project


def test_a_bad_file_is_told_before_anything_is_measured(nightly: pytest.Pytester) -> None:
    before = last(nightly).id
    (nightly.path / "baselines" / "exceptions.toml").write_text("[[waiver]]\n", encoding="utf-8")
    result = perf(nightly)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*missing required field*", "*exceptions.toml, line 1*", "*do: *"])
    assert last(nightly).id == before


def test_neighbouring_exceptions_of_two_people_merge(tmp_path: Path) -> None:
    base = [waiver("memory.add[*]"), waiver("memory.copy[*]"), waiver("memory.scale[*]")]
    sides = {
        "ours": [base[0].replace("2026-12-01", "2027-01-15"), *base[1:], quarantine("us=200")],
        "base": base,
        "theirs": [base[0], base[1].replace("+8 %", "+9 %"), quarantine("n=7"), base[2]],
    }
    for name, entries in sides.items():
        (tmp_path / name).write_text("\n".join(entries), encoding="utf-8")
    paths = [tmp_path / name for name in sides]
    merged = subprocess.run([*MERGE, *paths], capture_output=True, check=False)
    assert merged.returncode == 0, merged.stdout.decode()
    rules = load(tmp_path, merged.stdout.decode()).rules
    assert len(rules) == 5
    assert {rule.entry.select for rule in rules} >= {"n=7", "us=200"}
