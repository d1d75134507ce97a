"""The pack's cases on small sizes: twins that no smoke tier runs on a CPU, and torch's checks."""

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
