"""The cases of the model's half: what they list and count, and that mistakes are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from perfsuite_inference import kv_cache
from perfsuite_inference.shapes import SHAPES

import perfsuite
from perfsuite.packs.load import load_pack

LOADED = load_pack("inference", "module:perfsuite_inference@")
CASES, CLAIMS = LOADED.cases, LOADED.claims
Axes = dict[str, Any]


def _bindings(case: perfsuite.Case, *tiers: str) -> list[dict[str, Any]]:
    return [dict(axes) for tier, axes in case.points if not tiers or tier in tiers]


def _on_cpu() -> list[Any]:
    return [
        pytest.param(case, axes, id=f"{case.name}-{'-'.join(map(str, axes.values()))}")
        for case in CASES.values()
        if case.regime is not perfsuite.Regime.EXACT  # nothing to launch
        for axes in _bindings(case, "smoke")
        if not any(need.kind == "device" and need.applies(axes) for need in case.needs)
    ]


def _built(name: str, *, seed: int = 3, **axes: Any) -> perfsuite.Workload:
    from perfsuite.devices.protocol import open_device

    workload = CASES[name].build(open_device("cpu").context(seed), **axes)
    assert isinstance(workload, perfsuite.Workload)
    return workload


def _check(workload: perfsuite.Workload) -> float | None:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    return check(open_device("cpu"), workload, seed=3).known_error


def _inputs(workload: perfsuite.Workload) -> tuple[Any, ...]:
    from perfsuite.devices.protocol import open_device

    return workload.make_inputs(open_device("cpu").rng(1))


@pytest.mark.parametrize(("case", "axes"), _on_cpu())
def test_smoke_variant_is_right_on_the_cpu_and_its_mistake_refused(
    case: perfsuite.Case, axes: Axes
) -> None:
    assert _check(_built(case.name, **axes)) is not None


@pytest.mark.parametrize("impl", ["eager_concat", "static"])
def test_a_step_is_the_same_at_every_launch(impl: str) -> None:
    workload = _built("decode", size="tiny", batch=2, context=63, impl=impl)
    tokens, positions = _inputs(workload)
    first = workload.fn(tokens, positions)
    workload.fn(tokens.flip(0), positions)
    assert bool((workload.fn(tokens, positions) == first).all())


def test_weights_and_prompts_do_not_follow_the_seed_of_a_process() -> None:
    axes: Axes = {"size": "tiny", "batch": 2, "context": 31, "impl": "static"}
    results = []
    for seed in (1, 2):
        workload = _built("decode", seed=seed, **axes)
        results.append(workload.fn(*_inputs(workload)))
    assert bool((results[0] == results[1]).all())


def _operations(workload: perfsuite.Workload) -> float:
    """Return what torch counts; its fused kernel for CPUs is not in its books."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    inputs = _inputs(workload)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        workload.fn(*inputs)
    return float(counter.get_total_flops())


@pytest.mark.parametrize("impl", ["eager", "flash"])
def test_work_of_a_prompt_counts_the_operations_that_torch_counts(impl: str) -> None:
    axes: Axes = {"size": "tiny", "batch": 1, "length": 64, "impl": impl}
    shape, work = SHAPES["tiny"], CASES["prefill"].work
    assert work is not None
    # Torch counts the pairs that the mask hides, too.
    hidden = 4 * shape.layers * shape.heads * shape.head * (64 * 63 // 2)
    assert _operations(_built("prefill", **axes)) == work(**axes).flops + hidden


def test_work_of_a_step_counts_the_operations_that_torch_counts() -> None:
    axes: Axes = {"size": "tiny", "batch": 2, "context": 64, "impl": "eager_concat"}
    work = CASES["decode"].work
    assert work is not None
    assert _operations(_built("decode", **axes)) == work(**axes).flops


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


@pytest.mark.parametrize(
    ("impl", "slots"), [("contiguous", 8 * 256), ("paged_16", 0), ("paged_64", 0)]
)
def test_cache_bytes_are_counted_with_the_block_that_is_nobody_s(impl: str, slots: int) -> None:
    workload = _built("kv_cache", dtype="fp32", batch=8, longest=256, impl=impl)
    assert workload.exact is not None
    found = workload.exact()
    lengths = kv_cache.lengths_of(8, 256)
    if not slots:
        block = int(impl.removeprefix("paged_"))
        slots = block * (1 + sum(-(-length // block) for length in lengths))
    token = 2 * 8 * 128 * 4
    assert found == {"kv_bytes": slots * token, "wasted_bytes": (slots - sum(lengths)) * token}


def test_listing_the_cases_imports_no_kernel_library() -> None:
    code = (
        "import sys, perfsuite_inference as pack;"
        "assert pack.perf_cases();"
        "print([m for m in ('torch', 'triton', 'numpy', 'cuda') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
