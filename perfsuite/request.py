"""From the options of a session to what is to be measured and how it is judged."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.bundles import shard_of
from perfsuite.catalogue import load_catalogue
from perfsuite.errors import UsageError
from perfsuite.model import ClaimInstance, Pack, Settings, Shard, Status, Tier, Variant
from perfsuite.packs import chosen_accelerator, discover
from perfsuite.plan import claims_of, parse_selection, select
from perfsuite.revision import RevisionOptions

if TYPE_CHECKING:
    # Both bring numbers and devices along, which collecting has no use for.
    from perfsuite.judge import Policy
    from perfsuite.requested import Request

STATE_FOLDER = ".perfsuite"
STATUS_WORDS = tuple(status.value for status in Status if status not in {"ok", "skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a session as plain values; shares of 1 where pytest takes percent."""

    root: Path
    tier: str
    select: str
    device: str
    packs: tuple[str, ...]
    pack: tuple[Path, ...]
    processes: int | None
    seed: int
    check: bool
    profile: bool
    resume: bool
    accept: bool
    reason: str
    fail_on: tuple[str, ...]
    threshold: float | None
    gate: float | None
    report: Path
    baselines: tuple[Path, ...]
    command: str
    against: str | None = None
    against_build: str = ""
    repo: Path | None = None
    history: str = ""
    resume_if_any: bool = False
    time: float | None = None
    shard: tuple[int, int] | None = None
    counters: bool = False

    @property
    def resuming(self) -> str:
        """The command that goes on with this session's run, if it is interrupted."""
        words = shlex.split(self.command)
        return self.command if "--perf-resume" in words else f"{self.command} --perf-resume"

    def failing_statuses(self) -> frozenset[str]:
        """Return the statuses that fail a test."""
        return frozenset(self.fail_on) & frozenset(STATUS_WORDS)

    def again(self, variant: Variant) -> tuple[str, ...]:
        """Return the options that measure a variant as in this session."""
        given = [
            ("--perf-tier", variant.tier.value if variant.tier is not Tier.SMOKE else ""),
            ("--perf-device", self.device if self.device != "auto" else ""),
            *(("--perf-pack", str(path)) for path in self.pack),
            ("--perf-processes", str(self.processes or "")),
            ("--perf-seed", str(self.seed or "")),
            ("--perf-against", self.against or ""),
            ("--perf-against-build", self.against_build),
            ("--perf-repo", str(self.repo or "")),
        ]
        # With "=": pytest takes a path that stands alone for part of the project.
        return tuple(f"{name}={value}" for name, value in given if value)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the options leave of the catalogue."""

    packs: tuple[Pack, ...]
    variants: tuple[Variant, ...]
    claims: tuple[ClaimInstance, ...]
    shard: Shard | None = None

    def values(self) -> Mapping[tuple[str, str], list[Variant | ClaimInstance | Pack]]:
        """Return what tests are given, by their argument's name and the pack."""
        found: dict[tuple[str, str], list[Variant | ClaimInstance | Pack]] = {}
        for variant in self.variants:
            found.setdefault(("variant", variant.pack), []).append(variant)
        for claim in self.claims:
            found.setdefault(("claim", claim.pack), []).append(claim)
        for pack in self.packs:
            if pack.error:
                found.setdefault(("broken_pack", pack.name), []).append(pack)
        return found


def choose(options: Options) -> Chosen:
    """Find the packs, list them in a child process, and select among their variants."""
    sources = discover(options.root, extra=options.pack, allow=options.packs)
    packs = load_catalogue(sources, tier=Tier(options.tier))
    chosen_accelerator(options.device, packs)  # refuses a name that nothing has
    variants = tuple(variant for pack in packs for variant in pack.variants)
    if options.select:
        variants = tuple(select(variants, parse_selection(options.select)))
    shard = None
    if options.shard is not None:
        index, count = options.shard
        claims = claims_of(packs, variants)
        variants, shard = shard_of(variants, claims, index=index, count=count)
        shard = replace(shard, tier=options.tier)
    return Chosen(tuple(packs), variants, tuple(claims_of(packs, variants)), shard)


def policy_of(options: Options) -> Policy:
    """Return how the run is judged; a word that nothing is called is a ``UsageError``."""
    from perfsuite.judge.policy import FAIL_WORDS, Policy

    unknown = sorted(set(options.fail_on) - {*FAIL_WORDS, *STATUS_WORDS})
    if unknown:
        raise UsageError(
            f"--perf-fail-on does not know {unknown[0]!r}",
            remedy=f"choose among {', '.join((*FAIL_WORDS, *STATUS_WORDS))}",
        )
    # What is accepted is no failure, however it compares with what it replaces.
    words = () if options.accept else tuple(set(options.fail_on) & set(FAIL_WORDS))
    return Policy(threshold=options.threshold, gate=options.gate, fail_on=words)


def settings_of(options: Options) -> Settings:
    """Return how the run measures."""
    settings = Settings(check_only=options.check, seed=options.seed)
    if options.processes is None:
        return settings
    confirm = max(options.processes, settings.confirm_processes)
    return replace(settings, processes=options.processes, confirm_processes=confirm)


def against_of(options: Options) -> RevisionOptions | None:
    """Return what the working tree is compared with, if that is a revision of it."""
    if options.against is None:
        if options.repo or options.against_build:
            raise UsageError(
                "--perf-repo and --perf-against-build say nothing by themselves",
                remedy="name a revision with --perf-against=REV, or leave them out",
            )
        return None
    for name, is_given in (("--perf-check", options.check), ("--perf-accept", options.accept)):
        if is_given:
            raise UsageError(
                f"--perf-against cannot go with {name}: it says nothing of right or accepted",
                remedy="run them one after the other",
            )
    project = options.root / (options.repo or "")
    return RevisionOptions(rev=options.against, project=project, build=options.against_build)


def request_of(
    options: Options,
    chosen: Chosen,
    *,
    variants: Sequence[Variant],
    claims: Sequence[ClaimInstance],
) -> Request:
    """Return what is to be run; variants that only a claim needs are measured for it."""
    from perfsuite.baselines import Exceptions, shipped_by
    from perfsuite.requested import Request

    return Request(
        variants=tuple(_with_claims(chosen, variants, claims)),
        claims=tuple(claims),
        packs=chosen.packs,
        device=options.device,
        settings=settings_of(options),
        policy=policy_of(options),
        root=options.root,
        folder=options.root / STATE_FOLDER,
        baseline_roots=(*options.baselines, *shipped_by(chosen.packs)),
        command=options.command,
        resume=options.resume,
        resume_if_any=options.resume_if_any,
        against=against_of(options),
        exceptions=Exceptions.load(options.baselines, datetime.now(UTC).date()),
        time_s=options.time or float("inf"),
        shard=chosen.shard,
        counters=options.counters,
    )


def _with_claims(
    chosen: Chosen, variants: Sequence[Variant], claims: Sequence[ClaimInstance]
) -> Iterable[Variant]:
    needed = {variant.id for variant in variants}
    needed |= {side for claim in claims for side in (claim.faster, claim.than)}
    return (variant for variant in chosen.variants if variant.id in needed)
