"""What the pack adds in pytest's own process: a line per verdict, and a section of the report."""

from __future__ import annotations

import os
from pathlib import Path

import perfsuite


@perfsuite.hookimpl
def perf_verdict(verdict: perfsuite.Verdict, variant: perfsuite.Variant) -> None:
    """Note failures of ours in the file that ACME_LOG names, for a ticket system to pick up."""
    if (log := os.environ.get("ACME_LOG")) and variant.pack == "acme" and verdict.fails:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{variant.id} {verdict.word.value} {verdict.reason}\n")


@perfsuite.hookimpl
def perf_report_section(run: perfsuite.Run) -> perfsuite.Section | None:
    """Return the transfers of the DMA engine by variant; nothing where none of ours ran."""
    rows = [
        (result.variant, f"{evidence.exact['dma_bursts']:.0f}")
        for result in run.asked
        for evidence in result.evidence[:1]
        if "dma_bursts" in evidence.exact and result.variant.startswith("acme.")
    ]
    if not rows:
        return None
    return perfsuite.Section(
        title="Acme A1: DMA engine",
        text="Transfers per launch, of at most 4096 bytes each; fused programs need fewer.",
        columns=("variant", "bursts"),
        rows=rows,
    )
