"""The pages of the cases, one a pack, as the catalogue lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from markup import code, documented, escaped, prose, table

from perfsuite.model import ClaimInstance, Pack, Tier, Variant
from perfsuite.packs.find import packs_at
from perfsuite.workers.process import load_catalogue

TIERS = tuple(Tier)
INDEX = "reference/cases/index.md"


def case_pages(sources: Sequence[Pack]) -> dict[str, str]:
    """Return a page for each pack and one that lists them, by their paths."""
    packs = load_catalogue(sources, tier=Tier.FULL)
    if broken := [pack.error for pack in packs if pack.error]:
        raise ValueError(f"packs that cannot be listed: {broken}")
    rows = [
        (f"[{pack.name}]({pack.name}.md)", str(len(_by_case(pack))), *_counts(pack.variants))
        for pack in packs
    ]
    head = ("pack", "cases", *(f"variants, {tier}" for tier in TIERS))
    listed = "# Cases\n\nThe packs that come with perfsuite; each tier holds those before it.\n\n"
    pages = {f"reference/cases/{pack.name}.md": _page(pack) for pack in packs}
    return {INDEX: listed + table(head, rows)} | pages


def own_packs(root: Path) -> list[Pack]:
    """Return the packs of the repository, installed or not."""
    return [
        source
        for project in sorted(root.glob("plugins/*/pyproject.toml"))
        for source in packs_at(project.parent)
    ]


def _by_case(pack: Pack) -> dict[str, list[Variant]]:
    found: dict[str, list[Variant]] = {}
    for variant in pack.variants:
        found.setdefault(variant.case.name, []).append(variant)
    return found


def _counts(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield how many variants each tier has, those of the tiers before it included."""
    for tier in TIERS:
        within = TIERS[: TIERS.index(tier) + 1]
        yield str(sum(variant.tier in within for variant in variants))


def _page(pack: Pack) -> str:
    return "".join([f"# {pack.name}\n\n", *_sections(pack)])


def _sections(pack: Pack) -> Iterator[str]:
    for name, variants in _by_case(pack).items():
        case = variants[0].case
        yield f"## {escaped(f'{pack.name}.{name}')} {{ #{name} }}\n\n{documented(case.doc)}"
        yield "".join(f"- {name}: {told}\n" for name, told in _facts(variants)) + "\n"
        yield _axes(variants)
        yield from _claims(name, pack.claims)


def _facts(variants: Sequence[Variant]) -> Iterator[tuple[str, str]]:
    case = variants[0].case
    regime = f"{case.regime.value}, {'cold' if case.cold else 'hot'}"
    yield "variants", ", ".join(map(" ".join, zip(TIERS, _counts(variants), strict=True)))
    yield "regime", escaped(case.regime.value if case.regime.value == "exact" else regime)
    yield "source", prose(case.source)
    for need in case.needs:
        only = "; ".join(f"{axis}={' or '.join(map(str, of))}" for axis, of in need.axes.items())
        yield "needs", code(f"{need.kind} {need.value}") + (f" for {code(only)}" if only else "")
    for metric in case.metrics:
        unit = f" ({escaped(metric.unit)})" if metric.unit else ""
        yield "metric", f"{code(metric.name)}{unit}, {metric.better} is better"
    for budget in case.budgets:
        limit = f"{code(budget.metric)} at most {budget.most:g}"
        yield "budget", f"{limit}: {prose(budget.reason)}"
    yield "declared in", code(f"{case.file}:{case.line}")


def _axes(variants: Sequence[Variant]) -> str:
    rows = []
    for axis in variants[0].case.axes:
        by_tier = []
        for tier in TIERS:
            within = TIERS[: TIERS.index(tier) + 1]
            values = dict.fromkeys(str(v.axes[axis]) for v in variants if v.tier in within)
            by_tier.append(" ".join(code(value) for value in values) or "none")
        rows.append((code(axis), *by_tier))
    return table(("axis", *TIERS), rows)


def _claims(case: str, claims: Sequence[ClaimInstance]) -> Iterator[str]:
    first = {claim.name: claim for claim in reversed(claims) if _case_of(claim) == case}
    if first:
        rows = [
            (
                code(c.name),
                f"{code(c.faster)} at least {c.by:g} times as fast as {code(c.than)}",
                prose(c.source),
            )
            for c in reversed(first.values())
        ]
        yield table(("claim", "such as", "source"), rows)


def _case_of(claim: ClaimInstance) -> str:
    return claim.faster.partition("[")[0].partition(".")[2]
