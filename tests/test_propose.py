"""What several nights propose, what they may not move, and which nights count."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import store_data as data
from msgspec import structs
from store_data import OTHER_UNIT, SKU, UNIT
from test_baselines import load, memory

from perfsuite.boundary import UsageError
from perfsuite.model import (
    MachineShift,
    Part,
    Run,
    Settings,
    Shard,
    Stage,
    Status,
    Verdict,
    Word,
)
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.nightly.propose import Finding, Proposal, Terms, markdown, propose
from perfsuite.run.accept import accept

TODAY = date(2026, 11, 22)
COPY, ADD = (data.variant(case, 1024).id for case in ("copy", "add"))
TERMS = Terms(by="Ann")
SLOWER = Terms(by="Ann", include_slower=True, reason="the price of a fix")


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
    return structs.replace(run, id=f"202611{day:02d}-020000", started=started).having(
        verdicts=verdicts
    )


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


def test_a_level_that_moved_is_proposed_after_five_nights(root: Path) -> None:
    for days, word in ((range(2, 6), "waiting"), (range(2, 7), "faster")):
        found = only(ask(nights({"copy": 99.0}, *days), root))
        assert (found.word, found.is_proposed) == (word, word == "faster")
    assert center(root) == pytest.approx(99.0, rel=3e-4)
    stored = load(root).stored[COPY]
    assert stored.entry.run == "20261106-020000"
    assert sum(map(len, stored.entry.metrics["time_us"].values.values())) == 15
    assert stored.accepted.reason.startswith("faster: time_us -1.0")
    assert stored.accepted.reason.endswith("5 nights 2026-11-02 to 2026-11-06")


def test_a_run_that_is_named_twice_counts_once(root: Path) -> None:
    found = only(ask(nights({"copy": 99.0}, 2, 2, 2), root))
    assert len(found.nights[0].runs) == 1
    assert sum(map(len, found.entry.metrics["time_us"].values.values())) == 3


def test_a_confirmed_improvement_is_proposed_at_once(root: Path) -> None:
    confirmed = {"word": Word.FASTER, "confirmation": "fresh processes"}
    found = only(ask(nights({"copy": 97.0}, 2, **confirmed), root))
    assert (found.word, found.why) == ("faster", "confirmed")
    assert load(root).stored[COPY].accepted.reason.endswith("confirmed, 1 night 2026-11-02")
    assert center(root) == pytest.approx(97.0, rel=3e-4)


def test_of_what_was_confirmed_the_screen_is_no_evidence(root: Path) -> None:
    (run,) = nights({"copy": 97.0}, 2, word=Word.FASTER, confirmation="fresh processes")
    screen = data.result(COPY, 90.0)
    confirmed = structs.replace(run.results[0], stage=Stage.CONFIRM)
    ask([run.having(results=(screen, confirmed))], root)
    assert center(root) == pytest.approx(97.0, rel=3e-4)


def test_a_slower_level_needs_a_person_with_a_reason(root: Path) -> None:
    slower = nights({"copy": 103.0}, *range(2, 8), word=Word.SLOWER, confirmation="fresh")
    found = only(ask(slower, root))
    assert (found.word, found.why) == ("waiting", "slower: a person has to include it")
    assert center(root) == pytest.approx(100.0, rel=3e-4)
    with pytest.raises(UsageError, match="not proposed without a reason"):
        ask(slower, root, structs.replace(SLOWER, reason=" "))
    assert only(ask(slower, root, SLOWER)).is_proposed
    assert load(root).stored[COPY].accepted.reason.startswith("the price of a fix; slower: ")


@pytest.mark.parametrize("time", [99.94, 100.05])
def test_nothing_moves_inside_a_third_of_its_threshold(root: Path, time: float) -> None:
    before = memory(root).read_bytes()
    found = only(ask(nights({"copy": time}, *range(2, 9)), root, SLOWER))
    assert (found.word, found.why) == ("same", "inside a third of its threshold")
    assert memory(root).read_bytes() == before


def test_what_may_be_no_change_at_all_does_not_move(root: Path) -> None:
    cards = [OTHER_UNIT, "c0ffee000000"] * 3
    runs = [night({"copy": 99.85}, day, unit=card) for day, card in enumerate(cards, 2)]
    found = only(ask(runs, root))
    assert (found.word, found.why) == ("undecided", "its interval holds no change at all")


def test_only_nights_of_the_last_level_count(root: Path) -> None:
    runs = [*nights({"copy": 100.0}, 2, 3, 4), *nights({"copy": 98.0}, 5, 6)]
    found = only(ask(runs, root))
    assert [each.date[-2:] for each in found.nights] == ["05", "06"]
    assert (found.word, found.why) == ("waiting", "faster: 2 of 5 nights")


def test_nights_that_look_older_than_the_entry_are_named(root: Path) -> None:
    add = nights({"copy": 99.0, "add": 9.0}, 2, 3)
    accept(night({"copy": 99.0}, 5), root, reason="by a clock that was ahead", by="Ann")
    before = ask([*add, night({"copy": 99.0}, 5)], root)
    assert [each.variant for each in before.findings] == [ADD]
    assert before.earlier == {"20261105-020000": ("20261102-020000", "20261103-020000")}
    assert "if they are newer all the same, a clock was set back" in markdown(before)
    after = markdown(ask([*add, night({"copy": 99.0}, 6)], root))
    assert "2: 20261102-020000 to 20261103-020000" in after
    assert "by their clocks they began before it |" in after
    assert ask(nights({"copy": 99.0}, 6, 7), root).earlier == {}


def test_the_run_of_the_entry_is_no_evidence_on_its_own_date(root: Path) -> None:
    later = structs.replace(night({"copy": 99.0}, 1), id="20261101-180000")
    found = only(ask([night({"copy": 100.0}, 1), later], root))
    assert [run.id for run in found.nights[0].runs] == [later.id]


@pytest.mark.parametrize(("time", "word"), [(100.0, "new"), (103.0, "waiting")])
def test_a_metric_more_is_no_way_for_a_slower_level(root: Path, time: float, word: str) -> None:
    run = night({"copy": time}, 2)
    more = [
        structs.replace(each, exact={**each.exact, "kernels": 2.0})
        for each in run.results[0].evidence
    ]
    run = run.having(results=(structs.replace(run.results[0], evidence=tuple(more)),))
    found = only(ask([run], root))
    assert (found.word, found.is_proposed) == (word, word == "new")
    assert ("kernels" in load(root).entries[COPY].metrics) is (word == "new")


def test_a_new_variant_is_proposed_from_one_night(root: Path) -> None:
    proposal = ask([night({"copy": 100.0, "add": 7.0}, 2)], root)
    assert {each.variant: each.word for each in proposal.findings} == {COPY: "same", ADD: "new"}
    assert set(load(root).entries) == {COPY, ADD}


def test_a_new_version_of_a_case_is_new(root: Path) -> None:
    run = night({"copy": 50.0}, 2, word=Word.NEW)
    found = only(
        ask([run.having(results=(structs.replace(run.results[0], case_version=2),))], root)
    )
    assert (found.word, found.why) == ("new", "case version was 1 and is 2")
    assert load(root).entries[COPY].case_version == 2


SHIFT = MachineShift(
    word=Word.SLOWER, reason="all did", moved=3, comparable=3, units=(), canaries=(), variants=()
)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"finished": ""}, "it was interrupted"),
        ({"commit": "9c1e-dirty"}, "its code is in no commit (9c1e-dirty)"),
        ({"shift": SHIFT}, "machine-shift: all did"),
        ({"settings": Settings(check_only=True)}, "it only checked"),
    ],
)
def test_a_broken_night_counts_for_nothing(root: Path, fields: dict[str, object], why: str) -> None:
    bad = structs.replace(night({"copy": 90.0}, 9), **fields)
    proposal = ask([*nights({"copy": 99.0}, *range(2, 7)), bad], root)
    assert proposal.broken == {bad.id: why}
    assert only(proposal).is_proposed
    assert center(root) == pytest.approx(99.0, rel=3e-4)


def test_a_night_whose_canary_is_off_counts_for_nothing(root: Path) -> None:
    bad = night({"copy": 99.0}, 2)
    canary = structs.replace(bad.results[0], stage=Stage.CANARY_START)
    proposal = ask(
        [structs.replace(bad, canaries=bad.variants).having(results=(*bad.results, canary))], root
    )
    assert f"canary {COPY} faster at the start" in proposal.broken[bad.id]
    failed = structs.replace(canary, status=Status.CRASHED)
    proposal = ask(
        [structs.replace(bad, canaries=bad.variants).having(results=(*bad.results, failed))], root
    )
    assert proposal.broken[bad.id] == f"canary {COPY} crashed"


def test_a_quarantined_canary_says_nothing(root: Path) -> None:
    bad = night({"copy": 99.0}, 2)
    canary = structs.replace(bad.results[0], stage=Stage.CANARY_START)
    text = "[[quarantine]]\nselect = 'case=copy'\nreason = 'flaky'\nexpires = 2026-12-01\n"
    runs = [structs.replace(bad, canaries=bad.variants).having(results=(*bad.results, canary))]
    assert ask(runs, root, text=text).broken == {}


@pytest.mark.parametrize("word", [Word.UNCLEAR, Word.INCOMPARABLE, Word.OVER_BUDGET])
def test_what_was_not_decided_is_left_out(root: Path, word: Word) -> None:
    proposal = ask(nights({"copy": 99.0}, *range(2, 8), word=word), root)
    assert proposal.findings == ()
    assert set(proposal.left_out.values()) == {f"{word}: made up"}


def test_what_did_not_end_ok_is_left_out(root: Path) -> None:
    runs = nights({"copy": 99.0}, *range(2, 7))
    failed = structs.replace(runs[2].results[0], status=Status.WRONG, reason="off by one")
    runs[2] = runs[2].having(results=(failed,))
    proposal = ask(runs, root)
    assert proposal.left_out == {(COPY, runs[2].id): "wrong: off by one"}
    assert only(proposal).why == "faster: 4 of 5 nights"


def test_what_is_in_quarantine_is_left_out(root: Path) -> None:
    text = "[[quarantine]]\nselect = 'memory.copy*'\nreason = 'flaky'\nexpires = 2026-12-01\n"
    proposal = ask(nights({"copy": 99.0}, *range(2, 8)), root, text=text)
    assert proposal.findings == ()
    assert set(proposal.left_out.values()) == {"quarantined until 2026-12-01: flaky"}


def test_another_product_or_state_is_left_out(root: Path) -> None:
    runs = nights({"copy": 99.0}, *range(2, 7))
    facts = {**SKU.facts, "sms": "66"}
    others = [
        structs.replace(run, id=f"{run.id}-b", sku=structs.replace(SKU, facts=facts))
        for run in runs
    ]
    proposal = ask(others, root)
    assert set(proposal.left_out.values()) == {"sms was 132 and is 66"}
    state = [
        structs.replace(
            run, facts=structs.replace(run.facts, state={"ecc": "off", "power_limit_w": "700"})
        )
        for run in runs
    ]
    found = only(ask(state, root))
    assert (found.word, found.why) == ("undecided", "not comparable: ecc was on and is off")


def test_nights_on_another_card_are_less_sure(root: Path) -> None:
    home = only(ask(nights({"copy": 99.2}, *range(2, 7)), root))
    assert home.is_proposed
    accept(night({"copy": 100.0}, 7), root, reason="back", by="Ann")
    away = only(ask([night({"copy": 99.2}, day, unit=OTHER_UNIT) for day in range(8, 13)], root))
    assert (away.changes[0].high - away.changes[0].low) > 2 * (
        home.changes[0].high - home.changes[0].low
    )
    why = "only one card says so, b07c, which the baseline has never seen"
    assert (away.word, away.why) == ("undecided", why)


def joined(*shards: Run) -> Run:
    """The shards' runs as one, as ``perfsuite merge`` names it."""
    parts = tuple(
        Part(run=each.id, shard=Shard(index=n, count=len(shards)), facts=each.facts)
        for n, each in enumerate(shards, 1)
    )
    return structs.replace(shards[-1], id=f"{shards[-1].id}-merged-{len(shards)}", parts=parts)


def test_a_merged_run_and_its_shards_are_no_more_evidence_than_it_alone(root: Path) -> None:
    shards = nights({"copy": 99.0}, *range(2, 7))
    wholes = [joined(each) for each in shards]
    late = joined(structs.replace(shards[-1], id="20261106-010000"), shards[-1])
    alone, proposal = (
        ask(each, root, structs.replace(TERMS, nights=9))
        for each in ([*wholes], [*shards, *wholes, late])
    )
    assert only(proposal).entry.metrics == only(alone).entry.metrics
    assert proposal.broken[shards[0].id] == f"it is part of {wholes[0].id}"
    assert "counts already" in proposal.broken[wholes[-1].id]
