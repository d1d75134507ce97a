"""The pack's cases: what they list, what they count, and that references refuse the mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from perfsuite_blackwell import perf_kernels
from perfsuite_blackwell.formats import FORMATS

import perfsuite
from perfsuite.packs.load import load_pack

LOADED = load_pack("blackwell", "module:perfsuite_blackwell@")
CASES, CLAIMS = LOADED.cases, LOADED.claims
Axes = dict[str, Any]
SMALL = {"m": 256, "n": 128, "k": 512}


def _bindings(case: perfsuite.Case, *tiers: str) -> list[dict[str, Any]]:
    return [dict(axes) for tier, axes in case.points if not tiers or tier in tiers]


def _built(name: str, **axes: Any) -> perfsuite.Workload:
    workload = CASES[name].build(None, **axes)
    assert isinstance(workload, perfsuite.Workload)
    return workload


def _check(workload: perfsuite.Workload) -> float | None:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    return check(open_device("cpu"), workload, seed=3).known_error


@pytest.mark.parametrize("form", FORMATS)
def test_dequantised_twin_is_right_on_the_cpu_and_untiled_scales_are_refused(form: str) -> None:
    axes = {"format": form, **SMALL, "impl": "dequantise"}
    error = _check(_built("block_scaled_gemm", **axes))
    assert error is not None
    assert 1e-4 < error < 1e-2


@pytest.mark.parametrize("name", ["block_scaled_gemm", "tcgen05_gemm"])
def test_bf16_is_right_on_the_cpu_and_its_mistake_refused(name: str) -> None:
    axes = {**SMALL, "impl": "cublas", **({"format": "bf16"} if "scaled" in name else {})}
    assert _check(_built(name, **axes)) is not None


@pytest.mark.parametrize("form", ["nvfp4", "mxfp8"])
def test_torch_takes_codes_and_tiled_scales_as_they_are(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU here: torch's own check of shapes and dtypes, which knows no ``out``."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    real, calls = torch._scaled_mm, []  # noqa: SLF001 - what torch offers for these formats

    def multiply(*operands: Any, out: Any, **options: Any) -> None:
        made = real(*operands, **options)
        assert (made.shape, made.dtype) == (out.shape, out.dtype)
        calls.append(made)

    monkeypatch.setattr(torch, "_scaled_mm", multiply)
    launch = _built("block_scaled_gemm", format=form, **SMALL, impl="cublas").fn
    format_ = FORMATS[form]
    with FakeTensorMode():

        def made(*shape: int, dtype: torch.dtype = torch.uint8) -> Any:
            return torch.empty(*shape, dtype=dtype, device="cuda")

        width, wide = 512 * format_.bits // 8, 512 // format_.block // 4
        operands = (made(256, width), made(2, wide, 32, 16), made(128, width))
        factor, out = made(1, dtype=torch.float32), made(256, 128, dtype=torch.bfloat16)
        launch(*operands, made(1, wide, 32, 16), factor, out)
        assert len(calls) == 1
        with pytest.raises(RuntimeError, match="scale_b"):
            launch(*operands, made(1, wide, 32, 8), factor, out)


def _needs(name: str, **axes: Any) -> set[str]:
    return {need.value for need in CASES[name].needs if need.kind == "arch" and need.applies(axes)}


def test_tensor_memory_by_hand_needs_a_chip_that_has_it() -> None:
    assert _needs("tcgen05_gemm", impl="gluon_2cta") == {"sm_100"}
    assert _needs("tcgen05_gemm", impl="triton") == {"sm_90+"}
    assert "sm_100+" in _needs("block_scaled_gemm", impl="triton", format="nvfp4")
    assert "sm_100+" not in _needs("block_scaled_gemm", impl="triton", format="mxfp4")
    assert not _needs("block_scaled_gemm", impl="dequantise", format="nvfp4")


def test_work_counts_the_operations_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from perfsuite.devices.protocol import open_device

    for name in ("tcgen05_gemm", "block_scaled_gemm"):
        case = CASES[name]
        assert case.work is not None
        axes = {**SMALL, "impl": "cublas", **({"format": "bf16"} if "scaled" in name else {})}
        workload = _built(name, **axes)
        inputs = workload.make_inputs(open_device("cpu").rng(1))
        with FlopCounterMode(display=False) as counter:
            workload.fn(*inputs)
        assert counter.get_total_flops() == case.work(**axes).flops


def test_kernels_are_plain_and_name_an_opcode_for_each_target() -> None:
    kernels = {kernel.name: kernel for kernel in perf_kernels()}
    assert len(kernels) >= 8
    assert all(set(kernel.expects) == set(kernel.targets) for kernel in kernels.values())
    json.dumps([[dict(k.signature), dict(k.constants)] for k in kernels.values()])


def test_listing_imports_no_kernel_library() -> None:
    roots = [str(Path(perfsuite.__file__).parents[1]), str(Path(__file__).parents[1])]
    code = (
        f"import json, sys; sys.path[:0] = {roots!r}; import perfsuite_blackwell as pack;"
        "assert pack.perf_cases() and pack.perf_kernels();"
        "print(json.dumps([m for m in ('torch', 'triton', 'numpy', 'cuda') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
