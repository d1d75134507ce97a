"""Proposes what baselines should say after several nights, and says what is wrong with them.

What is proposed is a change to review, never a commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from msgspec import Struct
from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import PerfError, StoreError, UsageError, user_name
from perfsuite.judge.compare import Grounds, is_one_level, level_changes
from perfsuite.judge.noise import entries_of
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.report import view
from perfsuite.report.data import SideView, explained_by
from perfsuite.report.files import markdown_templates
from perfsuite.run.accept import acceptance_of
from perfsuite.run.against import is_same_code
from perfsuite.run.project import (
    BaselinesOption,
    Packs,
    find_project,
    say,
    stored_run,
    time_of,
    with_baselines,
)
from perfsuite.stats import grouped
from perfsuite.store import baselines as store
from perfsuite.store.files import refusing, replace_file
from perfsuite.store.runs import list_runs, load_run
from perfsuite.store.sku import differs, skus_of

# A level is known from so many nights; older ones than the last few only make files longer.
NIGHTS, MOST_NIGHTS = 5, 10
# Without names so many of the newest runs are read: each holds every sample of a night.
MOST_RUNS = 30
# Nothing moves by less of a variant's threshold than this share: it would only make diffs.
LEAST_SHARE = 1 / 3
CONFIRMED = "confirmed"


class Terms(Struct, frozen=True, kw_only=True):
    """What a person asks of a proposal; ``nights`` is how many of them make a level."""

    by: str
    reason: str = ""
    nights: int = NIGHTS
    include_slower: bool = False


class Night(NamedTuple):
    """What the runs of one date say of a variant; ``last`` is what the last one does."""

    date: str
    runs: tuple[model.Run, ...]
    last: model.VariantRun
    entry: model.BaselineEntry


class Finding(Struct, frozen=True, kw_only=True):
    """What nights say of one variant, and what becomes of its entry.

    ``word`` is new, faster or slower where the entry moves; same, waiting (for more nights or for
    a person) or undecided where it stays, and ``why`` says it. ``entry`` is what would be stored.
    """

    sku: str
    variant: str
    word: str
    why: str
    old: store.StoredEntry | None
    entry: model.BaselineEntry
    nights: Sequence[Night]
    changes: tuple[model.Change, ...] = ()

    @property
    def is_proposed(self) -> bool:
        """Say whether the entry is written."""
        return self.word in {"new", "faster", "slower"}

    @property
    def leading(self) -> model.Change | None:
        """The change that moved furthest, seen from its own threshold."""
        known = [each for each in self.changes if each.threshold or each.theta]
        return max(known, key=lambda each: abs(each.theta) / (each.threshold or 1e-9), default=None)

    @property
    def times(self) -> list[tuple[str, float]]:
        """The processes' times by card."""
        found = [night.entry.metrics.get("time_us") for night in self.nights]
        values = [(unit, row) for time in found if time for unit, row in time.values.items()]
        return [(unit, value) for unit, row in values for value in row]

    def origin(self, before: Mapping[str, store.RunFacts]) -> str:
        """Say the runs behind an entry, the commits between, and what the change is made of."""
        runs = [run for night in self.nights for run in night.runs]
        told = [f"from {', '.join(run.id for run in runs)}"]
        if self.old is not None:
            old, new = self.old, self.nights[-1].entry
            facts = before.get(old.run)
            was, now = facts.commit if facts else "", runs[0].commit
            if was and now and was != now:
                told.append(f"commits {view.commit(was)}..{view.commit(now)}")
            time = next((each for each in self.changes if each.metric == "time_us"), None)
            then = SideView.of(old, facts.environment if facts else {})
            now_side = SideView.of(new, runs[-1].facts.environment)
            told.append(explained_by(time, then, now_side).text)
        return "; ".join(filter(None, told))


class Proposal(Struct, frozen=True, kw_only=True):
    """All findings, the runs that count for nothing, and what of the others does not count.

    ``broken`` is by run, ``left_out`` by variant and run. ``earlier`` has the runs that say nothing
    of entries, for they began before the run those come from, by that run. ``before`` are the runs
    that entries come from.
    """

    findings: Sequence[Finding]
    broken: Mapping[str, str]
    left_out: Mapping[tuple[str, str], str]
    earlier: Mapping[str, Sequence[str]]
    written: Sequence[Path]
    before: Mapping[str, store.RunFacts]

    @property
    def newest(self) -> str:
        """The newest run that says anything."""
        return max((night.runs[-1].id for f in self.findings for night in f.nights), default="")


# What one run says of one variant.
_Row = tuple[model.Run, model.VariantRun, model.BaselineEntry]


def propose(
    runs: Sequence[model.Run], root: Path, *, exceptions: Exceptions, terms: Terms
) -> Proposal:
    """Write what nights say to the baselines' files in ``root``, which git then shows.

    Better levels that were confirmed are written at once, others after ``terms.nights``; a worse
    one only with ``include_slower``, however many nights agree. Runs are ordered by the clock of
    their start: after one was set back a night looks earlier than what it should move.
    """
    if terms.include_slower and not terms.reason.strip():
        raise UsageError(
            "a slower level is not proposed without a reason",
            remedy='say why it may stay, as in --reason "the price of the fix of #12"',
        )
    # A run that is named twice is no more evidence than once.
    runs = sorted({run.id: run for run in runs}.values(), key=lambda run: run.id)
    products = _products(runs, root)
    broken = _refused(runs)
    left_out: dict[tuple[str, str], str] = {}
    earlier: dict[str, set[str]] = {}
    seen: dict[tuple[str, str], list[_Row]] = {}
    for run in (each for each in runs if each.id not in broken):
        away, skus = exceptions.quarantined(run), skus_of(run)
        # Of what was confirmed the screen was chosen for its time.
        entries = entries_of(run, [one.last for one in run.variants if one.last])
        for one in run.variants:
            if one.last is None or one.last.status is model.Status.SKIPPED:
                continue
            baselines, entry = products[skus[one.id].slug], entries.get(one.id)
            old = baselines.entries.get(one.id)
            since = max(store.runs_of([old])) if old else ""
            why = differs(baselines.sku.facts, skus[one.id].facts) or _no_level(one)
            if why := str(away[one.id].excepted) if one.id in away else why:
                left_out[one.id, run.id] = why
            elif entry and run.id > since:
                seen.setdefault((baselines.sku.slug, one.id), []).append((run, one, entry))
            elif entry and run.id < since:
                earlier.setdefault(since, set()).add(run.id)
    findings = [
        _finding(_nights(rows), products[slug], terms) for (slug, _), rows in sorted(seen.items())
    ]
    written: list[Path] = []
    for slug, product in sorted(products.items()):
        if own := [each for each in findings if each.sku == slug and each.is_proposed]:
            written += _write(own, product, root, terms)
    return Proposal(
        findings=findings,
        broken=broken,
        left_out=left_out,
        earlier={since: sorted(ids) for since, ids in sorted(earlier.items())},
        written=written,
        before={k: v for each in products.values() for k, v in each.runs.items()},
    )


def _products(runs: Sequence[model.Run], root: Path) -> dict[str, store.Baselines]:
    """Return what is accepted for the SKUs that runs measured; gangs and targets have their own.

    The folder says which product a SKU is, if there is one.
    """
    products = {}
    for slug, sku in {s.slug: s for run in runs for s in (run.sku, *skus_of(run).values())}.items():
        folder = store.sku_folder(root, slug)
        own = store.read_sku(folder) if store.has_sku(folder) else sku
        products[slug] = store.Baselines.load([root], own)
    return products


def _refused(runs: Sequence[model.Run]) -> dict[str, str]:
    """Say why runs count for nothing, by run.

    Shards hold nothing of their own where their merged run is there; of merged runs that share a
    shard the one of most shards counts.
    """
    held: dict[str, str] = {}
    wholes = sorted((run for run in runs if run.parts), key=lambda run: (len(run.parts), run.id))
    for run in reversed(wholes):
        parts = [part.run for part in run.parts]
        if shared := next((part for part in parts if part in held), ""):
            held[run.id] = f"of its shards {shared} counts already: {held[shared]}"
        else:
            held |= dict.fromkeys(parts, f"it is part of {run.id}")
    whys = {run.id: held.get(run.id) or _broken(run) for run in runs}
    return {name: why for name, why in whys.items() if why}


def _broken(run: model.Run) -> str:
    """Say why nothing of a run counts; nothing where it is a whole and quiet night.

    What was measured with changes that are in no commit cannot be measured again by anybody.
    """
    simple = {
        "it was interrupted": not run.finished,
        "it only checked": run.settings.check_only,
        f"it was a comparison with {run.against}": run.against is not None,
        f"its code is in no commit ({run.commit})": run.is_dirty,
    }
    return next((why for why, is_so in simple.items() if is_so), "")


def _no_level(one: model.VariantRun) -> str:
    """Say why what was measured of a variant tells no level, or nothing."""
    verdict = one.verdict
    for result in (one.result(model.Stage.SCREEN), one.last):
        if result and result.status is not model.Status.OK:
            return f"{result.status}: {result.reason}".rstrip(": ")
    if verdict is None:
        return "it was not judged"
    # Nothing decided, of another kind, or over an author's limit, which no baseline would repair.
    if verdict.word in {model.Word.UNCLEAR, model.Word.INCOMPARABLE, model.Word.OVER_BUDGET}:
        return f"{verdict.word}: {verdict.reason}"
    return ""


def _nights(rows: Iterable[_Row]) -> list[Night]:
    """Return a variant's nights, oldest first; runs of one date are one night."""
    dates = grouped(rows, lambda row: row[0].started.partition("T")[0])
    found = []
    for day, same in sorted(dates.items()):
        newest, one, last = same[-1]
        code = _code(newest, one.id)
        alike = [
            (run, entry)
            for run, _, entry in same
            if run is newest
            or (not store.other_kind(entry, last) and is_same_code(_code(run, one.id), code))
        ]
        runs, entries = zip(*alike, strict=True)
        found.append(Night(day, runs, one, store.pooled_entry(entries)))
    return found


def _code(run: model.Run, variant: str) -> model.Source | None:
    return store.facts_of(run).source_of(variant)


def _finding(nights: Sequence[Night], product: store.Baselines, terms: Terms) -> Finding:
    """Say what becomes of an entry after a variant's nights since its run, oldest first."""
    # The last nights that no verdict would tell from each other.
    *earlier, last = nights[-MOST_NIGHTS:]
    level, variant = [last], last.last.variant
    run = last.runs[-1]
    grounds = Grounds(facts=run.facts, slug=product.sku.slug, policy=run.settings.policy)
    for night in reversed(earlier):
        entries = [each.entry for each in level]
        if store.other_kind(night.entry, last.entry) or not is_one_level(
            variant, night.entry, entries, grounds
        ):
            break
        level.insert(0, night)
    entries, code = [night.entry for night in level], _code(run, variant.id)
    # An entry is of one commit, whatever the level was found in.
    kept = [n for n in level if n is last or is_same_code(_code(n.runs[-1], variant.id), code)]
    old = product.entries.get(variant.id)
    found = Finding(
        sku=product.sku.slug,
        variant=variant.id,
        word="new",
        why="it has no entry",
        old=old,
        entry=store.pooled_entry([night.entry for night in kept]),
        nights=level,
    )
    if old is None:
        return found
    if why := differs(old.state, run.facts.state):
        return replace(found, word="undecided", why=f"not comparable: {why}")
    # Other work has another time, which says nothing of the old one.
    if (was := old.case_version) != (version := last.entry.case_version):
        return replace(found, why=f"case version was {was} and is {version}")
    if why := store.other_sampling(old, last.entry):
        return replace(found, why=why)
    found = replace(found, changes=level_changes(variant, old, entries, grounds))
    if stay := _stay(found.changes, old, entries):
        # Metrics that came or went are recorded where nothing else moves with them.
        kind = store.other_kind(replace(old, state=found.entry.state), found.entry)
        word, why = ("new", kind) if kind and stay[0] == "same" else stay
        return replace(found, word=word, why=why)
    before = product.runs.get(old.run, store.NO_FACTS).source_of(variant.id)
    standing = store.Standing.ONE_CODE if is_same_code(before, code) else store.Standing.OTHER
    return _moved(replace(found, entry=store.merge(old, found.entry, standing)[0]), terms)


def _moved(found: Finding, terms: Terms) -> Finding:
    """Say where a level moved to, and whether that is known and meant well enough."""
    moved = [each for each in found.changes if _is_sure(each)]
    word = "slower" if any(each.theta > 0 for each in moved) else "faster"
    verdict, nights = found.nights[-1].last.verdict, len(found.nights)
    found = replace(found, word=word, why=f"{nights} nights")
    # A faster level that was confirmed, or counted, needs no second night.
    if verdict and word == verdict.word == model.Word.FASTER:
        is_counted = any(each.theta < 0 and not each.degrees for each in verdict.changes)
        if verdict.confirmation or is_counted:
            return replace(found, why=CONFIRMED)
    if nights < terms.nights:
        return replace(found, word="waiting", why=f"{word}: {nights} of {terms.nights} nights")
    if word == "slower" and not terms.include_slower:
        return replace(found, word="waiting", why=f"{word}: a person has to include it")
    return found


def _is_sure(change: model.Change) -> bool:
    """Say whether a change is large enough to move an entry, and certain to be one."""
    is_far = abs(change.theta) > LEAST_SHARE * change.threshold
    return is_far and (change.low > 0 or change.high < 0)


def _stay(
    changes: Sequence[model.Change],
    old: model.BaselineEntry,
    entries: Sequence[model.BaselineEntry],
) -> tuple[str, str] | None:
    """Return the word and the reason for which an entry stays, if it does."""
    if all(abs(each.theta) <= LEAST_SHARE * each.threshold for each in changes):
        return "same", "inside a third of its threshold"
    if not any(map(_is_sure, changes)):
        return "undecided", "its interval holds no change at all"
    cards = frozenset[str]().union(*(entry.cards for entry in entries))
    if len(cards) == 1 and "" not in old.cards and not cards & old.cards:
        (card,) = cards
        return "undecided", f"only one card says so, {card[:4]}, which the baseline has never seen"
    return None


def _write(
    proposed: Sequence[Finding], product: store.Baselines, root: Path, terms: Terms
) -> tuple[Path, ...]:
    """Write what is proposed for a SKU."""
    sku = product.sku
    folder = store.sku_folder(root, sku.slug)
    with store.locked(folder):
        entries = {
            each.variant: store.StoredEntry.of(
                each.entry, acceptance_of(_reason(each, terms), terms.by)
            )
            for each in proposed
        }
        used = store.runs_of(entries.values())
        seen = (run for each in proposed for night in each.nights for run in night.runs)
        runs = {run.id: run for run in seen if run.id in used}
        return store.write_entries(list(runs.values()), sku, folder, entries)


def _reason(found: Finding, terms: Terms) -> str:
    """Return what is stored with the entry: a person's words first, then the evidence."""
    dates = [night.date for night in found.nights]
    days = f"{len(dates)} nights {dates[0]} to {dates[-1]}" if dates[1:] else f"1 night {dates[0]}"
    told = [f"{c.metric} {100 * c.theta:+.2f} %" for c in found.changes if _is_sure(c)]
    if (found.word == "new" and found.old) or found.why == CONFIRMED:
        told.append(found.why)
    evidence = f"{found.word}: {', '.join([*told, days])}"
    return f"{terms.reason}; {evidence}" if terms.reason.strip() else evidence


def markdown(proposal: Proposal) -> str:
    """Return the page: of each entry old, new, change, evidence and cause.

    Names and reasons are escaped, never markup.
    """
    page = markdown_templates().get_template("proposal.md.j2")
    return page.render(found=proposal, time_of=time_of) + "\n"


def propose_command(  # noqa: PLR0913, PLR0917 - a command line
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help=f"Files or ids; else the newest {MOST_RUNS}"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="For the page; else it is said")
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; stored before the evidence")
    ] = "",
    nights: Annotated[int, typer.Option(metavar="N", min=1, help="So many make a level")] = 5,
    include_slower: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--include-slower", help="Worse levels too; needs --reason")
    ] = False,
    baselines: BaselinesOption = None,
) -> None:
    """Write what the last nights say to the baselines' files.

    Nothing is committed: look at git diff.
    A page in Markdown says of each entry what it was and will be, how sure
    that is, and why.
    """
    project = with_baselines(find_project(), baselines)
    roots = project.baselines
    named = [stored_run(project, name) for name in runs or ()]
    known = [] if runs else list_runs(project.folder)
    if older := len(known[MOST_RUNS:]):
        say(f"not read: {older} runs that are older by their clocks; name those that are to count")
    for path in known[:MOST_RUNS]:
        try:
            named.append(load_run(path))
        except PerfError as error:  # it is no night
            say(f"not read: {' '.join(str(error).split())}")
    found = propose(
        named,
        roots[0],
        exceptions=Exceptions.load(roots, datetime.now(UTC).date()),
        terms=Terms(by=user_name(), reason=reason, nights=nights, include_slower=include_slower),
    )
    page = markdown(found)
    if output:
        with refusing("cannot write the page", output, remedy="name a file that can be written"):
            say(f"wrote {replace_file(output, page.encode())}")
    else:
        say(page)
    for path in found.written:
        say(f"wrote {path}")


# What is wrong with a folder of baselines: files, stale and missing entries, exceptions.


def problems_in(
    root: Path,
    packs: Sequence[model.Pack],
    *,
    today: date,
    older_than: int = 180,
    tier: model.Tier | None = None,
) -> Iterator[StoreError]:
    """Yield what is wrong with baselines, the SKUs by name and the exceptions last.

    ``packs`` have the variants of every tier, ``older_than`` is in days. With a ``tier`` its
    variants must have entries where others of the same case and needs have one.
    """
    known = {pack.name: pack for pack in packs}
    for folder in (root / name for name in store.folders_in(root)):
        try:
            yield from _of_folder(folder, known, today=today, older_than=older_than, tier=tier)
        except StoreError as error:
            yield error
    try:
        exceptions = Exceptions.load([root], today)
    except StoreError as error:
        yield error
        return
    variants = [each for pack in packs for each in _variants(pack).values()]
    broken = ", ".join(pack.name for pack in packs if pack.error)
    rest = f" of the packs that can be listed (not {broken})" if broken else ""
    for rule in exceptions.rules:
        what, where = f"the {rule.excepted.kind} of {rule.select!r}", rule.where
        if not rule.acts(today):
            remedy = "repair the case and remove it, or prolong it"
            yield StoreError(f"{what} expired on {rule.expires}", where=where, remedy=remedy)
        elif not any(map(rule.accepts, variants)):
            remedy = "correct or remove it"
            yield StoreError(f"{what} matches nothing{rest}", where=where, remedy=remedy)


def _of_folder(
    folder: Path,
    packs: Mapping[str, model.Pack],
    *,
    today: date,
    older_than: int,
    tier: model.Tier | None,
) -> Iterator[StoreError]:
    """Yield what is wrong with one SKU: its packs' files, entries and runs."""
    stored: dict[str, store.StoredEntry] = {}
    is_whole = True
    try:
        store.read_sku(folder)
    except StoreError as error:
        yield error
    for name in store.packs_in(folder):
        try:
            own = store.read_pack(folder, name)
        except StoreError as error:
            is_whole = False
            yield error
            continue
        stored |= own
        path = str(store.pack_path(folder, name))
        found = (*_of_pack(name, packs.get(name), own, tier), *_aged(own, today, older_than))
        yield from (StoreError(what, where=path, remedy=remedy) for what, remedy in found)
    of_run = Counter(run for each in stored.values() for run in store.runs_of([each]))
    for run, many in sorted(of_run.items()):
        try:
            if not store.read_runs(folder, [run]):
                what = f"entries come from run {run!r}, of which no file is kept: {many}"
                where = str(store.run_path(folder, run))
                yield StoreError(what, where=where, remedy="restore it from git")
        except StoreError as error:
            yield error
    # What a damaged file refers to is not known.
    for left in store.runs_in(folder) if is_whole else ():
        if left.stem not in of_run:
            what = f"no entry comes from run {left.stem!r}"
            yield StoreError(what, where=str(left), remedy="remove the file")


def _of_pack(
    name: str,
    pack: model.Pack | None,
    own: Mapping[str, store.StoredEntry],
    tier: model.Tier | None,
) -> Iterator[tuple[str, str]]:
    """Yield which entries of a pack are stale or missing, and what to do about it."""
    if pack is None or pack.error:
        why = f"cannot be listed ({pack.error})" if pack else "is not installed, or not in --packs"
        what = f"pack {name!r} {why}: its {len(own)} entries cannot be checked"
        yield what, "repair or install the pack, or remove the file"
        return
    known = _variants(pack)
    for variant, stored in own.items():
        if variant not in known:
            remedy = "remove the entry, or accept the variant that took its place"
            yield f"{variant} is stale: no such variant is left", remedy
        elif (was := stored.case_version) != (version := known[variant].case.version):
            what = f"{variant} is of version {was} of its case, now {version}"
            yield what, "propose or accept a run of the new version"
    tiers = list(model.Tier)[: list(model.Tier).index(tier) + 1] if tier else []
    kinds = {_kind(known[variant]) for variant in own if variant in known}
    lacking = [each for name, each in known.items() if name not in own and each.tier in tiers]
    lacking = [each for each in lacking if _kind(each) in kinds]
    for (_, at), same in groupby(lacking, lambda each: (each.case.name, each.tier)):
        first, *more = (each.id for each in same)
        what = f"{first}{f' (and {len(more)} more)' * bool(more)} of tier {at} has no entry"
        yield f"{what}, others of its case have one", "measure and propose or accept it"


def _aged(
    own: Mapping[str, store.StoredEntry], today: date, older_than: int
) -> Iterator[tuple[str, str]]:
    """Yield which entries nobody has looked at for long."""
    for variant, stored in own.items():
        when = stored.accepted.when
        try:
            days = (today - datetime.fromisoformat(when).date()).days
        except ValueError:
            yield f"{variant} was accepted at {when!r}, no moment", "accept a run again"
            continue
        if days > older_than:
            what = f"{variant} was accepted {days} days ago, limit {older_than}"
            yield what, "accept or propose it anew"


def _variants(pack: model.Pack) -> dict[str, model.Variant]:
    canaries = (variant for each in pack.canaries.values() for variant in each)
    return {variant.id: variant for variant in (*canaries, *pack.variants)}


def _kind(variant: model.Variant) -> tuple[object, ...]:
    """Return what tells where a variant can run: siblings that share it run alike."""
    return variant.case.name, variant.ranks, variant.target, str(variant.needs)


def lint(
    tier: Annotated[
        model.Tier | None, typer.Option(help="Also look for missing entries, up to this tier")
    ] = None,
    older_than: Annotated[
        int, typer.Option(min=1, metavar="DAYS", help="Say which entries are")
    ] = 180,
    only: Packs = None,
    baselines: BaselinesOption = None,
) -> None:
    """Say what is wrong with baselines and exceptions. Exit code 1 if anything is."""
    if baselines and not baselines.is_dir():
        raise UsageError(
            "there is no such folder of baselines", where=str(baselines), remedy="name one that is"
        )
    project = with_baselines(find_project(only, tier=model.Tier.FULL), baselines)
    roots, packs, today = project.baselines, project.chosen().packs, datetime.now(UTC).date()
    problems = [
        each
        for root in roots
        for each in problems_in(root, packs, today=today, older_than=older_than, tier=tier)
    ]
    for each in problems:
        say(" ".join(f"{each.where}: {each.what}; {each.remedy}".split()))
    say(f"{view.count(len(problems), 'problem')} in {', '.join(map(str, roots))}")
    raise typer.Exit(1 if problems else 0)
