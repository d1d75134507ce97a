"""Waivers and quarantine: what they excuse, until when, and what a bad file says."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from msgspec import structs
from store_data import TWICE, moved, planned, variant
from test_runner import Place, place, request, shared, slow_down, watched

from perfsuite.boundary import StoreError
from perfsuite.model import ClaimVerdict, ClaimWord, Revision, Verdict, Word
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.report.data import read
from perfsuite.report.files import properties, write_report
from perfsuite.report.terminal import summary
from perfsuite.run.expected import source_of
from perfsuite.run.run import entries_in

__all__ = ["place", "shared"]  # fixtures

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
    return Verdict(
        variant=COPY.id, word=Word.SLOWER, reason="slower", changes=(moved(theta),), fails=True
    )


AGAINST = Revision("a" * 40, "main")


@pytest.mark.parametrize(
    ("text", "theta", "against", "fails"),
    [
        (waiver(), 0.06, None, False),
        (waiver(), 0.09, None, True),
        (waiver(sku="nvidia-h200*"), 0.06, None, False),
        (waiver(sku="nvidia-b200"), 0.06, None, True),
        # To the end of the day that it names.
        (waiver().replace("12-01", "11-22"), 0.06, None, False),
        (waiver().replace("12-01", "11-21"), 0.06, None, True),
        (quarantine(expires="2026-11-22"), 0.5, None, False),
        (quarantine(expires="2026-11-21"), 0.5, None, True),
        # A known regression is no answer where the other revision has it as well.
        (waiver(), 0.06, AGAINST, True),
        (quarantine(), 0.06, AGAINST, False),
    ],
)
def test_what_is_excepted_fails_nothing(
    tmp_path: Path, *, text: str, theta: float, against: Revision | None, fails: bool
) -> None:
    exceptions = load(tmp_path, text)
    run = structs.replace(planned(COPY), against=against)
    (found,) = exceptions.applied([slower(theta)], run)
    assert (found.word, found.fails, bool(found.excepted)) == (Word.SLOWER, fails, not fails)
    assert any("acts no more" in note for note in exceptions.notes(run)) is ("11-21" in text)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (f"{quarantine()}\n[[waiver]\n", "exceptions.toml", "not valid TOML: .* line 6"),
        (f"{quarantine()}\n{waiver(up_to='much')}", "line 6", "up_to"),
        (waiver(issue="soon"), "line 1", "issue"),
        (waiver(up_to=None), "line 1", "up_to"),
        (waiver(severity="high"), "line 1", "severity"),
        (quarantine(expires="'soon'"), "line 1", "date - at .*expires"),
        (quarantine(select=" "), "line 1", "select"),
        (quarantine(select="n=1,,"), "line 1", "which is no condition"),
        ("[quarantine]\nselect = 'x'\n", "exceptions.toml", "Expected `array`.*quarantine"),
        ("version = 1\n", "exceptions.toml", "unknown field `version`"),
        ("a = '\udcff'", "exceptions.toml", "not valid TOML"),
        (f"[[waiver]]\nselect = {'[' * 200}{']' * 200}", "exceptions.toml", "Expected `str`"),
        (f"a = {'[' * 50_000}", "exceptions.toml", "not valid TOML"),
    ],
)
def test_a_bad_file_names_line_and_remedy(tmp_path: Path, text: str, where: str, what: str) -> None:
    (tmp_path / "exceptions.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StoreError, match=what) as caught:
        Exceptions.load([tmp_path], TODAY)
    assert where in caught.value.where
    assert caught.value.remedy


def test_what_is_excepted_breaks_no_claim(tmp_path: Path) -> None:
    claim = structs.replace(TWICE, faster=COPY.id)
    broken = ClaimVerdict(
        claim=claim.id, word=ClaimWord.BROKEN, reason="was 2", required=2, source="s", fails=True
    )
    for text, theta, word, fails in (
        (quarantine(), 0.2, ClaimWord.NOT_APPLICABLE, False),
        (waiver(), 0.05, ClaimWord.BROKEN, False),
        (waiver(), 0.2, ClaimWord.BROKEN, True),
    ):
        exceptions = load(tmp_path, text)
        asked = structs.replace(planned(COPY), instances=(claim,))
        run = asked.having(verdicts=exceptions.applied([slower(theta)], asked))
        (found,) = exceptions.claims([broken], run)
        assert (found.word, found.fails) == (word, fails)


def test_what_is_excepted_is_shown_everywhere(place: Place) -> None:
    text = waiver("us=200").replace("new driver", "<script>alert(1)</script> \\u001b[2J")
    place.execute(watched(place.folder, root=place.root))
    slow_down(place.folder, 50, 100, 200, 400, by=1.03)
    exceptions = load(place.root, f"{text}\n{quarantine('us=50')}")
    outcome = place.execute(watched(place.folder, root=place.root, exceptions=exceptions))
    verdicts = outcome.run.verdicts
    assert [each.word for each in verdicts] == [Word.SLOWER] * 3
    assert [each.fails for each in verdicts] == [True, False, True]
    run_view = read(outcome.run, baselines=entries_in(outcome.run), source=source_of(outcome.run))
    page = write_report(run_view, place.root / "reports")
    html, terminal = page.read_text("utf-8"), "\n".join(summary(run_view))
    markdown = (page.parent / "summary.md").read_text("utf-8")
    for text in (html, markdown.replace("\\", ""), terminal):
        assert "waived until 2026-12-01" in text
    assert "<script>alert" not in html + markdown
    assert "\x1b" not in terminal
    decided = json.loads((page.parent / "verdict.json").read_text("utf-8"))
    excepted = [one["verdict"]["excepted"] for one in decided["variants"]]
    assert [one["until"] for one in excepted if one] == ["2026-12-01"]
    told = dict(properties(None, verdicts[1]))
    assert told["perf_excepted"] == "waiver"
    assert (told["perf_excepted_until"], told["perf_excepted_issue"]) == ("2026-12-01", ISSUE)


def test_a_bad_file_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "exceptions.toml").write_text("[[waiver]]\n", encoding="utf-8")
    with pytest.raises(StoreError, match="missing required field") as caught:
        request(tmp_path).narrowed((), ())
    assert "exceptions.toml, line 1" in caught.value.where
