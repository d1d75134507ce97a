"""One token's way through the layers in Triton: kernels read weights before the one ahead ends."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from perfsuite.gpu import properties, torch
from perfsuite_inference.cache import PagedCache
from perfsuite_inference.model import Llama
from perfsuite_inference.paged_triton import attend_paged

# The first compute capability whose kernels can start before the one ahead has ended.
_EARLY_FROM = 9


@triton.jit
def product_kernel(
    x, scales, w, residual, out, epsilon, cos, sin, positions, table, keys, values,
    K: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, OFFSET: tl.constexpr,
    GATED: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply a row x [K] by the transpose of w: ROWS pairs of outputs that lie OFFSET apart.

    ``scales`` are those of a norm of x. What is not needed is None: ``residual`` is added, GATED
    pairs are gate and up. With ``cos`` OFFSET is half a head: queries and keys are turned by the
    token's position, and keys and values go to its place in the cache.
    """
    start = tl.program_id(0) * ROWS
    head, pairs = start // OFFSET, start % OFFSET + tl.arange(0, ROWS)
    rows = (head * (2 * OFFSET) + pairs).to(tl.int64)
    ones, twos, squares = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), 0.0
    for i in tl.static_range(K // COLUMNS):
        columns = i * COLUMNS + tl.arange(0, COLUMNS)
        at = w + rows[:, None] * K + columns[None, :]
        one = tl.load(at, eviction_policy="evict_first")
        two = tl.load(at + OFFSET * K, eviction_policy="evict_first")
        if EARLY and i == 0:
            gdc_launch_dependents()
            gdc_wait()
        seen = tl.load(x + columns).to(tl.float32)
        if scales is not None:
            squares += tl.sum(seen * seen, 0)
            seen *= tl.load(scales + columns).to(tl.float32)
        ones += tl.sum(one.to(tl.float32) * seen[None, :], 1)
        twos += tl.sum(two.to(tl.float32) * seen[None, :], 1)
    if scales is not None:
        factor = tl.rsqrt(squares / K + epsilon)
        ones, twos = ones * factor, twos * factor
    if residual is not None:
        ones += tl.load(residual + rows).to(tl.float32)
        twos += tl.load(residual + rows + OFFSET).to(tl.float32)
    if cos is not None:
        position = tl.load(positions)
        if head < HEADS + KV_HEADS:
            turn = position * OFFSET + pairs
            real, imaginary = tl.load(cos + turn), tl.load(sin + turn)
            ones, twos = ones * real - twos * imaginary, twos * real + ones * imaginary
        if head >= HEADS:
            block = tl.load(table + position // BLOCK).to(tl.int64)
            place = (block * KV_HEADS + (head - HEADS) % KV_HEADS) * BLOCK + position % BLOCK
            rows = place * (2 * OFFSET) + pairs
            out = keys if head < HEADS + KV_HEADS else values
    if GATED:
        tl.store(out + rows, ones * tl.sigmoid(ones) * twos)
    else:
        tl.store(out + rows, ones)
        tl.store(out + rows + OFFSET, twos)


def one_row(model: Llama, cache: PagedCache) -> Callable[[Any, Any], Any]:
    """Return a step of one row, as ``model.decode`` with this cache: six kernels a layer.

    It writes the logits anew each time. The model's widths are powers of two, or not far from one.
    """
    s, place = model.shape, {"dtype": model.shape.kind, "device": model.device}
    early = model.device.type == "cuda" and properties(model.device).major >= _EARLY_FROM
    widths = (s.heads * s.head, s.hidden, s.mlp, s.vocab)
    q, between, gated, logits = (torch.empty(1, width, **place) for width in widths)

    def multiply(
        x: Any, w: Any, out: Any, *, norm: Any = None, add: Any = None, turn: Any = (None,) * 6
    ) -> None:
        n, k = w.shape
        # As measured with 1b on an H100.
        rows, columns, warps = (2, 8192, 8) if k > n else (4, 2048, 4)
        product_kernel[(n // 2 // rows,)](
            x, norm, w, add, out, s.epsilon, *turn, K=k, COLUMNS=math.gcd(k, columns), ROWS=rows,
            OFFSET=s.head // 2 if out is q else n // 2, GATED=out is gated, HEADS=s.heads,
            KV_HEADS=s.kv_heads, BLOCK=cache.block, EARLY=early, num_warps=warps,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip

    def step(tokens: Any, positions: Any) -> Any:
        x = torch.nn.functional.embedding(tokens, model.embedding)
        lengths = positions + 1
        for layer, k, v in zip(model.layers, cache.k, cache.v, strict=True):
            turn = (model.cos, model.sin, positions, cache.table, k, v)
            multiply(x, layer.qkv, q, norm=layer.attention_norm, turn=turn)
            asked = q.view(1, s.heads, s.head)
            seen = attend_paged(asked, k, v, cache.table, lengths, early=early)
            multiply(seen, layer.out, between, add=x)
            multiply(between, layer.gate_up, gated, norm=layer.mlp_norm)
            multiply(gated, layer.down, x, add=between)
        multiply(x, model.head, logits, norm=model.norm)
        return logits

    return step
