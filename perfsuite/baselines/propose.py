"""Proposes what baselines should say after several nights: a change to review, never a commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from perfsuite.baselines.accept import acceptance_of, write_files
from perfsuite.baselines.exceptions import Exceptions
from perfsuite.baselines.folder import locked, pack_path, read_pack, read_sku, sku_folder, sku_path
from perfsuite.baselines.load import Baselines
from perfsuite.baselines.merge import merge, other_kind, pooled_entry
from perfsuite.baselines.nights import Night, Told, broken, nights_of, state_differs, told_by
from perfsuite.codec import StoredEntry, baseline_text
from perfsuite.errors import UsageError
from perfsuite.judge import Against, is_one_level, learned, level_changes
from perfsuite.model import BaselineEntry, Change, Run, Sku
from perfsuite.sku import sku_for

# A level is known from so many nights; an older one than the last few only makes files longer.
NIGHTS, MOST_NIGHTS = 5, 10
# Nothing moves by less of a variant's threshold than this share: it would only make diffs.
LEAST_SHARE = 1 / 3
PROPOSED = ("new", "faster", "slower")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a person asks of a proposal; ``nights`` is how many of them make a level."""

    by: str
    reason: str = ""
    nights: int = NIGHTS
    include_slower: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What nights say of one variant, and what becomes of its entry.

    ``word`` is new, faster or slower where the entry moves; same, waiting (for more nights or for
    a person) or undecided where it stays, and ``why`` says it. ``entry`` is what would be stored.
    """

    sku: str
    variant: str
    word: str
    why: str
    old: StoredEntry | None
    entry: BaselineEntry
    nights: tuple[Night, ...]
    changes: tuple[Change, ...] = ()

    @property
    def is_proposed(self) -> bool:
        """Say whether the entry is written."""
        return self.word in PROPOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """All findings, the runs that count for nothing, and what of the others does not count.

    ``broken`` is by run, ``left_out`` by variant and run. ``environments`` and ``commits`` are
    those of the runs that old entries come from.
    """

    findings: tuple[Finding, ...]
    broken: Mapping[str, str]
    left_out: Mapping[tuple[str, str], str]
    written: tuple[Path, ...]
    environments: Mapping[str, Mapping[str, str]]
    commits: Mapping[str, str]


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
    ordered = sorted(runs, key=lambda run: run.id)
    newest = {sku.slug: (run, sku) for run in ordered for sku in _skus(run)}
    desks = {slug: _Desk.open(*of, root=root, terms=terms) for slug, of in newest.items()}
    told, refused = _sorted_out(runs, desks, exceptions)
    findings: list[Finding] = []
    written: list[Path] = []
    for slug, desk in sorted(desks.items()):
        found = list(desk.findings(nights_of(told, slug)))
        written += _write([each for each in found if each.is_proposed], desk, root)
        findings += found
    kept = [facts for each in desks.values() for facts in each.baselines.runs.values()]
    return Proposal(
        findings=tuple(findings),
        broken=refused,
        left_out={(n, each.run.id): why for each in told for n, why in each.left_out.items()},
        written=tuple(written),
        environments={facts.run: facts.environment for facts in kept},
        commits={facts.run: facts.commit for facts in kept},
    )


def _skus(run: Run) -> list[Sku]:
    found = [run.sku, *(sku_for(variant, run.facts, own=run.sku) for variant in run.variants)]
    return list({sku.slug: sku for sku in found}.values())


def _sorted_out(
    runs: Iterable[Run], desks: Mapping[str, _Desk], exceptions: Exceptions
) -> tuple[list[Told], dict[str, str]]:
    """Return what whole runs have to say, and why the others have nothing."""
    told, refused = [], {}
    facts = {slug: desk.baselines.sku.facts for slug, desk in desks.items()}
    for run in runs:
        own, away = desks[run.sku.slug], exceptions.quarantined(run)
        quiet = replace(run, canaries=tuple(c for c in run.canaries if c.id not in away))
        against = replace(own.against, facts=run.facts)
        if why := broken(quiet, against, own.baselines.entries):
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
        sku = read_sku(folder) if sku_path(folder).exists() else sku
        baselines = Baselines.load([root], sku)
        known = tuple(baselines.entries.values())
        source = f"baseline {sku.slug}"
        against = Against(facts=run.facts, slug=sku.slug, source=source, known=known)
        return cls(baselines, learned(against, run.variants), terms)

    def findings(self, nights: Mapping[str, Sequence[Night]]) -> Iterator[Finding]:
        """Yield what nights say of each variant that has any since its entry's run."""
        for name, every in nights.items():
            old = self.baselines.stored.get(name)
            later = [n for n in every if old is None or n.runs[-1].id > old.entry.run]
            if later:
                yield self._finding(old, later)

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
        if why := other_kind(replace(old.entry, state=last.entry.state), last.entry):
            return replace(found, why=why)
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
        far = [each for each in changes if abs(each.theta) > LEAST_SHARE * each.threshold]
        moved = [each for each in far if each.low > 0 or each.high < 0]
        if not far:
            return replace(found, word="same", why="inside a third of its threshold")
        if not moved:
            return replace(found, word="undecided", why="its interval holds no change at all")
        is_other_code = any(abs(each.theta) > each.threshold for each in moved)
        entry = merge(old, found.entry, is_other_code=is_other_code).entry
        word = "slower" if any(each.theta > 0 for each in moved) else "faster"
        found = replace(found, entry=entry, word=word, why=f"{len(found.nights)} nights")
        if word == "faster" and found.nights[-1].is_improvement:
            return replace(found, why="confirmed")
        if len(found.nights) < self.terms.nights:
            why = f"{word}: {len(found.nights)} of {self.terms.nights} nights"
            return replace(found, word="waiting", why=why)
        if word == "slower" and not self.terms.include_slower:
            return replace(found, word="waiting", why="slower: a person has to include it")
        return found


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
    count, dates = len(found.nights), [night.date for night in found.nights]
    days = dates[0] if count == 1 else f"{dates[0]} to {dates[-1]}"
    moved = [f"{c.metric} {c.theta:+.2%}" for c in found.changes if abs(c.theta) > c.threshold / 3]
    evidence = f"{found.word} ({found.why}): {', '.join([*moved, f'{count} nights {days}'])}"
    return f"{terms.reason}; {evidence}" if terms.reason.strip() else evidence
