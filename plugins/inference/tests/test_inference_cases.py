"""The cases of the model's half: what they list and count, and that mistakes are refused."""

from typing import Any

import pytest
from perfsuite_inference import kv_cache
from perfsuite_inference.model import SHAPES

from perfsuite.devices.protocol import open_device
from perfsuite.packs.load import load_pack

CASES = load_pack("inference", "module:perfsuite_inference@").cases


def _built(name: str, *, seed: int = 3, **axes: Any) -> tuple[Any, tuple[Any, ...]]:
    """Build a variant; return it with the inputs of one seed."""
    workload: Any = CASES[name].build(open_device("cpu").context(seed), **axes)
    return workload, workload.make_inputs(open_device("cpu").rng(1))


def test_weights_and_prompts_do_not_follow_the_seed_of_a_process() -> None:
    axes = {"size": "tiny", "batch": 2, "context": 31, "impl": "static"}
    (one, inputs), (other, _) = (_built("decode", seed=seed, **axes) for seed in (1, 2))
    assert bool((one.fn(*inputs) == other.fn(*inputs)).all())


# Torch counts the pairs that a prompt's mask hides, too.
HIDDEN = 4 * SHAPES["tiny"].layers * SHAPES["tiny"].heads * SHAPES["tiny"].head * (64 * 63 // 2)


@pytest.mark.parametrize(
    ("name", "axes", "hidden"),
    [
        ("prefill", {"batch": 1, "length": 64, "impl": "eager"}, HIDDEN),
        ("prefill", {"batch": 1, "length": 64, "impl": "flash"}, HIDDEN),
        ("decode", {"batch": 2, "context": 64, "impl": "eager_concat"}, 0),
    ],
)
def test_work_counts_the_operations_that_torch_counts(
    name: str, axes: dict[str, Any], hidden: int
) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    workload, inputs = _built(name, size="tiny", **axes)
    # Torch's fused kernel for CPUs is not in its books.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        workload.fn(*inputs)
    work = CASES[name].work
    assert work is not None
    assert counter.get_total_flops() == work(size="tiny", **axes).flops + hidden


def test_work_of_a_step_reads_the_weights_and_the_context_once() -> None:
    work = CASES["decode"].work
    assert work is not None
    alone = work(size="1b", batch=1, context=2048, impl="static").read_bytes
    assert alone == 2 * (1_235_814_400 - 33 * 2048) + 2048 * (32 << 10)  # 32 KiB of cache a token


@pytest.mark.parametrize("longest", [2048, 8192])
def test_waste_is_what_vllm_s_authors_say(longest: int) -> None:
    lengths = kv_cache.lengths_of(32, longest)
    assert all(length % 2 and 1 <= length <= longest for length in lengths)
    tokens = sum(lengths)
    assert 0.6 < 1 - tokens / (32 * longest) < 0.8
    assert 1 - tokens / sum(16 * -(-length // 16) for length in lengths) < 0.04
