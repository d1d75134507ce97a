"""The command line: doctor, list, run, compare, baselines, reports."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import webbrowser
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from typer.core import TyperArgument

import perfsuite
from perfsuite import model
from perfsuite.boundary import PerfError, StoreError, UsageError, from_environment, user_name
from perfsuite.devices.protocol import join_elastic, listed
from perfsuite.hooks import features
from perfsuite.judge.noise import entries_of
from perfsuite.judge.verdict import judge
from perfsuite.packs import GRAMMAR
from perfsuite.packs.find import TAKEN_NAMES, discover
from perfsuite.packs.select import missing_need
from perfsuite.packs.select import select as chosen
from perfsuite.report import files, view
from perfsuite.report.data import RunView, read
from perfsuite.report.terminal import accounts_of, summary
from perfsuite.run.config import Config, exceptions_of
from perfsuite.run.expected import find_expected
from perfsuite.run.finish import run_view_of
from perfsuite.run.project import (
    BaselinesOption,
    Device,
    Packs,
    estimate_words,
    find_project,
    say,
    say_error,
    say_table,
    stored_run,
    time_of,
    with_baselines,
)
from perfsuite.run.run import Outcome
from perfsuite.stats import grouped
from perfsuite.store import baselines as kept
from perfsuite.store.files import encode, refusing, replace_file
from perfsuite.store.runs import last_run, list_runs, load_run
from perfsuite.store.sku import differing, differs, sku_for, sku_of
from perfsuite.workers.messages import Job, raw
from perfsuite.workers.messages import read as received
from perfsuite.workers.panel import Seat, job_of
from perfsuite.workers.process import Code, Setup, child_environment, gang_unit, merged
from perfsuite.workers.server import opened
from perfsuite.workers.units import lock, open_panels, products_of, resolved, spoilers

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
baseline_commands = typer.Typer(help="The accepted numbers of each SKU.", no_args_is_help=True)
app.add_typer(baseline_commands, name="baseline")


def _say_version(is_asked: bool) -> None:  # noqa: FBT001 - Typer's
    if is_asked:
        say(f"perfsuite {perfsuite.__version__}")
        raise typer.Exit


@app.callback()
def version_option(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say its version"),
    ] = False,
) -> None:
    """GPU performance regression suite. Measuring itself is: pytest --perf."""


Newest = Annotated[
    str, typer.Argument(metavar="RUN", help="A run file or id; the newest if left out")
]
_select = typer.Option("--select", metavar="EXPR", help=f"As --perf-select: {GRAMMAR}")
Select = Annotated[str, _select]
Selected = Annotated[list[str] | None, _select]
TierOption = Annotated[model.Tier, typer.Option(help="How many values of each axis")]


@app.command()
def doctor(
    tier: TierOption = model.Tier.NIGHTLY,
    device: Device = "auto",
    only: Packs = None,
    baselines: BaselinesOption = None,
    *,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 20 if the device is in use")
    ] = False,
) -> None:
    """Say what this machine is and what would spoil a comparison.

    It counts what cannot run here, with the reasons.
    """
    say_software()
    project = find_project(only, tier=tier).chosen()
    packs = project.packs
    say_broken(packs)
    for own, name in ((each.accelerator, each.name) for each in packs if each.accelerator):
        has = f"has {', '.join(own.units)}" if own.units else "has none"
        say(f"Device {own.name} of the pack {name}: this machine {has}")
    # Last comes what may fail: the device is opened, as a run would.
    with ExitStack() as stack:
        panels = open_panels(device, packs, model.Settings(processes=1), stack)
        units = [panel.facts for panel in panels]
    say_device(units)
    say_baselines(units[0], with_baselines(project, baselines).baseline_roots)
    reasons = Counter(missing_need(variant, units[0]) for variant in project.variants)
    runnable = reasons.pop("", 0)
    told = f"Tier {tier.value}: {runnable} of {len(project.variants)} variants can run here"
    say(told if project.variants else "No variant was found: perfsuite new-pack NAME writes a pack")
    if reasons:
        rows = ((str(count), reason) for reason, count in reasons.most_common())
        say_table("Skipped", ("variants", "because it"), rows)
    if say_spoilers(units) and strict:
        raise typer.Exit(20)


def say_broken(packs: Sequence[model.Pack]) -> bool:
    """Say which packs cannot be listed, and whether there are any; and what others left out."""
    for each in packs:
        if each.error or each.note:
            told = f" cannot be listed: {each.error}" if each.error else f": {each.note}"
            say(f"Pack {each.name}{told}", stderr=True)
    return any(each.error for each in packs)


@app.command("list")
def list_variants(
    tier: TierOption = model.Tier.SMOKE,
    select: Select = "",
    only: Packs = None,
    *,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Count those with a baseline, by pack and SKU")
    ] = False,
) -> None:
    """List the variants of a tier. Exit code 1 if a pack cannot be listed."""
    project = find_project(only, tier=tier, select=select).chosen()
    is_broken = say_broken(project.packs)
    if coverage:
        say_coverage(with_baselines(project, None))
        raise typer.Exit(is_broken)
    rows = []
    for members in grouped(project.variants, lambda each: (each.pack, each.case.name)).values():
        for each in members:
            needs = ", ".join(dict.fromkeys(f"{need.kind} {need.value}" for need in each.needs))
            # A case is described once, beside its first variant.
            doc = each.case.doc.partition("\n")[0] if each is members[0] else ""
            rows.append((each.id, each.tier.value, needs, doc))
    say_table(view.count(len(rows), "variant"), ("variant", "from tier", "needs", "what"), rows)
    raise typer.Exit(is_broken)


def say_coverage(project: Config) -> None:
    """Say how many variants of each pack have a baseline here, of their case's version, by SKU."""
    every = {each.id: each for each in project.variants}
    held: dict[str, set[str]] = {}
    for folder in (root / slug for root in project.baselines for slug in kept.skus_in(root)):
        entries = {n: e for n, e in kept.read_all(folder).items() if n in every}
        own = {n for n, e in entries.items() if e.case_version == every[n].case.version}
        held[folder.name] = held.get(folder.name, set()) | own
    rows = []
    for pack in [*sorted({each.pack for each in every.values()}), "all"]:
        own = {name for name, each in every.items() if pack in {each.pack, "all"}}
        known = own & set().union(*held.values())
        counts = [str(len(own & each) or view.NOTHING) for each in held.values()]
        share = f"{len(known)} ({view.share(len(known) / max(1, len(own)))})"
        rows.append((pack, str(len(own)), share, *counts))
    say_table("Variants with a baseline", ("pack", "variants", "with one", *held), rows)


@app.command()
def run(  # noqa: PLR0913, PLR0917 - a command line
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="The id, as in reports")],
    profiler: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROFILER", help="After --: a command to run it under, e.g. ncu"),
    ] = None,
    launches: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many, after one warm-up")
    ] = 10,
    device: Device = "auto",
    only: Packs = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Under torchrun: write the result")
    ] = None,
) -> None:
    """Run one variant alone: build, check, launch. With "-- ncu --set full" it is profiled.

    Under a profiler it is not checked, so that the profile is of the launches only.
    Started by torchrun, it measures with the other ranks.
    """
    project = find_project(only, tier=model.Tier.FULL, select="".join(variant.split())).chosen()
    # All packs are listed: one may ask for the kernels of the others.
    packs, (found, *others) = project.packs, project.variants or [None]
    if found is None and (errors := [pack.error for pack in packs if pack.error]):
        raise UsageError("\n".join(errors))
    if found is None or others:
        remedy = "copy the id of one from perfsuite list, in quotes"
        raise UsageError(f"{variant!r} is not one variant", remedy=remedy)
    home = next(each for each in packs if each.name == found.pack)
    where, _, own = resolved(device, packs)
    is_rank = found.is_gang and "WORLD_SIZE" in os.environ
    settings = model.Settings(check_only=not is_rank)
    setup = Setup(device=where, accelerator=own, own=Code.of([home]), settings=settings)
    order = Order(job_of(found, setup, Seat(0, 0)), found, launches, not profiler, tuple(sys.path))
    raise typer.Exit(launch_rank(order, json) if is_rank else launch(order, profiler or ()))


@app.command("new-pack")
def make_pack(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Of the pack: it stands first in its variants' ids"),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Where to write it; default: NAME-perf"),
    ] = None,
    repo: Annotated[bool, typer.Option("--repo", help="With CI for GitHub")] = False,  # noqa: FBT002
) -> None:
    """Write the start of a pack: a case, its kernels and its tests."""
    taken = [source.name for source in discover(find_project().root)]
    place = new_pack(name, folder, taken=taken, repo=repo)
    say(f"wrote {place}")
    say(f"next: pip install -e {shlex.quote(str(place))} && pytest --perf --perf-packs {name}")
    say("then make it yours: its README.md says how")


@app.command()
def report(
    run: Newest = "",
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where to write it")
    ] = Path("reports"),
    baselines: BaselinesOption = None,
) -> None:
    """Write the report of a stored run again."""
    project = with_baselines(find_project(), baselines).chosen()
    say(str(files.write_report(viewed(project, stored_run(project, run)), folder)))


@app.command()
def runs() -> None:
    """List the stored runs, the newest first."""
    if not (paths := list_runs(find_project().folder)):
        stored_run(find_project())  # refuses: there is none
    told = {p.stem: (p.stem, "", "", "", f"damaged: perfsuite report {p.stem}") for p in paths}
    for path in paths:
        with suppress(StoreError):
            found = load_run(path)
            words = {one.variant: one.status.value for one in found.asked if one.status != "ok"}
            words |= {verdict.variant: verdict.word.value for verdict in found.verdicts}
            outcome = view.tallied(view.tallies(map(view.mark, words.values()))) or "no verdict"
            outcome = outcome if found.finished else "interrupted"
            when, commit = found.started.replace("T", " ")[:16], view.commit(found.commit)
            told[path.stem] = (found.id, when, found.sku.slug, commit, outcome)
    columns = ("run", "started, UTC", "SKU", "commit", "outcome")
    say_table(view.count(len(told), "run"), columns, told.values())


@app.command()
def why(
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help=GRAMMAR.capitalize())],
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Default: the newest")] = "",
) -> None:
    """Say why a variant got its verdict, with its numbers."""
    project = find_project()
    run_view = viewed(with_baselines(project, None), stored_run(project, run))
    accounts, known = accounts_of(run_view), {n.id: n.variant for n in run_view.run.every}
    for each in chosen([known.get(n, n) for n in accounts], variant, of=f"run {run_view.run.id}"):
        name = each if isinstance(each, str) else each.id
        say(f"{name}\n{accounts[name].text}\n")


@app.command("open")
def open_page() -> None:
    """Open the newest run's report in the browser. Say where it lies."""
    found = stored_run(find_project())
    page = find_project().root / "reports" / found.id / files.PAGE
    if not page.is_file():
        remedy = f"perfsuite report {found.id}"
        raise UsageError("its report is not there", where=str(page), remedy=remedy)
    say(str(page))
    webbrowser.open(page.as_uri())


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Run files or ids: A B, or more")
    ],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page, too")] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a comment's text, too")
    ] = None,
    *,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="List what is the same")] = False,
) -> None:
    """Judge run B as if run A were its baseline. Exit code 1 if something fails.

    Three runs or more, or runs of several products, stand side by side, without a verdict.
    """
    project = find_project()
    earlier, *later = found = [stored_run(project, name) for name in runs]
    if not later:
        raise UsageError("one run is nothing to compare", remedy="name two: perfsuite runs")
    if len(later) > 1 or later[0].sku.slug != earlier.sku.slug:
        if markdown:
            raise UsageError("--markdown is for two runs of one SKU", remedy="leave it out")
        views = [read(run, baselines={}) for run in found]
        say_beside(views)
        _write(html, files.render_beside(views))
        return
    run_view = judged_against(later[0], earlier)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in summary(run_view, is_verbose=verbose, is_brief=not verbose, width=width):
        say(line)
    _write(html, files.render_page(run_view))
    _write(markdown, files.comment(run_view))
    raise typer.Exit(1 if run_view.fails else 0)


def _write(path: Path | None, text: str) -> None:
    if path:
        with refusing("cannot write the comparison", path, remedy="name another file"):
            say(f"wrote {replace_file(path, text.encode('utf-8', 'replace'))}")


def say_beside(run_views: Sequence[RunView]) -> None:
    """Say what each variant took in each run, and how many times faster than in the first."""
    first, *others = files.names_of(run_views)
    rows = []
    for name, held in files.across(
        [{one.id: one for one in each.ran} for each in run_views]
    ).items():
        told = [one.shown.now if one else view.NOTHING for one in held]
        start, *later = [one.now() if one else None for one in held]
        faster = [view.ratio(start / now if start and now else None) for now in later]
        rows.append((name, told[0], *chain(*zip(told[1:], faster, strict=True))))
    columns = ("variant", first, *chain(*((other, "times faster") for other in others)))
    say_table(f"Each against {first}: no verdict", columns, rows)


@baseline_commands.command()
def accept(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run file or id")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; stored with the numbers")],
    select: Selected = None,
    baselines: BaselinesOption = None,
    *,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Also of a changed tree: code in no commit")
    ] = False,
) -> None:
    """Make what ended ok of a run the baseline of its SKU.

    What changes, gets slower or is not accepted is listed. Exit code 1 if nothing ended ok.
    """
    from perfsuite.run.accept import NothingAcceptedError, refuse_changed
    from perfsuite.run.accept import accept as make_baseline

    project = with_baselines(find_project(), baselines)
    found = stored_run(project, run)
    if not allow_dirty:
        refuse_changed(found, select or ())
    try:
        accepted = make_baseline(
            found, project.baselines[0], reason=reason, by=user_name(), select=select or ()
        )
    except NothingAcceptedError as error:
        say_error(error)
        raise typer.Exit(1) from error
    changed = {**accepted.changed, **{n: f"SLOWER: {why}" for n, why in accepted.slower.items()}}
    rows = []
    for outcome, told in (("changed", changed), ("not accepted", accepted.refused)):
        for why, names in grouped(told, told.__getitem__).items():
            rest = [f"{len(names) - 3} more"] if names[3:] else []
            rows.append((", ".join([*names[:3], *rest]), outcome, why))
    if rows:  # what is added or unchanged is only counted
        say_table(f"Accepted from run {run}", ("variant", "outcome", "why"), rows)
    say(f"accepted: {accepted}")
    for path in accepted.written:
        say(f"wrote {path}")


@baseline_commands.command()
def reset(run: Newest = "", select: Selected = None, baselines: BaselinesOption = None) -> None:
    """Compare later runs with this one where there is no baseline.

    Without a reset the first run counts. The newest is the newest that ended.
    """
    from perfsuite.run.accept import reset as refer

    project = with_baselines(find_project(), baselines)
    newest = None if run else last_run(project.folder)
    found = newest or stored_run(project, run)
    names = refer(found, project.folder, project.baselines, select=select or ())
    say(f"run {found.id} is the reference of {view.count(len(names), 'variant')} from now on")


@baseline_commands.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A folder or a revision")] = "HEAD",
    now: Annotated[
        str, typer.Argument(metavar="B", help="Likewise; the working tree if left out")
    ] = "",
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a review")] = False,
    baselines: BaselinesOption = None,
) -> None:
    """Show what differs between two states of the baselines, and why."""
    from perfsuite.store.git import folder_at

    root = with_baselines(find_project(), baselines).baselines[0]
    rows = []
    with ExitStack() as stack:
        folders = []
        for name in (before, now):
            if not name or Path(name).is_dir():
                folders.append(Path(name) if name else root)
            else:
                place = Path(stack.enter_context(TemporaryDirectory()))
                folders.append(folder_at(root, name, place))
        for each in kept.differences(*folders):
            sides = (each.old, each.new)
            times = [time_of(side) if side else "" for side in sides]
            reasons = [side.accepted.reason if side else "" for side in sides]
            change = view.percent(each.change) if each.change is not None else ""
            rows.append((each.sku, each.variant, *times, change, each.what, *reasons))
    columns = ("SKU", "variant", "time before", "now", "change", "what", "reason before", "now")
    if markdown:
        for row in (columns, ["---"] * len(columns), *rows):
            say(f"| {' | '.join(map(files.in_markdown, row))} |")
    else:
        say_table(f"{before} against {now or 'the working tree'}", columns, rows)
    say(f"differences: {len(rows)}")


@baseline_commands.command()
def show(
    sku: Annotated[
        str, typer.Argument(metavar="SKU", help="As in the folder's name; all if left out")
    ] = "",
    variant: Annotated[
        str, typer.Argument(metavar="VARIANT", help=f"One id, for all that is kept, or {GRAMMAR}")
    ] = "",
    baselines: BaselinesOption = None,
) -> None:
    """Show which SKUs have baselines, those of one SKU, or one in full."""
    roots = with_baselines(find_project(), baselines).baselines
    if sku:
        say_entries(roots, sku, variant)
    else:
        for root in roots:
            say_skus(root)


@baseline_commands.command(hidden=True)
def folders() -> None:
    """Say where this project's baselines lie, one folder a line; the first is written to."""
    for folder in with_baselines(find_project(), None).baselines:
        say(str(folder))


@cache
def commands() -> typer.Typer:
    """Return the commands of the core and of each feature."""
    features().hook.perf_commands(app=app, baseline=baseline_commands)
    # Typer writes "<str>" behind an argument's own word: that tells nobody more.
    TyperArgument.display_type_rich = lambda *_, **__: None  # type: ignore[method-assign]
    return app


def main() -> None:
    """Run the command; a deliberate error is its message and exit code 2, without a traceback."""
    try:
        remedy = "change to a folder that is there: cd"
        with refusing("the current folder is gone", "", remedy=remedy, kind=UsageError):
            Path.cwd()
        commands()(prog_name="perfsuite")
    except (PerfError, ArgumentTypeError) as error:
        say_error(error)
        raise SystemExit(2) from error


def judged_against(run: model.Run, before: model.Run) -> RunView:
    """Return ``run`` with the verdicts it gets when ``before`` is its baseline."""
    source = f"run {before.id}"
    entries = entries_of(before)
    is_abroad = differing(before.facts.environment, run.facts.environment)
    variants = []
    for one in run.variants:
        now, then = (sku_for(one.variant, each.facts, own=each.sku) for each in (run, before))
        why = differs(then.facts, now.facts)
        expected = model.Expected(
            entry=entries.get(one.id),
            source=source,
            elsewhere=entries[one.id].cards if is_abroad and one.id in entries else frozenset(),
            why_not=model.because("other_kind", text=why) if why else None,
        )
        # A confirmation replaces its screen.
        variants.append(replace(one, expected=expected, results=(one.last,) if one.last else ()))
    verdicts = judge(replace(run, variants=tuple(variants)))
    gone = sorted(entries.keys() - {one.id for one in run.every})
    told = f"{view.count(len(gone), 'variant')} not in this run, as {', '.join(gone[:3])}"
    judged = replace(run.having(verdicts=verdicts), claims=(), notes=(told,) if gone else ())
    return read(judged, baselines=entries, source=source, previous=before)


def say_skus(root: Path) -> None:
    """Say which products have baselines."""
    folders = [root / slug for slug in kept.skus_in(root)]
    if not folders:
        say(f"no baselines in {root}; perfsuite baseline accept RUN makes them")
        return
    rows = []
    for folder in folders:
        baselines = kept.Baselines.load([root], kept.read_sku(folder))
        packs = ", ".join(kept.packs_in(folder))
        rows.append((folder.name, baselines.sku.name, packs, str(len(baselines.entries))))
    say_table(f"Baselines in {root}", ("SKU", "product", "packs", "variants"), rows)


def say_entries(roots: Sequence[Path], slug: str, variants: str = "") -> None:
    """Say what is accepted for a product, by whom, why and how long ago, and what is excepted."""
    known = {name: root for root in roots[::-1] for name in kept.skus_in(root)}
    if slug not in known:
        where = ", ".join(map(str, roots))
        remedy = f"choose one of {', '.join(sorted(known))}" if known else "accept a run first"
        raise UsageError(f"there is no baseline for the SKU {slug!r}", where=where, remedy=remedy)
    sku = kept.read_sku(kept.sku_folder(known[slug], slug))
    baselines = kept.Baselines.load(roots, sku)
    names = sorted(baselines.entries)
    names = [*chosen(names, variants, of=slug)] if variants else names
    if variants and len(names) == 1:
        say_entry(baselines, slug, names[0])
        return
    rows = []
    for name in names:
        stored, accepted = baselines.entries[name], baselines.entries[name].accepted
        when = f"{accepted.when.partition('T')[0]} by {accepted.by}"
        rows.append((name, *estimate_words(stored), when, accepted.reason))
    columns = ("variant", "time", "sd between", "processes", "units", "accepted", "reason")
    say_table(f"{sku.name} ({slug})", columns, rows)
    for text in exceptions_of(roots, datetime.now(UTC).date()).told(slug):
        say(text)


def say_entry(baselines: kept.Baselines, slug: str, variant: str) -> None:
    """Say all that is kept of one entry, and of the run that it comes from."""
    entry = baselines.entries[variant]
    accepted, run = entry.accepted, baselines.runs.get(entry.run)

    def cards(metric: model.BaselineMetric) -> list[tuple[str, str]]:
        return [(unit, " ".join(f"{v:.6g}" for v in row)) for unit, row in metric.values.items()]

    columns = ("metric", "centre", "sd within", "sd between", "card", "processes")
    rows = [
        (name, f"{m.center:.6g} {m.unit}", view.share(m.within), view.share(m.between), *each)
        for name, m in sorted(entry.metrics.items())
        for each in cards(m) or [("", "exact")]
    ]
    say_table(f"{variant} on {slug}", columns, rows)
    say(f"accepted {accepted.when} by {accepted.by}: {accepted.reason}")
    state = ", ".join(f"{key} {value}" for key, value in sorted(entry.state.items()))
    say(f"{entry.regime}, version {entry.case_version} of its case; {state or 'no state'}")
    for card in ("", *sorted(entry.cards)):
        known = baselines.runs.get(entry.run_of([card]), kept.NO_FACTS)
        who = f"card {card} of board {known.boards.get(card, 'unknown')}" if card else "reference"
        say(f"{who} from run {entry.run_of([card])} of commit {known.commit or 'unknown'}")
    for key, value in sorted(run.environment.items()) if run else ():
        say(f"  {key} {value}")


def viewed(project: Config, run: model.Run) -> RunView:
    """Return a stored run as it is reported; what is said of it now alone goes to stderr.

    With what was accepted of it or later it was not compared: that tells no cause of a change.
    """
    basis = find_expected(project.baseline_roots, project.folder, run=run, packs=project.packs)
    held, first = basis.hold(run), min((part.run for part in run.parts), default=run.id)
    # Side A of --perf-against was measured in the run itself.
    later = {o.id for o in held.variants if o.entry and o.entry.run >= first and not run.against}
    then = (replace(o, expected=model.Expected()) if o.id in later else o for o in held.variants)
    outcome = Outcome(replace(held, variants=tuple(then)), project.folder, basis)
    run_view = run_view_of(outcome, project)
    for note in run_view.run.notes[len(outcome.run.notes) :]:
        say(f"note: {note}", stderr=True)
    if later & {each.variant for each in run.verdicts if each.word.asks_why}:
        say("note: baselines were accepted since: why theirs changed is not known", stderr=True)
    return run_view


# One variant alone: under a profiler or debugger, or as one of the ranks of torchrun.


class Order(msgspec.Struct, frozen=True):
    """What the child is to launch; ``paths`` is the parent's ``sys.path``."""

    job: Job
    variant: model.Variant
    launches: int
    check: bool
    paths: tuple[str, ...]


def launch(order: Order, profiler: Sequence[str]) -> int:
    """Run the order in a child, under the profiler if there is one; return the exit status."""
    text = msgspec.json.encode(order).decode()
    start = "from perfsuite.cli import launched; launched()"
    command = [*profiler, sys.executable, "-P", "-c", start, text]
    remedy = "put it on PATH, or give its whole path after --"
    with refusing(f"cannot start {command[0]!r}", "", remedy=remedy, kind=UsageError):
        return subprocess.run(command, check=False, env=child_environment()).returncode


def launched() -> None:
    """Carry out the order in argv, in the child."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    sys.path += [path for path in order.paths if path not in sys.path]
    try:
        carry_out(order)
    except PerfError as error:
        say_error(error)
        sys.stderr.flush()
        os._exit(2)


def carry_out(order: Order) -> None:
    """Build, check and launch; raises what the variant or the device has against it."""
    session = opened(order.job)
    device = session.device
    refuse_misfit(order.variant, 0, device.facts())
    if order.check:
        session.announce = lambda phase: say(f"{phase} ...")
        session.prepare()
        evidence = session.finish()
        right = "right" if evidence.error is None else f"right: relative error {evidence.error:.2g}"
        for line in (right, *(f"{name} {value:g}" for name, value in evidence.exact.items())):
            say(line)
    if session.case.regime is not model.Regime.EXACT:
        (launch_once,) = session.launches(1)
        times_us = []
        for _ in range(1 + order.launches):
            started = time.perf_counter_ns()
            launch_once()
            device.synchronize()
            times_us.append((time.perf_counter_ns() - started) / 1e3)
        say(
            f"{order.launches} launches after a warm-up; median "
            f"{statistics.median(times_us[1:]):.1f} us, host time with synchronisation: "
            "pytest --perf measures"
        )
    device.close()


# One rank that torchrun started, on one node or several.


def launch_rank(order: Order, written: Path | None) -> int:
    """Measure with the other ranks, rank 0 says and writes what was found; return the status."""
    variant = order.variant
    try:
        gang = join_elastic(order.job.device)
        session = opened(order.job, gang)
        facts = session.device.facts()
        refuse_misfit(variant, gang.ranks, facts)
        session.prepare()
        for _ in range(session.settings.rounds):
            session.block()
        session.recheck()
        parts = gang.gather(bytes(raw(replace(session.finish(), unit=facts.unit))).decode())
        gang.leave()  # not after a failure: the others may wait elsewhere, and torchrun ends them
        found = [received(part.encode(), model.Evidence) for part in parts if not gang.rank]
        whole = merged(found, variant.case.metrics) if found else None
    except PerfError as error:
        sys.stderr.write(f"rank {from_environment('RANK') or '?'}: {error}\n")
        return 2
    if whole is None:
        return 0
    times_us = [time_us for block in whole.samples("time_us") for time_us in block]
    median_us = statistics.median(times_us)
    say(f"{variant.id}: median {median_us:.4g} us of {len(times_us)} samples, by the slowest rank")
    if written is not None:
        evidence = (replace(whole, unit=gang_unit(each.unit for each in found)),)
        result = model.Result(variant=variant.id, status=model.Status.OK, evidence=evidence)
        written.write_bytes(encode(replace(result, case_version=variant.case.version)))
    return 0


def refuse_misfit(variant: model.Variant, ranks: int, facts: model.DeviceFacts) -> None:
    """Raise UsageError unless the variant is one for so many ranks, 0 for none, and this device."""
    if ranks != (variant.ranks if variant.is_gang else 0):
        raise UsageError(
            f"{variant.id} is run by {variant.ranks} ranks, and torchrun started {ranks or 'none'}",
            remedy=f"torchrun --nproc-per-node {variant.ranks} -m perfsuite.cli run 'ID', on more "
            "nodes with --nnodes; or choose another variant",
        )
    if missing := missing_need(variant, replace(facts, gpus=ranks or facts.gpus)):
        raise UsageError(f"{variant.id} cannot run here: it {missing}")


# It becomes a module's, a distribution's and a file's name: lower-case, with a letter first.
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
LONGEST = 40
# Left off, so that no tool takes a template for the file that is made of it.
SUFFIX, TEMPLATES = ".txt", Path(__file__).parent / "packs" / "new_pack"
RENAMED = {"gitignore": ".gitignore", "github": ".github"}


def new_pack(
    name: str, folder: Path | None = None, *, taken: Sequence[str] = (), repo: bool = False
) -> Path:
    """Write the pack ``name`` and return its folder, by default ``NAME-perf`` in the current one.

    For a ``repo`` there is CI as well: GitHub looks for it at the top of a repository alone.
    All of it or nothing is written. A name that cannot be a pack's or is ``taken``, and a folder
    that exists or cannot be written, is a ``UsageError``.
    """
    if not NAME.match(name) or len(name) > LONGEST or name in TAKEN_NAMES:
        raise UsageError(
            f"{name!r} cannot be a pack's name",
            remedy=f"take up to {LONGEST} lower-case letters, digits and single underscores. Begin "
            "with a letter, as in acme or acme_kernels. 'sku' is taken",
        )
    if name in taken:
        remedy = "take another; perfsuite list shows the packs of this environment and project"
        raise UsageError(f"there is a pack of the name {name!r} already", remedy=remedy)
    project = f"{name.replace('_', '-')}-perf"
    place = folder or Path(project)
    if place.exists() or place.is_symlink():
        why = f"{str(place)!r} exists already; nothing was written"
        remedy = "name another with --folder DIR, or move it away"
        raise UsageError(why, where=str(place.absolute()), remedy=remedy)
    words = {"pack": name, "package": f"{name}_perf", "project": project}
    words["version"] = ".".join(perfsuite.__version__.split(".")[:2])
    named = RENAMED | {"package": words["package"]}
    remedy = "name a folder that can be written with --folder DIR"
    with refusing("cannot write the pack", place.absolute(), remedy=remedy, kind=UsageError):
        # Beside the place first, then moved there at once.
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        try:
            found = sorted(TEMPLATES.rglob(f"*{SUFFIX}"))
            for template in (f for f in found if repo or TEMPLATES / "github" not in f.parents):
                parts = template.relative_to(TEMPLATES).with_suffix("").parts
                file = beside.joinpath(*(named.get(part, part) for part in parts))
                file.parent.mkdir(parents=True, exist_ok=True)
                text = Template(template.read_text("utf-8")).substitute(words)
                file.write_text(text, encoding="utf-8")
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return place


SOFTWARE = {
    "torch": "inputs, references and most implementations, on every device",
    "triton": "variants written in Triton",
}


def say_software() -> None:
    """Say what of the software that measuring needs is here, and which GPUs its driver shows."""
    known, rows = [SOFTWARE, *(each.software for each in model.BUILT_IN_DEVICES.values())], []
    for name, purpose in chain.from_iterable(each.items() for each in known):
        there = next(iter(distributions(name=name)), None)
        rows.append((name, there.version if there else "not installed", purpose))
    say_table("Software", ("package", "version", "for"), rows)
    own = {name: each for name, each in model.BUILT_IN_DEVICES.items() if each.unit}
    found = {name: products_of(listed(name)) for name in own}
    for name, products in found.items():
        for gpu in (gpu for group in products for gpu in group):
            say(f"GPU {gpu.index}: {gpu.name} ({gpu.uuid})")
        for others in products[1:]:
            uuids = ",".join(gpu.uuid for gpu in others)
            say(f"A run takes the GPUs of one product; these with {own[name].visible}={uuids}")
    if not any(found.values()):
        units = " or ".join(each.unit for each in own.values())
        say(f"No {units}, or its driver does not answer: runs use the CPU")
    for told in features().hook.perf_doctor() if any(found.values()) else ():
        for text in told:
            say(text)


def say_device(units: Sequence[model.DeviceFacts]) -> None:
    """Say which product this is, with the facts that a comparison rests on."""
    facts, sku = units[0], sku_of(units[0])
    known = {
        "device": f"{facts.name} ({facts.device})",
        "SKU": sku.slug,
        "units": ", ".join(unit.unit for unit in units),
        "architecture": facts.arch,
        "memory": f"{facts.memory_bytes / 1e9:.1f} GB" if facts.memory_bytes else "",
        "clocks": ", ".join(facts.clocks),
        "features": ", ".join(facts.features),
    }
    say_table("Device", ("fact", "value"), ((k, v) for k, v in known.items() if v))
    kinds = {"identity": sku.facts, "state": facts.state, "environment": facts.environment}
    rows = [(kind, *item) for kind, held in kinds.items() for item in held.items()]
    say_table("Recorded with each result", ("kind", "fact", "value"), rows)


def say_baselines(facts: model.DeviceFacts, roots: Sequence[kept.Root]) -> None:
    """Say what this device will be compared with."""
    sku = sku_of(facts)
    baselines = kept.Baselines.load(roots, sku)
    if baselines.fingerprint_problem:
        say(f"Baselines of {sku.slug} are of another product: {baselines.fingerprint_problem}")
    elif baselines.entries:
        say(f"Baselines: {view.count(len(baselines.entries), 'variant')} of {sku.slug}")
    else:
        say(f"Baselines: none for {sku.slug}; a run is compared with the first one on this device")


def say_spoilers(units: Sequence[model.DeviceFacts]) -> bool:
    """Say what on this machine would spoil a comparison right now; return whether that passes.

    How a machine is set up, power limit and governor, does not: its baselines were measured so.
    """
    passing, lasting = spoilers(units[0])
    for unit in units:
        try:
            lock(unit.unit).close()
        except UsageError as error:
            passing.append(error.what)
    for text in (*passing, *lasting):
        say(f"Would spoil a comparison: {text}")
    if not passing and not lasting:
        say("Nothing seen that would spoil a comparison")
    return bool(passing)


if __name__ == "__main__":
    main()
