"""An activation written out in eight operators, against one kernel."""

import math
from typing import Any

from perfsuite import KERNELS, Beats, Regime, cuda, operator
from perfsuite.gpu import TRITON, Later, compiled, torch

kernels = Later("perfsuite_scheduling.kernel_fusion_triton")
_SLOPE = math.sqrt(2 / math.pi)
_CUBE = 0.044715
# 1 + 1 + 2 + 1 + 1 + 1 + 1 + 2 elements read and 8 written, for each that is read and written once.
_BEATS = Beats(
    "eager",
    2.0,
    "counted: written out, GELU reads 10 elements and writes 8 for each that one kernel reads once "
    "and writes once, a ratio of 9 where memory is what it takes; AI Systems Performance "
    "Engineering, companion code, folder ch12: 2.8 for an elementwise chain on a B200",
    at={"n": (2**24, 2**26)},
    needs=(cuda(),),
    name="fusion",
)


@operator(
    smoke={"n": 2**16, "impl": ["eager", "triton"]},
    nightly={"n": 2**24},
    full={"n": [2**16, 2**20, 2**24, 2**26]},
    # Input, output, two intermediates at a time, and the float64 reference with its own.
    memory_bytes=lambda n, impl: n * (4 * 4 + 3 * 8),
    metrics=[KERNELS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["launch", "fusion"],
    source="kernel fusion: AI Systems Performance Engineering, chapters 7 and 8; "
    "GELU: Hendrycks and Gimpel, arXiv:1606.08415, section 2",
)
def kernel_fusion(rng: Any, *, n: int) -> Any:
    """Apply GELU, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))), to n fp32 values.

    ``eager`` is the formula as models write it: eight operators, each a kernel that goes through
    memory. ``torch`` (torch.nn.functional.gelu) and ``triton`` are one kernel each, and so is
    ``compile``, the formula through torch.compile. Host and device time are both measured; the work
    is one read and one write for all of them. With 2**16 values launches are what it takes. With
    2**24 memory is what the device's own time is: 35.1 us for ``torch`` on an H200, 87 % of the HBM
    ceiling and 90 % of a copy's rate. End to end that is 46.7 us, 65 %: the rest is the host's
    launch and wait.
    """
    return rng.randn(n), rng.empty(n)


@kernel_fusion.reference
def _reference(x: Any, y: Any) -> Any:
    """Use that (1 + tanh u) / 2 is 1 / (1 + exp(-2u)), in float64."""
    wide = x.double()
    return wide / (1 + (-2 * _SLOPE * (wide + _CUBE * wide**3)).exp())


# Take the GELU that is not approximated, as a model with the other activation would.
kernel_fusion.wrong(lambda x, y: torch.nn.functional.gelu(x))


@kernel_fusion.impl
def _eager(x: Any, y: Any) -> Any:
    return 0.5 * x * (1.0 + torch.tanh(_SLOPE * (x + _CUBE * torch.pow(x, 3.0))))


@kernel_fusion.impl(beats=_BEATS)
def _torch(x: Any, y: Any) -> Any:
    return torch.nn.functional.gelu(x, approximate="tanh")


kernel_fusion.impl(lambda ctx: kernels.gelu, name="triton", needs=TRITON, beats=_BEATS)
kernel_fusion.impl(lambda ctx: compiled(_eager), name="compile", needs=TRITON, tier="full")
