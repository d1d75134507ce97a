"""The accepted estimates of one SKU, from the first root that has each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfsuite.baselines.folder import packs_in, read_pack, read_run_facts, read_sku, sku_folder
from perfsuite.codec import Acceptance, RunFacts, StoredEntry
from perfsuite.model import BaselineEntry, Sku, Variant
from perfsuite.sku import fingerprint_differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """What was accepted for a SKU.

    ``fingerprint_problem`` says why nothing may be compared with it (the folder belongs to another
    product of the same slug), or is empty.
    """

    sku: Sku
    stored: Mapping[str, StoredEntry] = field(default_factory=dict)
    runs: Mapping[str, RunFacts] = field(default_factory=dict)
    fingerprint_problem: str = ""

    @classmethod
    def load(cls, roots: Sequence[Path], sku: Sku) -> Baselines:
        """Read the folders of a SKU; a damaged file is an error, whatever root it lies in."""
        stored: dict[str, StoredEntry] = {}
        runs: dict[str, RunFacts] = {}
        problems: list[str] = []
        for folder in (sku_folder(root, sku.slug) for root in roots):
            packs = packs_in(folder)
            if not packs:
                continue
            if problem := fingerprint_differs(sku, read_sku(folder).facts):
                problems.append(f"{folder}: {problem}")
            found = _entries(folder, packs)
            runs = _runs(folder, found.values()) | runs
            stored = found | stored
        return cls(sku=sku, stored=stored, runs=runs, fingerprint_problem="; ".join(problems))

    @property
    def entries(self) -> dict[str, BaselineEntry]:
        """The entries by variant."""
        return {variant: stored.entry for variant, stored in self.stored.items()}

    def entry(self, variant_id: str) -> BaselineEntry | None:
        """Return a variant's entry, if it has one."""
        stored = self.stored.get(variant_id)
        return stored.entry if stored else None

    def accepted(self, variant_id: str) -> Acceptance | None:
        """Return who accepted a variant's entry, when and why."""
        stored = self.stored.get(variant_id)
        return stored.accepted if stored else None

    def source(self, variant_id: str) -> str:
        """Return the words that name a variant's entry in a verdict, empty if there is none."""
        accepted = self.accepted(variant_id)
        if not accepted:
            return ""
        day = accepted.when.partition("T")[0]
        return f"baseline {self.sku.slug} (accepted {day} by {accepted.by}: {accepted.reason})"

    def run_facts(self, variant_id: str) -> RunFacts | None:
        """Return what is known of the run a variant's entry comes from: commit, environment."""
        entry = self.entry(variant_id)
        return self.runs.get(entry.run) if entry else None


def _entries(folder: Path, packs: Iterable[str]) -> dict[str, StoredEntry]:
    return {
        variant: stored for pack in packs for variant, stored in read_pack(folder, pack).items()
    }


def _runs(folder: Path, entries: Iterable[StoredEntry]) -> dict[str, RunFacts]:
    ids = {stored.entry.run for stored in entries}
    found = {run_id: read_run_facts(folder, run_id) for run_id in ids}
    return {run_id: facts for run_id, facts in found.items() if facts}


def stale(baselines: Baselines, variants: Sequence[Variant]) -> tuple[str, ...]:
    """Return the entries that no variant has any more, sorted; ``variants`` are those of all tiers.

    Entries of a pack without a variant are not among them: it may only not be installed here.
    """
    known = {variant.id for variant in variants}
    packs = {variant.pack for variant in variants}
    return tuple(
        sorted(
            name
            for name in baselines.stored
            if name not in known and name.partition(".")[0] in packs
        )
    )
