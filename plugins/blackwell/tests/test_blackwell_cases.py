"""The pack's cases on small sizes: twins that no smoke tier runs on a CPU, and torch's checks."""

from __future__ import annotations

from typing import Any

import pytest
from perfsuite_blackwell.formats import FORMATS

import perfsuite
from perfsuite import gpu
from perfsuite.packs.load import load_pack

LOADED = load_pack("blackwell", "module:perfsuite_blackwell@")
SMALL = {"m": 256, "n": 128, "k": 512}


def _built(name: str, **axes: Any) -> perfsuite.Workload:
    workload = LOADED.cases[name].build(None, **axes)
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

    monkeypatch.setattr(gpu.torch, "_scaled_mm", multiply)
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
