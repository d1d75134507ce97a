"""Proposes what baselines should say after several nights: a change to review, never a commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from perfsuite.baselines.accept import acceptance_of
from perfsuite.baselines.exceptions import Exceptions
from perfsuite.baselines.folder import (
    has_sku,
    locked,
    pack_path,
    read_pack,
    read_sku,
    sku_folder,
    write_files,
)
from perfsuite.baselines.load import Baselines
from perfsuite.baselines.merge import merge, other_kind, pooled_entry
from perfsuite.baselines.nights import (
    Night,
    Told,
    before_entries,
    broken,
    held_by_others,
    nights_of,
    skus_of,
    state_differs,
    told_by,
)
from perfsuite.baselines.proposal import Finding, Proposal, Terms
from perfsuite.codec import StoredEntry, baseline_text
from perfsuite.errors import UsageError
from perfsuite.judge import Against, is_one_level, learned, level_changes
from perfsuite.model import BaselineEntry, Change, Run, Sku

# A level is known from so many nights; an older one than the last few only makes files longer.
MOST_NIGHTS = 10
# Nothing moves by less of a variant's threshold than this share: it would only make diffs.
LEAST_SHARE = 1 / 3
CONFIRMED = "confirmed"


def propose(runs: Sequence[Run], root: Path, *, exceptions: Exceptions, terms: Terms) -> Proposal:
    """Write what nights say to the baselines' files in ``root``, which git then shows.

    Better levels that were confirmed are written at once, others after ``terms.nights``; a worse
    one only with ``include_slower``, however many nights agree.
    """
    if terms.include_slower and not terms.reason.strip():
        raise UsageError(
            "a slower level is not proposed without a reason",
            remedy='say why it may stay, as in --reason "the price of the fix of #12"',
        )
    # A run that is named twice is no more evidence than once.
    runs = sorted({run.id: run for run in runs}.values(), key=lambda run: run.id)
    newest = {sku.slug: (run, sku) for run in runs for sku in skus_of(run)}
    desks = {slug: _Desk.open(*of, root=root, terms=terms) for slug, of in newest.items()}
    told, refused = _sorted_out(runs, desks, exceptions)
    findings: list[Finding] = []
    written: list[Path] = []
    for _, desk in sorted(desks.items()):
        found = list(desk.findings(told))
        written += _write([each for each in found if each.is_proposed], desk, root)
        findings += found
    kept = [facts for each in desks.values() for facts in each.baselines.runs.values()]
    return Proposal(
        findings=tuple(findings),
        broken=refused,
        left_out={(n, each.run.id): why for each in told for n, why in each.left_out.items()},
        earlier=before_entries(told, {slug: desk.since for slug, desk in desks.items()}),
        written=tuple(written),
        environments={facts.run: facts.environment for facts in kept},
        commits={facts.run: facts.commit for facts in kept},
    )


def _sorted_out(
    runs: Sequence[Run], desks: Mapping[str, _Desk], exceptions: Exceptions
) -> tuple[list[Told], dict[str, str]]:
    """Return what whole runs have to say, and why the others have nothing."""
    told, refused, held = [], {}, held_by_others(runs)
    facts = {slug: desk.baselines.sku.facts for slug, desk in desks.items()}
    for run in runs:
        own, away = desks[run.sku.slug], exceptions.quarantined(run)
        quiet = replace(run, canaries=tuple(c for c in run.canaries if c.id not in away))
        against = replace(own.against, facts=run.facts)
        why = held.get(run.id) or broken(quiet, against, own.baselines.entries)
        if why:
            refused[run.id] = why
        else:
            told.append(told_by(run, exceptions, facts))
    return told, refused


@dataclass(frozen=True, slots=True)
class _Desk:
    """Where one SKU's nights are compared with its entries."""

    baselines: Baselines
    against: Against
    terms: Terms

    @classmethod
    def open(cls, run: Run, sku: Sku, *, root: Path, terms: Terms) -> _Desk:
        """Read what is known of a SKU; the folder says which product it is, if there is one."""
        folder = sku_folder(root, sku.slug)
        sku = read_sku(folder) if has_sku(folder) else sku
        baselines = Baselines.load([root], sku)
        known = tuple(baselines.entries.values())
        source = f"baseline {sku.slug}"
        against = Against(facts=run.facts, slug=sku.slug, source=source, known=known)
        return cls(baselines, learned(against, run.variants), terms)

    @property
    def since(self) -> dict[str, str]:
        """The run that each entry comes from, by variant."""
        return {name: each.entry.run for name, each in self.baselines.stored.items()}

    def findings(self, told: Iterable[Told]) -> Iterator[Finding]:
        """Yield what nights say of each variant that has any since its entry's run."""
        stored = self.baselines.stored
        for name, nights in nights_of(told, self.baselines.sku.slug, self.since).items():
            yield self._finding(stored.get(name), nights)

    def _finding(self, old: StoredEntry | None, nights: Sequence[Night]) -> Finding:
        last = nights[-1]
        level = self._level(nights)
        found = Finding(
            sku=self.baselines.sku.slug,
            variant=last.variant.id,
            word="new",
            why="it has no entry",
            old=old,
            entry=pooled_entry([night.entry for night in level]),
            nights=tuple(level),
        )
        if old is None:
            return found
        if why := state_differs(old.entry, last.runs[-1]):
            return replace(found, word="undecided", why=f"not comparable: {why}")
        # Other work has another time, which says nothing of the old one.
        if (was := old.entry.case_version) != (version := last.entry.case_version):
            return replace(found, why=f"case version was {was} and is {version}")
        return self._compared(found, old.entry)

    def _level(self, nights: Sequence[Night]) -> list[Night]:
        """Return the last nights that no verdict would tell from each other."""
        *earlier, last = nights[-MOST_NIGHTS:]
        level = [last]
        for night in reversed(earlier):
            entries = [each.entry for each in level]
            if other_kind(night.entry, last.entry):
                break
            if not is_one_level(last.variant, night.entry, entries, self.against):
                break
            level.insert(0, night)
        return level

    def _compared(self, found: Finding, old: BaselineEntry) -> Finding:
        """Say whether the level moved, and whether that is known and meant well enough."""
        entries = [night.entry for night in found.nights]
        changes = level_changes(found.nights[-1].variant, old, entries, self.against)
        found = replace(found, changes=changes)
        if stay := _stay(changes, old, entries):
            # Metrics that came or went are recorded where nothing else moves with them.
            kind = other_kind(replace(old, state=found.entry.state), found.entry)
            word, why = ("new", kind) if kind and stay[0] == "same" else stay
            return replace(found, word=word, why=why)
        moved = [each for each in changes if _is_sure(each)]
        is_other_code = any(abs(each.theta) > each.threshold for each in moved)
        word = "slower" if any(each.theta > 0 for each in moved) else "faster"
        entry = merge(old, found.entry, is_other_code=is_other_code).entry
        found = replace(found, entry=entry, word=word, why=f"{len(entries)} nights")
        if word == "faster" and found.nights[-1].is_improvement:
            return replace(found, why=CONFIRMED)
        wait = self._wait(word, len(entries))
        return replace(found, word="waiting", why=f"{word}: {wait}") if wait else found

    def _wait(self, word: str, nights: int) -> str:
        if nights < self.terms.nights:
            return f"{nights} of {self.terms.nights} nights"
        is_refused = word == "slower" and not self.terms.include_slower
        return "a person has to include it" if is_refused else ""


def _is_sure(change: Change) -> bool:
    """Say whether a change is large enough to move an entry, and certain to be one."""
    is_far = abs(change.theta) > LEAST_SHARE * change.threshold
    return is_far and (change.low > 0 or change.high < 0)


def _stay(
    changes: Sequence[Change], old: BaselineEntry, entries: Sequence[BaselineEntry]
) -> tuple[str, str] | None:
    """Return the word and the reason for which an entry stays, if it does."""
    if all(abs(each.theta) <= LEAST_SHARE * each.threshold for each in changes):
        return "same", "inside a third of its threshold"
    if not any(map(_is_sure, changes)):
        return "undecided", "its interval holds no change at all"
    if card := _only_card(old, entries):
        return "undecided", f"only one card says so, {card[:4]}, which the baseline has never seen"
    return None


def _only_card(old: BaselineEntry, entries: Sequence[BaselineEntry]) -> str:
    """Return the card that alone was measured, if the entry does not know it."""
    known, units = (
        {unit for entry in each for metric in entry.metrics.values() for unit in metric.values}
        for each in ([old], entries)
    )
    is_alone = len(units) == 1 and "" not in known and not units & known
    return units.pop() if is_alone else ""


def _write(found: Sequence[Finding], desk: _Desk, root: Path) -> tuple[Path, ...]:
    if not found:
        return ()
    sku, terms = desk.baselines.sku, desk.terms
    folder = sku_folder(root, sku.slug)
    files: dict[Path, bytes] = {}
    with locked(folder):
        ordered = sorted(found, key=lambda each: each.variant)
        for pack, each in groupby(ordered, key=lambda each: each.variant.partition(".")[0]):
            own = {f.variant: f for f in each}
            changed = {
                name: StoredEntry(
                    entry=f.entry, accepted=acceptance_of(_reason(f, terms), terms.by)
                )
                for name, f in own.items()
            }
            text = baseline_text(sku.slug, pack, {**read_pack(folder, pack), **changed})
            files[pack_path(folder, pack)] = text
        runs = {each.nights[-1].runs[-1].id: each.nights[-1].runs[-1] for each in found}
        return write_files(list(runs.values()), sku, folder, files)


def _reason(found: Finding, terms: Terms) -> str:
    """Return what is stored with the entry: a person's words first, then the evidence."""
    dates = [night.date for night in found.nights]
    days = f"{len(dates)} nights {dates[0]} to {dates[-1]}" if dates[1:] else f"1 night {dates[0]}"
    moved = [f"{c.metric} {c.theta:+.2%}" for c in found.changes if _is_sure(c)]
    version = [found.why] if found.word == "new" and found.old else []
    confirmed = ["confirmed"] if found.why == CONFIRMED else []
    evidence = f"{found.word}: {', '.join([*moved, *version, *confirmed, days])}"
    return f"{terms.reason}; {evidence}" if terms.reason.strip() else evidence
