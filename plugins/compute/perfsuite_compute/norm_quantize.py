"""RMSNorm before an fp8 product: codes, and a scale for each 128 numbers of a token."""

from functools import partial
from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite.gpu import DTYPES, TRITON, Later, by_rows, compiled, torch

EPS, MOST, GROUP = 1e-6, 448.0, 128


@operator(
    smoke={"dtype": "fp32", "rows": 64, "cols": 384, "impl": "eager"},
    # DeepSeek-V3's width: its card has scales for 1 x 128 numbers of an activation.
    nightly={"dtype": "bf16", "rows": 8192, "cols": 7168},
    full={"dtype": "bf16", "rows": [64, 8192], "cols": 4096},
    needs=[cuda().when(dtype="bf16")],
    # A number near the middle between two codes may become either, an eighth off at most.
    tolerance=2e-2,
    tags=["quantisation", "fusion", "reduction"],
    source="DeepSeek-V3 (arXiv:2412.19437), section 3.3.2: fine-grained quantisation",
)
def norm_quantize(rng: Any, *, dtype: str, rows: int, cols: int) -> tuple[Any, ...]:
    """Normalise each row, scale each 128 numbers so that the largest is 448, and round to e4m3.

    ``eager`` calls ``rms_norm``, then finds the largest, scales and converts, each in a kernel
    through memory. ``triton`` keeps a row in registers: 2 bytes in and 1 out for each number.
    """
    name = DTYPES[dtype]
    # Groups of other sizes: one scale for a row would be seen.
    x = rng.randn(rows, cols // GROUP, GROUP, dtype=name)
    x *= 0.25 + 3.75 * rng.rand(rows, cols // GROUP, 1, dtype=name)
    weight = 0.5 + rng.rand(cols, dtype=name)
    codes, scales = rng.empty(rows, cols, dtype="float8_e4m3fn"), rng.empty(rows, cols // GROUP)
    return x.flatten(1), weight, codes, scales


@norm_quantize.reference
def reference(x: Any, weight: Any, *_: Any, group: int = GROUP) -> tuple[Any, Any]:
    """Return what the codes stand for, and the scales, of the norm in float64."""

    def groups(part: Any) -> Any:
        size = ((part * part).sum(1, keepdim=True) / part.shape[1] + EPS).sqrt()
        return (part / size * weight.double()).unflatten(1, (-1, group))

    def codes(part: Any) -> Any:
        each = groups(part)
        scaled = each / each.abs().amax(2, keepdim=True) * MOST
        return scaled.flatten(1).to(torch.float8_e4m3fn).double()

    def scales(part: Any) -> Any:
        return groups(part).abs().amax(2).repeat_interleave(group // GROUP, 1) / MOST

    return by_rows(codes, x), by_rows(scales, x)


@norm_quantize.wrong
def _a_scale_a_row(x: Any, weight: Any, *_: Any) -> tuple[Any, Any]:
    codes, scales = reference(x, weight, group=x.shape[1])
    return codes.to(torch.float8_e4m3fn), scales.float()


@norm_quantize.impl
def _eager(x: Any, weight: Any, *_: Any) -> tuple[Any, Any]:
    """Normalise and quantise as is written: return the codes and the scales."""
    normed = torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)
    groups = normed.float().unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(2) / MOST
    codes = (groups / scales[..., None]).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
    return codes.flatten(1), scales


@norm_quantize.impl(needs=[*TRITON, arch("sm_89+")], tier="full")
def _compile(ctx: Any) -> Any:
    return compiled(_eager)


@norm_quantize.impl(
    needs=[*TRITON, arch("sm_89+")],
    beats=Beats(
        "eager",
        3.0,
        "counted: the norm moves 4 bytes a number, its fp32 6, the largest of sizes 12, the "
        "quotients 8, clamps 8 and codes 5, which is 43 where 3 are needed; 3 is asked for",
        at={"rows": 8192, "cols": (4096, 7168)},
    ),
)
def _triton(ctx: Any) -> Any:
    quantise = Later("perfsuite_compute.norm_quantize_triton").quantise
    return partial(quantise, eps=EPS, most=MOST, group=GROUP)
