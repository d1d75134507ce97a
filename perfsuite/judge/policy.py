"""What a run's owner decides about verdicts, and what all variants of a run are judged against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfsuite.model import BaselineEntry, DeviceFacts, Result
from perfsuite.noise import NoisePrior

# What --perf-fail-on may name; "slower" fails beyond the gate only.
FAIL_WORDS = (
    "slower",
    "over-budget",
    "broken",
    "machine-shift",
    "unclear",
    "new",
    "incomparable",
    "faster",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of the decision, as shares of 1; None takes the device's own.

    The two errors have different prices. A false ``slower`` stops a team, so a change is called
    only where a ``1 - alpha`` interval lies beyond the threshold. A ``same`` that hides a change
    as large as the gate costs one night, so ``alpha_same`` on each side is enough for it: with
    5 % instead of 10 %, a quarter of unchanged GEMMs are unclear against another unit (H200).

    A shifted machine fails a run once, whichever way it went: a night that judged nothing must
    not look like one that found nothing.
    """

    threshold: float | None = None
    gate: float | None = None
    floor_us: float = 0.02
    alpha: float = 0.01
    alpha_same: float = 0.1
    false_discovery_rate: float = 0.05
    fail_on: tuple[str, ...] = ("slower", "over-budget", "broken", "machine-shift")

    def __post_init__(self) -> None:
        for name in ("threshold", "gate", "floor_us"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"Policy.{name} must be a share >= 0, not {value!r}")
        for name in ("alpha", "alpha_same", "false_discovery_rate"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"Policy.{name} must be in (0, 1), not {getattr(self, name)!r}")
        unknown = sorted(set(self.fail_on) - set(FAIL_WORDS))
        if unknown:
            raise ValueError(f"Policy.fail_on knows {', '.join(FAIL_WORDS)}, not {unknown[0]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The circumstances all variants of a run share.

    ``slug`` is the SKU's, ``source`` names what entries come from ("baseline nvidia-h200", "last
    run ..."). By variant, ``sources`` names what its entry comes from where that is another, and
    ``mismatches`` says why it may not be compared (another fingerprint). The entries of ``arms``
    are of the same run: A against B, measured in turns on one unit.
    ``known`` are all entries of the SKU, run or not: from them ``priors`` are learned. ``screened``
    are the results that a confirmation confirms.
    ``clocks_before`` and ``clocks_now`` are the compute canary's SM clock in MHz by unit.
    """

    facts: DeviceFacts
    slug: str
    policy: Policy = Policy()
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    mismatches: Mapping[str, str] = field(default_factory=dict)
    arms: frozenset[str] = frozenset()
    known: Sequence[BaselineEntry] = ()
    screened: Mapping[str, Result] = field(default_factory=dict)
    priors: Mapping[NoisePrior, NoisePrior] = field(default_factory=dict)
    clocks_before: Mapping[str, float] = field(default_factory=dict)
    clocks_now: Mapping[str, float] = field(default_factory=dict)

    def prior(self, of_class: NoisePrior, variant: str) -> NoisePrior:
        """Return a class's prior as it was learned; both arms of one run are of one run."""
        prior = self.priors.get(of_class, of_class)
        return replace(prior, run=0.0) if variant in self.arms else prior

    def source_of(self, variant: str) -> str:
        """Return what a variant's entry comes from, in words."""
        return self.sources.get(variant, self.source)
