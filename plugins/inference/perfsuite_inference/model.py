"""A Llama-shaped decoder with random weights, in plain torch and without any engine around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from perfsuite_inference.shapes import SHAPES, Shape

# Scores then spread by about 2.5: attention picks out some tokens of a long context, as that of
# trained weights does. Of scores spread by 1 it would be a mean over all, which hides mistakes.
_SHARPNESS = 2.5
# What all layers add to the embedding, in units of it: each adds its share, as initialisation for
# training has it (GPT-2 scales by 1 / sqrt(2 layers)). Rounding errors then add up, not multiply.
_GROWTH = 2.0
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Cache(Protocol):
    """Where keys and values of tokens already seen are kept; k and v are those of new tokens."""

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor) -> None:
        """Keep a prompt's [b, kv_heads, s, d] as positions 0..s of these rows of the cache."""

    def begin(self, positions: torch.Tensor) -> None:
        """Prepare one step for all layers, with one new token a row at these positions [b]."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Keep the new k, v [b, kv_heads, d]; return what q [b, heads, d] attends to, as q."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer, each [out, in]; q, k, v are one matrix, and so are gate and up."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Llama:
    """A decoder whose weights follow from ``seed``: equal in every process on devices of one kind.

    ``shape`` is a name of ``SHAPES`` or a ``Shape``. Tokens are int64, logits [b, vocab] of the
    model's dtype. Rotary positions go up to ``shape.positions``. Source: the architecture of
    Llama 3 (arXiv:2407.21783): RMSNorm, rotary positions, grouped queries, SwiGLU; its scaling of
    rotary frequencies is left out.
    """

    def __init__(self, shape: str | Shape, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        if isinstance(shape, str) and shape not in SHAPES:
            raise ValueError(f"no model of size {shape!r}: name one of {', '.join(SHAPES)}")
        self.shape = SHAPES[shape] if isinstance(shape, str) else shape
        self.device = torch.device(device)
        self.dtype = dtype
        draw = _Draw(self.device, dtype, seed)
        self.embedding = draw.matrix(self.shape.vocab, self.shape.hidden)
        self.layers = tuple(_draw_layer(draw, self.shape) for _ in range(self.shape.layers))
        self.norm = draw.scales(self.shape.hidden)
        # Drawn for itself in every shape: random weights tied to the embedding repeat their input.
        self.head = draw.matrix(self.shape.vocab, self.shape.hidden)
        self._cos, self._sin = _rotations(self.shape, self.device)

    def prefill(
        self,
        tokens: torch.Tensor,
        cache: Cache | None,
        *,
        lengths: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
        attention: Attention | None = None,
    ) -> torch.Tensor:
        """Read prompts [b, s] into rows of the cache; return the logits after each prompt.

        Prompts of several lengths [b] are filled up on the right with any token. ``rows`` [b] are
        the cache's rows to fill (all of them, in order). ``attention`` takes causal q
        [b, heads, s, d] and k, v [b, kv_heads, s, d]; torch's own fused one if left out.
        """
        batch, length = tokens.shape
        if length > self.shape.positions:
            raise ValueError(
                f"a prompt of {length} tokens: this model has {self.shape.positions} positions"
            )
        rows = torch.arange(batch, device=self.device) if rows is None else rows
        positions = torch.arange(length, device=self.device)
        cos, sin = self._cos[positions], self._sin[positions]
        x = functional.embedding(tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x)
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if cache is not None:
                cache.store(index, k, v, rows)
            seen = (attention or attend_fused)(q, k, v)
            x = self._finish(layer, x, seen.transpose(1, 2).reshape(batch, length, -1))
        last = torch.full_like(rows, length - 1) if lengths is None else lengths - 1
        return self._logits(x[torch.arange(batch, device=self.device), last])

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Take one token a row [b] at its position [b]; return the logits after it.

        Rows are those of the cache, all of them; no result leaves the device on the way, so that
        a CUDA graph can hold the step if the cache's memory stays where it is.
        """
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        x = functional.embedding(tokens, self.embedding)
        cache.begin(positions)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            x = self._finish(layer, x, cache.attend(index, q, k, v).flatten(1))
        return self._logits(x)

    def _project(self, layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return q, k, v as [..., heads, d]."""
        s = self.shape
        packed = functional.linear(self._normed(x, layer.attention_norm), layer.qkv)
        packed = packed.unflatten(-1, (-1, s.head))
        return tuple(packed.split((s.heads, s.kv_heads, s.kv_heads), dim=-2))

    def _finish(self, layer: Layer, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x = x + functional.linear(seen, layer.out)
        gate, up = functional.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, layer.down)

    def _normed(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.shape.hidden,), scales, self.shape.epsilon)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self._normed(x, self.norm), self.head)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + d/2) of the last dimension by its position's angle, in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def attend_fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend causally with torch's fused kernels; several query heads share one of k and v."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class _Draw:
    """Draws weights one after another from one generator."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._where: dict[str, Any] = {"device": device, "generator": self._generator}
        self._dtype = dtype

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """Return a matrix that keeps the variance of what it multiplies, times gain squared."""
        drawn = torch.randn(rows, columns, **self._where)
        return drawn.mul_(gain / columns**0.5).to(self._dtype)

    def scales(self, size: int) -> torch.Tensor:
        """Return a norm's factors, about 1 each and no two the same."""
        return (1 + 0.1 * torch.randn(size, **self._where)).to(self._dtype)


def _draw_layer(draw: _Draw, s: Shape) -> Layer:
    sharp = _SHARPNESS**0.5
    # The embedding's elements are of 1 / sqrt(hidden), see _Draw.matrix.
    share = _GROWTH / (2 * s.layers * s.hidden) ** 0.5
    queries, keys = s.heads * s.head, s.kv_heads * s.head
    qk = draw.matrix(queries + keys, s.hidden, sharp)
    return Layer(
        attention_norm=draw.scales(s.hidden),
        qkv=torch.cat((qk, draw.matrix(keys, s.hidden))),
        out=draw.matrix(s.hidden, queries, share),
        mlp_norm=draw.scales(s.hidden),
        gate_up=draw.matrix(2 * s.mlp, s.hidden),
        down=draw.matrix(s.hidden, s.mlp, share),
    )


def _rotations(s: Shape, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [positions, head / 2] in fp32, of angles taken in float64."""
    pairs = torch.arange(s.head // 2, dtype=torch.float64, device=device)
    positions = torch.arange(s.positions, dtype=torch.float64, device=device)
    angles = positions[:, None] * s.theta ** (-2 * pairs / s.head)
    return angles.cos().float(), angles.sin().float()
