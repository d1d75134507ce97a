"""What several nights propose, what they may not move, and which nights count."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
import store_data as data
from msgspec.structs import replace
from store_data import OTHER_UNIT, SKU, UNIT, changed
from test_baselines import load, memory

from perfsuite.boundary import UsageError
from perfsuite.model import Part, Run, Settings, Shard, Stage, Status, Verdict, Word
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.nightly.propose import Finding, Proposal, Terms, markdown, propose
from perfsuite.run.accept import accept

TODAY = date(2026, 11, 22)
COPY, ADD = (data.variant(case, 1024).id for case in ("copy", "add"))
TERMS = Terms(by="Ann")
SLOWER = Terms(by="Ann", include_slower=True, reason="the price of a fix")
FRESH = "fresh processes"
Change = Callable[[Run], Run]


def night(
    times: dict[str, float], day: int, *, word: Word = Word.SAME, unit: str = UNIT, **verdict: str
) -> Run:
    """A whole night: three processes that scatter by a few hundredths of a percent."""
    jitter = 1 + (day * 7 % 5 - 2) * 1e-4
    run = data.finished({case: time * jitter for case, time in times.items()}, unit=unit)
    verdicts = tuple(
        Verdict(variant=each.id, word=word, reason="made up", **verdict)  # type: ignore[arg-type]
        for each in run.variants
    )
    started = f"2026-11-{day:02d}T02:00:00+00:00"
    return changed(run, id=f"202611{day:02d}-020000", started=started, verdicts=verdicts)


def nights(times: dict[str, float], *days: int, **verdict: str) -> list[Run]:
    return [night(times, day, **verdict) for day in days]  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Baselines of copy, 100 us, from the first of the month."""
    accept(night({"copy": 100.0}, 1), tmp_path, reason="first", by="Ann")
    return tmp_path


def ask(runs: list[Run], root: Path, terms: Terms = TERMS, text: str = "") -> Proposal:
    (root / "exceptions.toml").write_text(text, encoding="utf-8")
    return propose(runs, root, exceptions=Exceptions.load([root], TODAY), terms=terms)


def only(proposal: Proposal) -> Finding:
    (found,) = proposal.findings
    return found


def center(root: Path) -> float:
    return load(root).entries[COPY].metrics["time_us"].center


def versioned(run: Run) -> Run:
    return changed(run, results=(replace(run.results[0], case_version=2),))


def with_metric(run: Run) -> Run:
    more = [replace(e, exact={**e.exact, "kernels": 2.0}) for e in run.results[0].evidence]
    return changed(run, results=(replace(run.results[0], evidence=tuple(more)),))


def without_ecc(run: Run) -> Run:
    return replace(run, facts=replace(run.facts, state={"ecc": "off", "power_limit_w": "700"}))


def confirmed(run: Run) -> Run:
    """Of what was confirmed the screen is no evidence."""
    fresh = replace(run.results[0], stage=Stage.CONFIRM)
    return changed(run, results=(data.result(COPY, 90.0), fresh))


THIRD = "inside a third of its threshold"
VERSION = "case version was 1 and is 2"


@pytest.mark.parametrize(
    ("runs", "terms", "word", "why"),
    [
        (nights({"copy": 99.0}, *range(2, 6)), TERMS, "waiting", "faster: 4 of 5 nights"),
        (nights({"copy": 99.0}, *range(2, 7)), TERMS, "faster", "5 nights"),
        (nights({"copy": 99.0}, 2, 2, 2), TERMS, "waiting", "faster: 1 of 5 nights"),
        (nights({"copy": 97.0}, 2, word=Word.FASTER, confirmation=FRESH), TERMS, "faster",
         "confirmed"),
        ([confirmed(night({"copy": 97.0}, 2, word=Word.FASTER, confirmation=FRESH))], TERMS,
         "faster", "confirmed"),
        (nights({"copy": 99.94}, *range(2, 9)), SLOWER, "same", THIRD),
        (nights({"copy": 100.05}, *range(2, 9)), SLOWER, "same", THIRD),
        # Only nights of the last level count.
        ([*nights({"copy": 100.0}, 2, 3, 4), *nights({"copy": 98.0}, 5, 6)], TERMS, "waiting",
         "faster: 2 of 5 nights"),
        # The run of the entry is no evidence on its own date.
        ([night({"copy": 100.0}, 1), replace(night({"copy": 99.0}, 1), id="20261101-180000")],
         TERMS, "waiting", "faster: 1 of 5 nights"),
        ([versioned(night({"copy": 50.0}, 2, word=Word.NEW))], TERMS, "new", VERSION),
        # A metric more is no way for a slower level.
        ([with_metric(night({"copy": 100.0}, 2))], TERMS, "new", "kernels"),
        ([with_metric(night({"copy": 103.0}, 2))], TERMS, "waiting", "slower: 1 of 5 nights"),
        ([without_ecc(run) for run in nights({"copy": 99.0}, *range(2, 7))], TERMS, "undecided",
         "not comparable: ecc was on and is off"),
    ],
)  # fmt: skip
def test_nights_move_an_entry_or_say_why_not(
    root: Path, runs: list[Run], terms: Terms, word: str, why: str
) -> None:
    before = memory(root).read_bytes()
    found = only(ask(runs, root, terms))
    assert (found.word, why in found.why) == (word, True), found.why
    stored = load(root).entries[COPY]
    if not found.is_proposed:
        assert memory(root).read_bytes() == before
    elif word == "faster":
        count = len(found.nights)
        assert center(root) == pytest.approx(99.0 if count > 1 else 97.0, rel=3e-4)
        assert sum(map(len, stored.metrics["time_us"].values.values())) == 3 * count
        assert stored.run == runs[-1].id
        assert stored.accepted.reason.startswith("faster: time_us -")
        days = "5 nights 2026-11-02 to 2026-11-06" if count > 1 else "confirmed, 1 night 2026-11-02"
        assert stored.accepted.reason.endswith(days)


def test_what_may_be_no_change_at_all_does_not_move(root: Path) -> None:
    cards = [OTHER_UNIT, "c0ffee000000"] * 3
    runs = [night({"copy": 99.85}, day, unit=card) for day, card in enumerate(cards, 2)]
    assert only(ask(runs, root)).why == "its interval holds no change at all"


def test_a_slower_level_needs_a_person_with_a_reason(root: Path) -> None:
    slower = nights({"copy": 103.0}, *range(2, 8), word=Word.SLOWER, confirmation="fresh")
    found = only(ask(slower, root))
    assert (found.word, found.why) == ("waiting", "slower: a person has to include it")
    assert center(root) == pytest.approx(100.0, rel=3e-4)
    with pytest.raises(UsageError, match="not proposed without a reason"):
        ask(slower, root, replace(SLOWER, reason=" "))
    assert only(ask(slower, root, SLOWER)).is_proposed
    assert load(root).entries[COPY].accepted.reason.startswith("the price of a fix; slower: ")


def test_nights_that_look_older_than_the_entry_are_named(root: Path) -> None:
    add = nights({"copy": 99.0, "add": 9.0}, 2, 3)
    accept(night({"copy": 99.0}, 5), root, reason="by a clock that was ahead", by="Ann")
    before = ask([*add, night({"copy": 99.0}, 5)], root)
    assert [(each.variant, each.word) for each in before.findings] == [(ADD, "new")]
    assert before.earlier == {"20261105-020000": ["20261102-020000", "20261103-020000"]}
    assert "if they are newer all the same, a clock was set back" in markdown(before)
    after = markdown(ask([*add, night({"copy": 99.0}, 6)], root))
    assert "2: 20261102-020000 to 20261103-020000" in after
    assert "by their clocks they began before it |" in after
    assert ask(nights({"copy": 99.0}, 6, 7), root).earlier == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda run: replace(run, finished=""), "it was interrupted"),
        (lambda run: replace(run, commit="9c1e-dirty"), "its code is in no commit (9c1e-dirty)"),
        (lambda run: replace(run, settings=Settings(check_only=True)), "it only checked"),
    ],
)
def test_a_broken_night_counts_for_nothing(root: Path, change: Change, why: str) -> None:
    bad = change(night({"copy": 90.0}, 9))
    proposal = ask([*nights({"copy": 99.0}, *range(2, 7)), bad], root)
    assert why in proposal.broken[bad.id]
    assert only(proposal).is_proposed
    assert center(root) == pytest.approx(99.0, rel=3e-4)


QUARANTINE = "[[quarantine]]\nselect = 'case=copy'\nreason = 'flaky'\nexpires = 2026-12-01\n"
PRODUCT = replace(SKU, facts={**SKU.facts, "sms": "66"})


@pytest.mark.parametrize(
    ("change", "text", "why"),
    [
        *(
            (lambda run, word=word: changed(run, verdicts=(replace(run.verdicts[0], word=word),)),
             "", f"{word}: made up")
            for word in (Word.UNCLEAR, Word.INCOMPARABLE, Word.OVER_BUDGET)
        ),
        (lambda run: changed(run, results=(replace(run.results[0], status=Status.WRONG),)), "",
         "wrong"),
        (lambda run: run, QUARANTINE, "quarantined until 2026-12-01: flaky"),
        (lambda run: replace(run, sku=PRODUCT), "", "sms was 132 and is 66"),
    ],
)  # fmt: skip
def test_what_tells_no_level_is_left_out(root: Path, change: Change, text: str, why: str) -> None:
    bad = change(night({"copy": 99.0}, 3))
    proposal = ask([bad], root, text=text)
    assert (list(proposal.findings), proposal.broken) == ([], {})
    assert proposal.left_out == {(COPY, bad.id): why}


def test_nights_on_another_card_are_less_sure(root: Path) -> None:
    home = only(ask(nights({"copy": 99.2}, *range(2, 7)), root))
    assert home.is_proposed
    accept(night({"copy": 100.0}, 7), root, reason="back", by="Ann")
    away = only(ask([night({"copy": 99.2}, day, unit=OTHER_UNIT) for day in range(8, 13)], root))
    wide, narrow = (each.changes[0].high - each.changes[0].low for each in (away, home))
    assert wide > 1.5 * narrow
    why = "only one card says so, b07c, which the baseline has never seen"
    assert (away.word, away.why) == ("undecided", why)


def joined(*shards: Run) -> Run:
    """The shards' runs as one, as ``perfsuite merge`` names it."""
    parts = tuple(
        Part(run=each.id, shard=Shard(index=n, count=len(shards)), facts=each.facts)
        for n, each in enumerate(shards, 1)
    )
    return replace(shards[-1], id=f"{shards[-1].id}-merged-{len(shards)}", parts=parts)


def test_a_merged_run_and_its_shards_are_no_more_evidence_than_it_alone(root: Path) -> None:
    shards = nights({"copy": 99.0}, *range(2, 7))
    wholes = [joined(each) for each in shards]
    late = joined(replace(shards[-1], id="20261106-010000"), shards[-1])
    alone, proposal = (
        ask(each, root, replace(TERMS, nights=9)) for each in (wholes, [*shards, *wholes, late])
    )
    assert only(proposal).entry.metrics == only(alone).entry.metrics
    assert proposal.broken[shards[0].id] == f"it is part of {wholes[0].id}"
    assert "counts already" in proposal.broken[wholes[-1].id]
