"""The experts of a mixture in fp8 with a scale for each block: prefilling, and decoding."""

from typing import Any

from perfsuite import Beats, Work, arch, cuda, operator, package
from perfsuite.gpu import Later, matmul64, torch
from perfsuite_compute import fp8_block

_TILE = 128  # rows that one expert's begin at a multiple of, as DeepGEMM wants them
_HOPPER = [cuda(), arch("sm_90")]


def sizes_of(experts: int, rows: int) -> list[int]:
    """Return the rows of each expert: from 0.7 to 1.3 times ``rows``, as DeepGEMM's tests draw."""
    # 5 has no factor in common with a power of two, nor with 6.
    spread = (((5 * expert + 3) % experts) / max(1, experts - 1) for expert in range(experts))
    return [int(rows * (0.7 + 0.6 * share)) for share in spread]


def begins_of(layout: str, experts: int, rows: int) -> list[int]:
    """Return where each expert's rows begin, and last where they all end.

    In ``masked`` each has room for twice as many as it has on average; in ``contiguous`` for its
    own. Rooms are whole tiles.
    """
    found = [0]
    for size in sizes_of(experts, rows):
        found.append(found[-1] + -(-(2 * rows if layout == "masked" else size) // _TILE) * _TILE)
    return found


def _work(experts: int, rows: int, n: int, k: int, impl: str, **_: Any) -> Work:
    total, size = sum(sizes_of(experts, rows)), 2 if impl == "bf16" else 1
    scales = 0 if impl == "bf16" else (total + experts * (n // _TILE)) * (k // _TILE)
    read = size * (total * k + experts * n * k) + 4 * scales
    return Work(read, 2 * total * n, 2 * total * n * k, "bf16" if impl == "bf16" else "fp8")


def _memory_bytes(layout: str, experts: int, rows: int, n: int, k: int, impl: str) -> int:
    held = begins_of(layout, experts, rows)[-1]
    # Drawn in bf16 and quantised in fp32; the reference in float64, one expert at a time.
    return 13 * (held * k + experts * n * k) + 20 * held * n + 17 * (2 * rows + n) * k


_PREFILL: dict[str, str | int] = {"layout": "contiguous", "experts": 4, "rows": 8192}
_DECODE: dict[str, str | int] = {"layout": "masked", "experts": 6, "rows": 20}
_WIDE: dict[str, str | int] = {"n": 4096, "k": 7168}  # gate and up
_DEEP: dict[str, str | int] = {"n": 7168, "k": 2048}  # down


@operator(
    smoke={**_DECODE, "n": 7168, "k": 2048, "impl": "triton"},
    nightly=[_PREFILL | _WIDE, _DECODE | _WIDE],
    full=[
        _PREFILL | _DEEP,
        _DECODE | _DEEP,
        {**_DECODE, **_DEEP, "experts": 32, "rows": [20, 192]},
    ],
    needs=[cuda(), arch("sm_90+")],
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["fp8", "mixture-of-experts", "tensor-cores"],
    source="deepseek-ai/DeepGEMM's contiguous and masked layouts; vllm-project/vllm#4509",
)
def fp8_grouped_gemm(
    rng: Any, *, layout: str, experts: int, rows: int, n: int, k: int, impl: str
) -> Any:
    """Multiply each expert's rows by its own weights in fp8, scaled as in ``fp8_block_gemm``.

    ``contiguous`` is prefilling: experts' rows lie one after the other, each from a multiple of 128
    on. ``masked`` is decoding with CUDA graphs: each expert has room for more rows than it got,
    and how many it got is known to the GPU alone. ``loop`` calls cuBLAS once an expert, with
    numbers known to the host, and the scales of each expert's rows on their own beforehand.
    ``rowwise`` is ``torch._scaled_grouped_mm``, which has one scale a row, and ``bf16``
    ``torch._grouped_mm`` on what the codes stand for; masked, both multiply all the room there
    is. ``triton`` and ``gluon`` are the kernels of ``fp8_block_gemm``. What is compared are the
    rows that experts got.
    """
    begins = begins_of(layout, experts, rows)
    parts = experts if layout == "masked" else 1
    x, scale, *of_w = fp8_block.operands(rng, parts, begins[-1] // parts, (experts, n, k), impl)
    if impl == "loop":
        by_rows = scale.mT.flatten(0, 1)
        each = zip(begins, _multiplied(experts, rows), strict=False)
        scale = tuple(by_rows[begin : begin + count].t().contiguous() for begin, count in each)
    return x, scale, *of_w, rng.empty(begins[-1], n, dtype="bfloat16")


def _multiplied(experts: int, rows: int) -> list[int]:
    # cuBLAS wants a multiple of 4, and what follows an expert's rows is free.
    return [-(-size // 16) * 16 for size in sizes_of(experts, rows)]


def _got(y: Any, layout: str, experts: int, rows: int) -> tuple[Any, ...]:
    """Return the rows that experts got, which are compared; what else a launch writes is free."""
    sizes, begins = sizes_of(experts, rows), begins_of(layout, experts, rows)
    return tuple(y[begin : begin + size] for begin, size in zip(begins, sizes, strict=False))


@fp8_grouped_gemm.reference
def _reference(
    x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any, *, layout: str, experts: int, rows: int,
    **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Multiply what the codes stand for, one expert at a time."""
    places = layout, experts, rows
    is_apart = isinstance(x_scale, tuple)
    scales = [of.t() for of in x_scale] if is_apart else _got(x_scale.mT.flatten(0, 1), *places)
    given = _got(x, *places), scales, w, w_scale
    block = fp8_block.BLOCK if w_scale.shape[2] > 1 else 1
    return tuple(
        matmul64(fp8_block.dequantise(part, scale, 1), fp8_block.dequantise(weights, of, block).t())
        for part, scale, weights, of in zip(*given, strict=True)
    )


def _in_bf16(parts: Any) -> tuple[Any, ...]:
    return tuple(part.bfloat16() for part in parts)


@fp8_grouped_gemm.wrong
def _first_tile_of_the_last(*given: Any, **axes: Any) -> tuple[Any, ...]:
    """Multiply the first tile of each expert by the weights of the one before."""
    x, x_scale, w, w_scale, y = given
    other = w.view(torch.uint8).roll(1, 0).view(w.dtype)  # codes of fp8 cannot be rolled
    before = _reference(x, x_scale, other, w_scale.roll(1, 0), y, **axes)
    both = zip(before, _reference(*given, **axes), strict=True)
    return _in_bf16(torch.cat((late[:_TILE], right[_TILE:])) for late, right in both)


@fp8_grouped_gemm.wrong
def _without_the_last_block(*given: Any, **axes: Any) -> tuple[Any, ...]:
    """Forget the last 128 values of k."""
    x, x_scale, w, w_scale, y = given
    x = x.clone()
    x[:, -_TILE:].view(torch.uint8).zero_()
    return _in_bf16(_reference(x, x_scale, w, w_scale, y, **axes))


@fp8_grouped_gemm.impl(needs=_HOPPER)
def _loop(ctx: Any, *, layout: str, experts: int, rows: int) -> Any:
    counts, begins = _multiplied(experts, rows), begins_of(layout, experts, rows)

    def launch(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
        for expert, (begin, count) in enumerate(zip(begins, counts, strict=False)):
            own = slice(begin, begin + count)
            fp8_block.scaled_mm(x[own], x_scale[expert], w[expert], w_scale[expert], y[own])
        return _got(y, layout, experts, rows)

    return launch


def _ends(ctx: Any, layout: str, experts: int, rows: int) -> Any:
    ends = begins_of(layout, experts, rows)[1:]
    return torch.tensor(ends, dtype=torch.int32, device=ctx.place)


@fp8_grouped_gemm.impl
def _bf16(ctx: Any, *, layout: str, experts: int, rows: int) -> Any:
    ends = _ends(ctx, layout, experts, rows)

    def launch(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
        if layout == "masked":
            torch.bmm(x.view(experts, -1, x.shape[1]), w.mT, out=y.view(experts, -1, y.shape[1]))
        else:
            y = torch._grouped_mm(x, w.mT, offs=ends)  # noqa: SLF001
        return _got(y, layout, experts, rows)

    return launch


@fp8_grouped_gemm.impl(needs=_HOPPER)
def _rowwise(ctx: Any, *, layout: str, experts: int, rows: int) -> Any:
    is_masked = layout == "masked"
    ends = None if is_masked else _ends(ctx, layout, experts, rows)

    def launch(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
        a, scale = x, x_scale[0, 0]
        if is_masked:
            a, scale = x.view(experts, -1, x.shape[1]), x_scale[:, 0]
        how = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        result = torch._scaled_grouped_mm(a, w.mT, scale, w_scale[..., 0], **how)  # noqa: SLF001
        return _got(result.view(y.shape), layout, experts, rows)

    return launch


def _ours(ctx: Any, *, layout: str, experts: int, rows: int, impl: str) -> Any:
    lists = begins_of(layout, experts, rows)[:-1], sizes_of(experts, rows)
    places = (torch.tensor(each, dtype=torch.int32, device=ctx.place) for each in lists)
    module = fp8_block.gluon if impl == "gluon" else fp8_block.kernels
    run = module.launch(*places, rows=rows)

    def launch(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
        run(x, x_scale, w, w_scale, y)
        return _got(y, layout, experts, rows)

    return launch


fp8_grouped_gemm.impl(_ours, name="gluon", needs=fp8_block.GLUON)
fp8_grouped_gemm.impl(
    _ours,
    name="triton",
    needs=fp8_block.TRITON,
    beats=Beats(
        "loop",
        1.2,
        "PyTorch blog, 'Accelerating MoE's with a Triton Persistent Cache-Aware Grouped GEMM "
        "Kernel': 1.42 to 2.62 times a loop over the experts, in bf16, DeepSeek-V3 16B on H100",
        at={"layout": "masked", "n": 4096},
    ),
)


@fp8_grouped_gemm.impl(needs=[*_HOPPER, package("deep_gemm")])
def _deep_gemm(ctx: Any, *, layout: str, experts: int, rows: int) -> Any:
    library = Later("deep_gemm")
    sizes, begins = sizes_of(experts, rows), begins_of(layout, experts, rows)
    counts = torch.tensor(sizes, dtype=torch.int32, device=ctx.place)
    owner = torch.full((begins[-1],), -1, dtype=torch.int32, device=ctx.place)
    for expert, part in enumerate(_got(owner, layout, experts, rows)):
        part.fill_(expert)

    def launch(x: Any, x_scale: Any, w: Any, w_scale: Any, y: Any) -> Any:
        if layout == "masked":
            rooms, to = (each.view(experts, -1, each.shape[1]) for each in (x, y))
            library.m_grouped_fp8_gemm_nt_masked(
                (rooms, x_scale.mT), (w, w_scale), to, counts, rows
            )
        else:
            library.m_grouped_fp8_gemm_nt_contiguous((x, x_scale[0].mT), (w, w_scale), y, owner)
        return _got(y, layout, experts, rows)

    return launch
