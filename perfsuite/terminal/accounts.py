"""What each pytest item says: passed, skipped or failed, with everything needed to act on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from perfsuite.model import ClaimInstance, ClaimVerdict, ClaimWord, Run, Status, Word
from perfsuite.report import properties, view
from perfsuite.report.book import Book
from perfsuite.report.cause import explained
from perfsuite.report.rows import change_text
from perfsuite.report.subject import Subject
from perfsuite.request import Options
from perfsuite.terminal.words import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The report of one item; ``properties`` are JUnit's, of plain types."""

    fails: bool = False
    skipped: bool = False
    text: str = ""
    properties: tuple[tuple[str, str | float], ...] = ()


def accounts_of(book: Book, options: Options) -> Mapping[str, Account]:
    """Return the account of every variant and claim of a run, by id."""
    found = {each.variant.id: _of_variant(each, options) for each in book.subjects}
    verdicts = {verdict.claim: verdict for verdict in book.run.claims}
    for claim in book.run.instances:
        if claim.id in verdicts:
            found[claim.id] = _of_claim(claim, verdicts[claim.id], options)
    return found


def bare_accounts(run: Run, options: Options) -> Mapping[str, Account]:
    """Return what items say where their accounts cannot be made: the word and its reason alone."""
    failing = options.failing_statuses()
    told: list[tuple[str, str, str, bool, bool]] = [
        *(
            (r.variant, r.status, r.reason, r.status in failing, r.status == "ok")
            for r in run.asked
        ),
        *((v.variant, v.word, v.reason, v.fails, True) for v in run.verdicts),
        *((c.claim, c.word, c.reason, c.fails, c.word != "not-applicable") for c in run.claims),
    ]
    return {
        name: Account(
            fails=fails,
            skipped=not (fails or has_word),
            text=f"{word}: {name}\n{_line('reason', reason)}" if fails else plain(reason),
        )
        for name, word, reason, fails, has_word in told
    }


def _word(subject: Subject) -> Word | None:
    return subject.verdict.word if subject.verdict else None


def _fails(subject: Subject, statuses: AbstractSet[str]) -> bool:
    if subject.verdict:
        return subject.verdict.fails
    return subject.result is not None and subject.result.status in statuses


def _of_variant(subject: Subject, options: Options) -> Account:
    fails = _fails(subject, options.failing_statuses())
    ended_ok = subject.result is not None and subject.result.status is Status.OK
    skipped = not fails and not ended_ok
    return Account(
        fails=fails,
        skipped=skipped,
        text=plain(subject.reason) if skipped else "\n".join(_told(subject, options)),
        properties=tuple(properties(subject.result, subject.verdict)),
    )


def _told(subject: Subject, options: Options) -> Iterator[str]:
    """Yield the lines of a variant's failure."""
    change, source = subject.telling, subject.verdict.source if subject.verdict else ""
    # pytest's own summary shows the beginning of this line, beside the id.
    moved = f" {plain(change_text(change))}" if change else ""
    yield f"{subject.mark.word}{moved}: {subject.variant.id}"
    if change:
        yield _line("metric", change.metric)
        yield _line("baseline", f"{view.amount(change.baseline, change.unit)} ({source})")
        yield _line("measured", view.amount(change.current, change.unit))
        interval = view.interval(change.low, change.high)
        yield _line("change", f"{change_text(change)}, interval {interval}")
        limits = (view.share(change.threshold), view.share(change.gate))
        yield _line("limits", f"threshold {limits[0]}, gate {limits[1]}")
    if _word(subject) is Word.OVER_BUDGET:
        for budget in subject.variant.case.budgets:
            most = view.budget(budget.metric, budget.most)
            yield _line("budget", f"{budget.metric} at most {most}: {budget.reason}")
    yield _line("reason", subject.reason)
    if why := explained(subject):
        yield _line("why", why)
    if subject.result and subject.result.output.strip():
        yield _line("output", subject.result.output.strip())
    yield _line("again", view.command(subject.variant.id, *options.again(subject.variant)))


def _of_claim(claim: ClaimInstance, verdict: ClaimVerdict, options: Options) -> Account:
    lines = [
        f"{verdict.word.value}: {claim.id}",
        _line("asked for", f"{view.ratio(verdict.required)} ({verdict.source})"),
        *_found(verdict),
        _line("less" if claim.metric else "faster", claim.faster),
        _line("than", claim.than),
        _line("reason", verdict.reason),
        _line("again", claim_command(claim, options)),
    ]
    skipped = verdict.word is ClaimWord.NOT_APPLICABLE
    told: list[tuple[str, str | float]] = [
        ("perf_claim", verdict.word.value),
        ("perf_reason", verdict.reason),
        ("perf_ratio_required", verdict.required),
    ]
    if verdict.ratio is not None:
        told.append(("perf_ratio", verdict.ratio))
    return Account(
        fails=verdict.fails,
        skipped=skipped,
        text=plain(verdict.reason) if skipped else "\n".join(map(plain, lines)),
        properties=tuple(told),
    )


def _found(verdict: ClaimVerdict) -> Iterator[str]:
    if verdict.ratio is not None:
        span = f" ({view.ratios(verdict.low, verdict.high)})" if verdict.low != verdict.high else ""
        yield _line("found", f"{view.ratio(verdict.ratio)}{span}")


def claim_command(claim: ClaimInstance, options: Options) -> str:
    """Return the command that measures a claim's two variants again."""
    given = ("--perf-tier", options.tier) if options.tier != "smoke" else ()
    return " ".join(("pytest", "--perf", *given, "-k", f"'{claim.name} and {claim.pack}'"))


def _line(name: str, text: str) -> str:
    first, *rest = plain(text).splitlines() or [""]
    return "\n".join((f"  {name:<9} {first}", *(f"  {'':<9} {line}" for line in rest)))
