"""y = exp(a * x) + x: a program that goes through memory at each step, and one that is fused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Claim, Metric, Work, Workload, on_device

SCALE = 0.5


@perfsuite.case(
    smoke={"n": 10_007, "impl": ["naive", "fused"]},
    nightly={"n": [65536, 100_003], "impl": ["naive", "fused"]},
    needs=[on_device("acme")],
    # x is read once and y written once; a multiplication, an addition and an exponential each.
    work=lambda n, impl: Work(read_bytes=4 * n, write_bytes=4 * n, flops=3 * n),
    memory_bytes=lambda n, impl: 64 * n,
    metrics=[
        Metric("dma_bursts", unit="bursts", better="lower", threshold=0.01),
        Metric("bytes_per_burst", unit="B", better="higher", threshold=0.01),
    ],
    source="Acme A1 programmer's manual, section 4: fusing through registers",
)
def softscale(ctx: Any, *, n: int, impl: str) -> Workload:
    """Take exp(a * x) + x of n floats, with the transfers that the A1's DMA engine counted."""
    from acme_perf.assembler import assemble

    program = assemble(Path(__file__).with_name(f"softscale_{impl}.a1"))

    def launch(x: Any, y: Any) -> None:
        ctx.launch(program, x=x, y=y, a=SCALE)

    def counters() -> dict[str, float]:
        bursts = program.bursts(n)
        return {"dma_bursts": bursts, "bytes_per_burst": 8 * n / bursts}

    return Workload(
        fn=launch,
        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        reference=_reference,
        wrong=_forget_addition,
        tolerance=1e-6,
        exact=counters,
    )


def _reference(x: Any, y: Any) -> Any:
    import numpy as np

    wide = x.astype(np.float64)
    return np.exp(SCALE * wide) + wide


def _forget_addition(x: Any, y: Any) -> None:
    """Leave the last step out, as a program does that is cut at a page of instruction memory."""
    import numpy as np

    y[...] = np.exp(np.float32(SCALE) * x)


CLAIMS = (
    Claim(
        name="fused_program",
        case="softscale",
        faster={"impl": "fused"},
        than={"impl": "naive"},
        by=1.8,
        at={"n": (65536, 100_003)},
        needs=(on_device("acme"),),
        source="Acme A1 programmer's manual, section 4: 2 instead of 7 passes through memory and "
        "as many operations make (7 / 16 + 3 / 32) / (2 / 16 + 3 / 32) = 2.4 for long vectors",
    ),
)
