"""How often and how much a training step communicates, counted at any world size on one CPU."""

from typing import Any

import perfsuite
from perfsuite_distributed.counting import PAYLOAD, WORDS, counted_step
from perfsuite_distributed.ranks import BOOK

ZERO = "Rajbhandari et al., ZeRO, SC 2020, section 7: communication"
MEGATRON = "Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3: two sums a layer and step"
LAYERS, HIDDEN, BATCH = 4, 1024, 2
# fp32: up projection h x 4h and down projection 4h x h.
LAYER_BYTES = 2 * HIDDEN * 4 * HIDDEN * 4
ACTIVATION_BYTES = BATCH * HIDDEN * 4


@perfsuite.case(
    smoke={"strategy": "fsdp", "world": 8},
    nightly={"strategy": ["ddp", "fsdp", "fsdp_keep", "tensor"], "world": [8, 64, 1024]},
    regime=perfsuite.Regime.EXACT,
    metrics=[perfsuite.Metric(word, better="equal") for word in (*WORDS, PAYLOAD)],
    source=f"{BOOK} 9, parallelism strategies; {ZERO}; {MEGATRON}",
)
def volume(ctx: Any, *, strategy: str, world: int) -> perfsuite.Inspection:
    """Count the collectives of one forward and backward of four MLP layers, and their payload.

    A process group that communicates nothing stands for ``world`` ranks; torch's own
    DistributedDataParallel, fully_shard and parallelize_module do the rest. ``fsdp`` drops a
    layer's weights after its forward, ``fsdp_keep`` keeps them (ZeRO-2's volume). Payload is the
    whole buffer of each call, in fp32.
    """
    return perfsuite.Inspection(
        read=lambda: counted_step(strategy, world, LAYERS, HIDDEN, BATCH),
        reference=lambda: expected(strategy),
        # A layer that was left out of the wrapping.
        wrong=lambda: counted_step(strategy, world, LAYERS - 1, HIDDEN, BATCH),
    )


def expected(strategy: str) -> dict[str, float]:
    """Return what the papers' formulas say of a step; DDP's buckets are its own affair."""
    if strategy == "ddp":
        return {"all_gathers": 0, "reduce_scatters": 0, PAYLOAD: LAYERS * LAYER_BYTES}
    if strategy == "tensor":
        return {"all_reduces": 2 * LAYERS, PAYLOAD: 2 * LAYERS * ACTIVATION_BYTES}
    gathers = LAYERS if strategy == "fsdp_keep" else 2 * LAYERS
    return {
        "all_reduces": 0,
        "all_gathers": gathers,
        "reduce_scatters": LAYERS,
        PAYLOAD: (gathers + LAYERS) * LAYER_BYTES,
    }
