"""From bf16 to mxfp8, mxfp4 and nvfp4: codes, and a scale for each block in the order of cuBLAS."""

from typing import Any

from perfsuite import Beats, arch, operator, package
from perfsuite.gpu import TRITON, Later, by_rows, compiled, torch
from perfsuite_compute.quantize_cast import nearest

BLOCK = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}  # numbers that share a scale
WIDTHS = {"tiny": 256, "llama3-8b": 4096, "deepseek-v3": 7168, "llama3-405b": 16384}
_E4M3, _E2M1 = 448.0, 6.0  # the largest of each
_POWER = {"mxfp8": 8, "mxfp4": 2}  # of two in the largest, which a scale is divided by
_LEAST = 2.0**-6  # of a scale in e4m3: its smallest normal number
_FORMATS = [*BLOCK]


@operator(
    smoke={"to": _FORMATS, "model": "tiny", "tokens": 256, "impl": "eager"},
    nightly={"to": _FORMATS, "model": "deepseek-v3", "tokens": 8192},
    full=[
        {"to": _FORMATS, "model": "llama3-8b", "tokens": 128},
        # As the thread below has it.
        {"to": _FORMATS, "model": "llama3-405b", "tokens": 16384, "impl": ["compile", "triton"]},
    ],
    # torchao multiplies by the inverse of a step: what lies on a middle may become either code.
    # A scale that is one off in all blocks differs by 0.8 %, and must be refused.
    tolerance=lambda *, impl: 5e-3 if impl == "torchao" else 0.0,
    memory_bytes=lambda model, tokens, **_: 40 * tokens * WIDTHS[model] + (1 << 30),
    tags=["quantisation", "fp8", "fp4", "fusion"],
    source="OCP Microscaling Formats (MX) v1.0, section 6.3; cuBLAS documentation, 1D block "
    "scaling factors layout; pytorch/pytorch#167098",
)
def mx_quantize(rng: Any, *, to: str, model: str, tokens: int) -> Any:
    """Turn bf16 into codes and a scale for each block, as tensor cores of sm_100 take them.

    ``mxfp8`` is e4m3 with a power of two for each 32 numbers, and ``mxfp4`` is e2m1, two to a byte.
    Those powers are rounded down: what exceeds the largest code, by a third at most, becomes it.
    ``nvfp4`` is e2m1 with a scale in e4m3 for each 16, and one factor for the tensor, which is
    known beforehand.
    Scales lie in tiles of 128 rows by 4 blocks, rows that are 32 apart side by side. All is done
    by arithmetic that a GPU without such formats has, and to the bit: steps have 12 bits, so that
    products with them are exact. ``eager`` goes through memory for each step, ``compile`` is the
    same by torch.compile, ``triton`` reads 2 bytes a number and writes codes and scales once.
    ``torchao`` is that package's formula by torch.compile, where it is installed.
    """
    x = rng.randn(tokens, WIDTHS[model], dtype="bfloat16")
    blocks = x.unflatten(1, (-1, BLOCK[to]))
    # Sizes from 0.1 to 10: a neighbour's scale, or one by its row alone, is another.
    blocks *= torch.exp2(6.6 * rng.rand(*blocks.shape[:2], 1) - 3.3)
    blocks[0, 0] = 0.0  # as padding has it
    factor = (x.abs().max().float() / (_E2M1 * _E4M3)).bfloat16().float()
    sizes = torch.stack((1 / (_E2M1 * factor), factor))
    tiles = tokens // 128, blocks.shape[1] // 4, 32, 16
    bits = 8 if to == "mxfp8" else 4
    codes = rng.empty(tokens, WIDTHS[model] * bits // 8, dtype="uint8")
    return x, sizes, codes, rng.empty(*tiles, dtype="uint8")


def _by_table(x: Any, sizes: Any, to: str) -> tuple[Any, Any]:
    """Return codes and scales [rows, blocks] in float64, each the nearest in its format's table."""
    e4m3 = torch.arange(127, dtype=torch.uint8, device=x.device).view(torch.float8_e4m3fn).double()
    e2m1 = e4m3.new_tensor((0, 0.5, 1, 1.5, 2, 3, 4, 6))
    powers = e4m3.new_tensor([2.0 ** (code - 127) for code in range(255)])

    def scales_of(part: Any) -> Any:
        largest = part.unflatten(1, (-1, BLOCK[to])).abs().amax(2)
        if to in _POWER:
            power = torch.searchsorted(powers, largest, right=True) - 1
            return power.sub(_POWER[to]).clamp_min(0)
        return nearest((largest * sizes[0].double()).float().double().clamp_min(_LEAST), e4m3)

    def codes_of(part: Any) -> Any:
        table = powers if to in _POWER else e4m3 * sizes[1].double()
        values = e4m3 if to == "mxfp8" else e2m1
        steps = table[scales_of(part)].repeat_interleave(BLOCK[to], 1)
        code = nearest((part / steps).abs(), values)
        code += torch.signbit(part) * (128 if to == "mxfp8" else 8)
        code = code if to == "mxfp8" else code[:, 0::2] + 16 * code[:, 1::2]
        return code.to(torch.uint8)

    return by_rows(codes_of, x, 512), by_rows(scales_of, x, 512).to(torch.uint8)


@mx_quantize.reference
def reference(x: Any, sizes: Any, _: Any, tiles: Any, *, to: str) -> Any:
    """Do so by table, and put each scale where cuBLAS looks for it."""
    codes, scales = _by_table(x, sizes, to)
    row, block = (torch.arange(size, device=x.device) for size in scales.shape)
    tile = row[:, None] // 128 * tiles.shape[1] + block // 4
    inside = row % 32 * 16 + row % 128 // 32 * 4
    placed = torch.empty_like(scales).view(-1)
    placed[tile * 512 + inside[:, None] + block % 4] = scales
    return codes, placed.view(tiles.shape)


@mx_quantize.wrong
def _row_by_row(x: Any, sizes: Any, _: Any, tiles: Any, *, to: str) -> Any:
    """Leave scales row by row."""
    codes, scales = _by_table(x, sizes, to)
    return codes, scales.view(tiles.shape)


@mx_quantize.wrong
def _a_step_more(*given: Any, to: str) -> Any:
    """Take the next larger scale, for the same codes."""
    codes, scales = reference(*given, to=to)
    return codes, scales + 1


def written(x: Any, sizes: Any, to: str) -> tuple[Any, Any]:
    """Return codes and scales in tiles as they are written in torch."""
    blocks = x.float().unflatten(1, (-1, BLOCK[to]))
    largest = blocks.abs().amax(2)
    if to in _POWER:
        scales = ((largest.view(torch.int32) >> 23) - _POWER[to]).clamp_min(0)
        factor = ((254 - scales) << 23).view(torch.float32)[..., None]  # one over the power of two
        blocks, step = blocks * factor, 1.0
    else:
        rounded = (largest * sizes[0]).clamp(_LEAST, _E4M3).to(torch.float8_e4m3fn)
        scales, step = rounded.view(torch.uint8), (rounded.float() * sizes[1])[..., None]
    if to == "mxfp8":
        scaled = blocks.clamp(-_E4M3, _E4M3)
        codes = scaled.flatten(1).to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        size, where = blocks.abs(), torch.where
        # Of the eight codes the upper four, of those the upper two, and of those the upper one;
        # half way the even one.
        upper = size >= 1.75 * step
        second = size >= where(upper, 3.5 * step, 0.75 * step)
        two, one = where(second, 5.0, 2.5), where(second, 1.25, 0.25)
        last = size > where(upper, two, one) * step
        code = (blocks < 0) * 8 + upper * 4 + second * 2 + last
        pairs = code.to(torch.uint8).flatten(1).unflatten(1, (-1, 2))
        codes = pairs[..., 0] | pairs[..., 1] << 4
    tiles = scales.to(torch.uint8).view(len(x) // 128, 4, 32, -1, 4).permute(0, 3, 2, 1, 4)
    return codes, tiles.flatten(3)


@mx_quantize.impl
def _eager(x: Any, sizes: Any, *_: Any, to: str) -> Any:
    return written(x, sizes, to)


@mx_quantize.impl(needs=[*TRITON, arch("sm_89+")])
def _compile(ctx: Any, *, to: str) -> Any:
    made = compiled(written)
    return lambda x, sizes, *_: made(x, sizes, to)


@mx_quantize.impl(needs=[*TRITON, arch("sm_89+"), package("torchao")])
def _torchao(ctx: Any, *, to: str) -> Any:
    names = {"mx_tensor": "to_mx", "nvfp4_tensor": "nvfp4_quantize", "utils": "to_blocked"}
    to_mx, to_nvfp4, in_tiles = (
        getattr(Later(f"torchao.prototype.mx_formats.{module}"), name)
        for module, name in names.items()
    )

    def run(x: Any, sizes: Any, shape: Any) -> Any:
        if to in _POWER:
            kind = torch.float8_e4m3fn if to == "mxfp8" else torch.float4_e2m1fn_x2
            scales, codes = to_mx(x, kind, BLOCK[to])
        else:
            scales, codes = to_nvfp4(x, BLOCK[to], sizes[1])
        return codes.view(torch.uint8), in_tiles(scales.view(torch.uint8)).view(shape)

    made = compiled(run)
    return lambda x, sizes, _, tiles: made(x, sizes, tiles.shape)


_LARGE = {"tokens": (8192, 16384)}


@mx_quantize.impl(
    needs=[*TRITON, arch("sm_89+")],
    beats=[
        Beats(
            "eager",
            3.0,
            "counted: fp32 moves 6 bytes a number, the largest of sizes 12, the products 8, clamps "
            "8 and codes 5, which is 39 where 3 are needed; 3 is asked for",
            at=_LARGE,
        ),
        Beats(
            "compile",
            2.0,
            "pytorch/pytorch#167098: nvfp4 of 16384 x 16384 takes 880 us by torch.compile and 207 "
            "by a naive Triton kernel on a B200, a ratio of 4.3; 2 is asked for",
            at={**_LARGE, "to": "nvfp4"},
            name="nvfp4_over_compile",
        ),
    ],
)
def _triton(ctx: Any) -> Any:
    return Later("perfsuite_compute.mx_quantize_triton").quantise
