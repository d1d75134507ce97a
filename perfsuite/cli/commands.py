"""The commands and their options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.cli.project import find_project, say, say_table
from perfsuite.errors import UsageError
from perfsuite.model import Pack, Tier, Variant

app = typer.Typer(
    help="GPU performance regression suite. Measuring itself is: pytest --perf",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
baseline = typer.Typer(help="The accepted numbers of each SKU.", no_args_is_help=True)
app.add_typer(baseline, name="baseline")

Packs = Annotated[
    list[Path] | None,
    typer.Option("--pack", metavar="FILE_OR_FOLDER", help="One more pack; repeatable"),
]
Select = Annotated[
    str, typer.Option("--select", metavar="EXPR", help="As --perf-select: 'impl=triton,n>=1e6'")
]
Device = Annotated[str, typer.Option(help="auto, cuda, cpu or a pack's; auto takes GPUs if any")]
Baselines = Annotated[
    Path | None,
    typer.Option("--baselines", metavar="DIR", help="Default: perf_baselines of pyproject.toml"),
]
TierOption = Annotated[Tier, typer.Option(help="How many values of each axis")]


@app.command()
def doctor(
    tier: TierOption = Tier.NIGHTLY,
    device: Device = "auto",
    pack: Packs = None,
    baselines: Baselines = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 20 if it is in use")] = False,
) -> None:
    """Say what this machine is, what would spoil a comparison, and what cannot run here."""
    from perfsuite.cli import doctor as room

    project = find_project()
    room.say_software()
    packs = project.packs(pack, tier)
    for broken in (each for each in packs if each.error):
        say(f"Pack {broken.name} cannot be listed: {broken.error}")
    # Last comes what may fail: the device is opened, as a run would.
    units = room.examine(device, packs)
    room.say_device(units)
    room.say_noise(units[0])
    room.say_baselines(units[0], project.baseline_roots(baselines, pack))
    room.say_skips(packs, units[0], tier.value)
    if room.say_spoilers(units[0]) and strict:
        raise typer.Exit(20)


@app.command("list")
def list_variants(tier: TierOption = Tier.SMOKE, select: Select = "", pack: Packs = None) -> None:
    """List the variants of a tier; exit code 1 if a pack cannot be listed."""
    from perfsuite.plan import parse_selection
    from perfsuite.plan import select as chosen

    packs = find_project().packs(pack, tier)
    variants = chosen([v for each in packs for v in each.variants], parse_selection(select))
    # A case is described once, beside its first variant.
    firsts = set({(v.pack, v.case.name): v.id for v in reversed(variants)}.values())
    docs = {name: v.case.doc.partition("\n")[0] for v in variants if (name := v.id) in firsts}
    rows = [(v.id, v.tier.value, _needs(v), docs.get(v.id, "")) for v in variants]
    say_table(f"{len(rows)} variants", ("variant", "from tier", "needs", "what"), rows)
    broken = [each for each in packs if each.error]
    for each in broken:
        say(f"Pack {each.name} cannot be listed: {each.error}")
    raise typer.Exit(1 if broken else 0)


def _needs(variant: Variant) -> str:
    return ", ".join(dict.fromkeys(f"{need.kind} {need.value}" for need in variant.needs))


@app.command()
def run(
    variant: Annotated[str, typer.Argument(help="The id, as in reports")],
    profiler: Annotated[
        list[str] | None, typer.Argument(help="After --: a command to run it under, e.g. ncu")
    ] = None,
    launches: Annotated[int, typer.Option(min=1, help="After one warm-up")] = 10,
    device: Device = "auto",
    pack: Packs = None,
) -> None:
    """Run one variant alone: build, check, launch. With "-- ncu --set full" it is profiled.

    Under a profiler it is not checked, so that the profile is of the launches only.
    """
    from perfsuite.cli.launch import Order, launch
    from perfsuite.sites import resolved

    packs, found, home = _find(variant, pack)
    where, _, own = resolved(device, packs)
    order = Order(
        pack=found.pack,
        origin=home.origin,
        case=found.case.name,
        axes=found.axes,
        device=where,
        accelerator=own,
        launches=launches,
        check=not profiler,
        paths=tuple(sys.path),
        kernels=home.kernels,
    )
    raise typer.Exit(launch(order, profiler or ()))


def _find(name: str, extra: list[Path] | None) -> tuple[Sequence[Pack], Variant, Pack]:
    """Return all packs, a variant by id, of any tier, and its pack."""
    from perfsuite.plan import parse_selection, select

    selection = parse_selection(name)
    if not selection.id:
        raise UsageError(
            f"{name!r} is no variant id", remedy="copy one from perfsuite list, in quotes"
        )
    # All packs: one may ask for the kernels of the others.
    packs = find_project().packs(extra, Tier.FULL)
    pack = named(packs, selection.id.partition(".")[0])
    (variant,) = select(pack.variants, selection)
    return packs, variant, pack


def named(packs: Sequence[Pack], name: str) -> Pack:
    """Return a pack by name; ``UsageError`` if there is none, or if it cannot be listed."""
    pack = next((pack for pack in packs if pack.name == name), None)
    if pack is None or pack.error:
        raise UsageError(
            pack.error if pack else f"there is no pack for {name!r}",
            remedy="" if pack else f"packs: {', '.join(each.name for each in packs)}",
        )
    return pack


@app.command("new-pack")
def make_pack(
    name: Annotated[str, typer.Argument(help="Of the pack: it stands first in its variants' ids")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Where to write it; default: NAME-perf"),
    ] = None,
) -> None:
    """Write the start of a pack: a case with its kernel, reference and claim, and its tests."""
    from perfsuite.cli.new_pack import new_pack

    taken = [source.name for source in find_project().sources(None)]
    place = new_pack(name, folder, taken=taken)
    say(f"wrote {place}")
    say(f"next: pip install -e {shlex.quote(str(place))} && pytest --perf --perf-packs {name}")
    say("then make it yours: its README.md says how")


@app.command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run files or ids; the newest if left out, several side by side",
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where to write it")
    ] = Path("reports"),
    baselines: Baselines = None,
) -> None:
    """Write the report of a stored run again, or one page that compares runs of several SKUs."""
    from perfsuite.cli.rendering import rendered

    say(str(rendered(find_project(), runs or [""], folder, baselines)))


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="A run file or id: the yardstick")],
    now: Annotated[str, typer.Argument(metavar="B", help="A run file or id: what is judged")],
) -> None:
    """Judge run B as if run A were its baseline; exit code 1 if something fails."""
    from perfsuite.cli.compare import judged_against, say_book

    project = find_project()
    yardstick = project.load_run(before)
    book = judged_against(project.load_run(now), yardstick)
    say_book(book)
    raise typer.Exit(1 if book.fails else 0)
