"""What the assembler makes of each program: no launch, so the numbers have no noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Inspection, Metric, Regime


@perfsuite.case(
    smoke={"name": ["softscale_naive", "softscale_fused"]},
    metrics=[
        Metric("program_bytes", unit="B", better="lower"),
        Metric("vector_registers", unit="registers", better="lower"),
    ],
    regime=Regime.EXACT,
    needs=[perfsuite.on_device("acme")],
    source="Acme A1 programmer's manual, section 2: instruction memory of 4 KiB",
)
def program(ctx: Any, *, name: str) -> Inspection:
    """Count the bytes and registers of a program."""
    from acme_perf.assembler import assemble

    code = assemble(Path(__file__).with_name(f"{name}.a1"))
    return Inspection(
        read=lambda: {"program_bytes": code.bytes, "vector_registers": code.registers}
    )
