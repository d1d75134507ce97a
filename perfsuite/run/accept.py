"""Accepts a run as baseline, and warns of what would be accepted with it; or as the reference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.boundary import UsageError, is_plain, plain, shown
from perfsuite.judge.compare import Grounds, level_changes
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    BaselineEntry,
    Confirmation,
    Result,
    Run,
    Sku,
    Source,
    Status,
    Variant,
    VariantRun,
    Word,
)
from perfsuite.packs.select import select as matching
from perfsuite.report import view
from perfsuite.run.against import is_same_code
from perfsuite.store.baselines import (
    ADDED,
    NO_FACTS,
    Acceptance,
    Baselines,
    RunFacts,
    Standing,
    StoredEntry,
    facts_of,
    has_sku,
    locked,
    merge,
    other_kind,
    packs_in,
    read_all,
    read_runs,
    read_sku,
    runs_of,
    sku_folder,
    write_entries,
)
from perfsuite.store.runs import list_runs, run_path, write_references
from perfsuite.store.sku import differing, differs, skus_of

# So many variants are named in a line and the rest counted, each with so much of its reason.
_MOST_NAMED, _MOST_REASON = 5, 200
STRANGER = "measured at another commit without pairs: not added"
# Where the reference cannot be measured again, what is unclear may take its place.
NO_SIDE_A = frozenset({"no_git", "squashed", "no_wheel", "no_build", "old_front_door"})


class NothingAcceptedError(UsageError):
    """None of what was selected ended ok."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What an acceptance did: files written, and variants by what became of them.

    ``changed`` says what changed, ``slower`` which of that is worse by more than its threshold,
    ``refused`` how a selected variant ended that has nothing to accept. ``caution`` says what a
    reader of the diff should know of the run.
    """

    written: tuple[Path, ...]
    added: tuple[str, ...]
    changed: Mapping[str, str]
    unchanged: tuple[str, ...]
    refused: Mapping[str, str]
    caution: str = ""
    slower: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{len(self.added)} added, {len(self.changed)} changed, "
            f"{len(self.unchanged)} unchanged, {len(self.refused)} not accepted"
            f"{'; ' if self.caution else ''}{self.caution}"
        )


def accept(run: Run, root: Path, *, reason: str, by: str, select: Sequence[str] = ()) -> Accepted:
    """Store the estimates of a run in ``root``, each for its variant's SKU.

    ``select`` narrows it to variants (ids), cases (``pack.case``) or packs; of an interrupted run
    something must be selected. Entries of other variants, and of those that did not end ok, stay as
    they are, and so do those that did not move by more than noise.
    """
    acceptance = acceptance_of(reason, by)
    chosen = _chosen(run, select)
    variants = {one.id: one.variant for one in run.every}
    # Gangs and compilation targets have SKUs of their own.
    of_variant, found = skus_of(run), entries_of(run)
    skus = {of_variant[name].slug: of_variant[name] for name in found if name in chosen}
    if not skus:
        ended = ", ".join(named(_refused(chosen.values())))
        raise NothingAcceptedError(
            f"nothing was accepted of run {run.id!r}: {ended or 'it has no result'}",
            remedy="measure it again, or select what ended ok by pack, pack.case or variant id",
        )
    for slug, sku in skus.items():
        check_sku(sku, sku_folder(root, slug))
    written: list[Path] = []
    said: dict[str, str] = {}
    slower: dict[str, str] = {}
    strangers: dict[str, str] = {}
    stayed = {verdict.variant for verdict in run.verdicts if verdict.word.stayed}
    for slug, sku in skus.items():
        new = {n: e for n, e in found.items() if n in chosen and of_variant[n].slug == slug}
        folder = sku_folder(root, slug)
        with locked(folder):
            stored = read_all(folder)
            grounds = Grounds(facts=run.facts, slug=slug, policy=run.settings.policy)
            facts = read_runs(folder, runs_of(stored.values()))
            merged = {n: _merged(run, stored.get(n), entry, facts) for n, entry in new.items()}
            said |= {name: what for name, (_, what) in merged.items()}
            left = [n for n, (kept, _) in merged.items() if kept is stored.get(n)]
            left = [n for n in left if n not in stayed or new[n].cards - stored[n].cards]
            strangers |= dict.fromkeys(left, STRANGER)
            changed = {n: StoredEntry.of(e, acceptance) for n, (e, what) in merged.items() if what}
            worse = {
                name: _worse(variants[name], stored[name], new[name], grounds)
                for name in changed
                if name in stored
            }
            slower |= {name: why for name, why in worse.items() if why}
            written += write_entries([run], sku, folder, changed)
    touched = [name for name, what in said.items() if what]
    return Accepted(
        written=tuple(written),
        added=tuple(name for name in touched if said[name] == ADDED),
        changed={name: said[name] for name in touched if said[name] != ADDED},
        unchanged=tuple(n for n, what in said.items() if not what and n not in strangers),
        refused=strangers | _refused(r for n, r in chosen.items() if n not in said),
        caution=_caution(run, touched, slower),
        slower=slower,
    )


def _merged(
    run: Run, old: BaselineEntry | None, new: BaselineEntry, facts: Mapping[str, RunFacts]
) -> tuple[BaselineEntry, str]:
    """Return what becomes of an entry, and in words what that changes; ``facts`` are by run."""
    if old is None:
        return merge(None, new, Standing.OTHER)
    own = old.run_of(sorted(new.cards)) if new.cards and new.cards <= old.cards else ""
    others = differing(facts.get(own, NO_FACTS).environment, run.facts.environment)
    then = facts.get(old.run, NO_FACTS).source_of(new.variant)
    return merge(old, new, _standing(run, old, new, then), environment=others)


def _standing(run: Run, old: BaselineEntry, new: BaselineEntry, then: Source | None) -> Standing:
    """Say what is known of the code of a new entry, beside ``then``, that of the old reference."""
    if is_same_code(then, facts_of(run).source_of(new.variant)):
        return Standing.ONE_CODE
    verdict = next((each for each in run.verdicts if each.variant == new.variant), None)
    if run.against:  # whose verdicts say nothing of the entry, unless it is of that revision
        is_paired = bool(verdict and verdict.in_turns and verdict.word.stayed)
        is_same = is_paired and is_same_code(then, Source(commit=run.against.commit))
        return Standing.PAIRED if is_same else Standing.OTHER
    if verdict is None:
        return Standing.OPEN
    kinds = {reason.kind for reason in verdict.reasons}
    if verdict.word.moved or (verdict.word is Word.UNCLEAR and kinds & NO_SIDE_A):
        return Standing.OTHER
    # Of the reference as it is now, which another acceptance may have replaced.
    told = {each.kind for each in verdict.reasons if each.facts.get("code") == str(then)}
    # Where others' pairs spoke for it, a card's own level moved, and no other's.
    is_sure = verdict.confirmation is Confirmation.IN_TURNS or new.cards <= old.cards
    is_environment = verdict.word is Word.ENVIRONMENT and told and is_sure
    is_paired = bool(told & {"same_in_turns", "same_code_host"})
    return Standing.PAIRED if is_paired or is_environment else Standing.OPEN


def refuse_changed(run: Run, select: Sequence[str] = ()) -> None:
    """Raise UsageError if what is selected of a run is of code that is in no commit."""
    names = _named(run, select, run.variants)
    since = f"changed since {run.commit}, and " * bool(run.commit)
    if changed := sorted({name.partition(".")[0] for name in names if _is_changed(run, name)}):
        raise UsageError(
            f"the code of {', '.join(changed)} is {since}in no commit",
            where=f"run {run.id}",
            remedy="commit it (git status names it) and measure again; or accept it: --allow-dirty",
        )


def _is_changed(run: Run, name: str) -> bool:
    """Say whether a variant's code is in no commit; of what is in no repository the project's."""
    source = run.sources.get(name.partition(".")[0], Source())
    return source.is_changed or (source == Source() and run.is_dirty)


def _caution(run: Run, moved: Sequence[str], slower: Collection[str]) -> str:
    """Say what a reader of the diff should know of the run that the moved entries come from."""
    verdicts = [v for v in run.verdicts if v.variant in moved and not run.against]
    counts = {
        "of them slower than before": len(slower),
        "unclear": sum(verdict.word is Word.UNCLEAR for verdict in verdicts),
        "decided beside the old code": sum(
            verdict.confirmation is Confirmation.IN_TURNS for verdict in verdicts
        ),
    }
    told = [f"{count} {what}" for what, count in counts.items() if count]
    told += [f"measured beside {run.against}"] if run.against and moved else []
    is_changed = any(_is_changed(run, name) for name in moved)
    told += ["of code that is in no commit" + f" ({run.commit})" * bool(run.commit)] * is_changed
    return ", ".join(told)


def _worse(variant: Variant, old: BaselineEntry, new: BaselineEntry, grounds: Grounds) -> str:
    """Say how much worse than the stored entry an accepted one is, beyond the threshold."""
    changes = () if other_kind(old, new) else level_changes(variant, old, [new], grounds)
    worse = (c for c in changes if c.theta > c.threshold)
    told = (f"{c.metric} {view.judged(c)[2]} (threshold {view.share(c.threshold)})" for c in worse)
    return ", ".join(told)


def reset(
    run: Run, folder: Path, roots: Sequence[Path], *, select: Sequence[str] = ()
) -> tuple[str, ...]:
    """Compare later runs with this one in what it measured and has no baseline; return that."""
    if not run.finished or run_path(folder, run.id) not in list_runs(folder):
        raise UsageError(
            f"run {run.id!r} {'is not there' if run.finished else 'was interrupted'}",
            where=str(folder / "runs"),
            remedy="finish it with --perf-resume, or copy its file there",
        )
    chosen = _chosen(run, select)
    measured = [name for name in entries_of(run) if name in chosen]
    skus = skus_of(run)
    stored = Baselines.load_each(roots, skus.values())
    names = tuple(name for name in measured if not stored[skus[name].slug].covers(name))
    if not names:
        told = "what was selected of it has baselines" if measured else "nothing of it ended ok"
        raise UsageError(
            f"run {run.id!r} cannot be the reference: {told}",
            remedy="perfsuite baseline accept changes baselines" if measured else "measure again",
        )
    write_references(folder, run, names)
    return names


def acceptance_of(reason: str, by: str) -> Acceptance:
    """Return who accepts something now, and why; without either it is refused."""
    words = {"reason": " ".join(reason.split()), "by": " ".join(by.split())}
    for name, text in words.items():
        if not text:
            raise UsageError(
                f"a baseline is not accepted without {name!r}",
                remedy='say why, as in --reason "the new driver is in use from today"',
            )
        if not is_plain(text):
            raise UsageError(
                f"{name!r} holds what cannot be stored: {shown(text)}",
                remedy="write it in plain text of up to 4000 characters",
            )
    return Acceptance(**words, when=datetime.now(UTC).isoformat(timespec="seconds"))


def _chosen(run: Run, select: Sequence[str]) -> dict[str, Result]:
    """Return the selected variants that have a result, each with the one that tells most."""
    if not run.finished and not select:
        raise UsageError(
            f"run {run.id!r} was interrupted",
            remedy="finish it with --perf-resume, or accept a part of it: --select 'memory.*'",
        )
    names = _named(run, select, [one for one in run.every if one.results])
    # By stage, the last of each; what did not end ok tells why.
    ended = {(result.variant, result.stage): result for result in run.results}
    worst_last = sorted(ended.values(), key=lambda result: result.status is not Status.OK)
    chosen = {result.variant: result for result in worst_last}
    return {name: result for name, result in chosen.items() if name in names}


def _named(run: Run, select: Sequence[str], every: Sequence[VariantRun]) -> set[str]:
    """Return the ids of those of a run's variants that any selection takes; all without one."""
    known = [one.variant for one in every]
    found = [matching(known, text, of=f"run {run.id}") for text in select] or [(*known,)]
    return {each.id for some in found for each in some}


def _refused(results: Iterable[Result]) -> dict[str, str]:
    """Say how variants ended that have nothing to accept; what was skipped is last."""
    found = {}
    for result in sorted(results, key=lambda result: result.status is Status.SKIPPED):
        told = [result.status.value, *result.reason.splitlines()[:1]]
        told = ["nothing was measured"] if result.status is Status.OK else told
        found[result.variant] = plain(": ".join(told), most=_MOST_REASON)
    return found


def named(refused: Mapping[str, str]) -> Iterator[str]:
    """Yield variants with the reason, a handful at most, and how many more there are."""
    for name in list(refused)[:_MOST_NAMED]:
        yield f"{name} ({refused[name]})"
    if len(refused) > _MOST_NAMED:
        yield f"{len(refused) - _MOST_NAMED} more"


def check_sku(sku: Sku, folder: Path) -> None:
    """Refuse a folder that belongs to another product of the same slug."""
    if not has_sku(folder) and not packs_in(folder):
        return
    if problem := differs(read_sku(folder).facts, sku.facts):
        raise UsageError(
            f"the run's device is not the product of these baselines: {problem}",
            where=str(folder),
            remedy="accept it under another root (ini perf_baselines), or remove the folder first",
        )
