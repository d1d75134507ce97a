"""A Llama-shaped decoder with random weights, in plain torch and without any engine around it.

A cache keeps keys and values of tokens already seen. ``store(layer, k, v, rows)`` keeps a prompt's
[b, kv_heads, s, d] as positions 0..s of these rows; ``begin(positions)`` prepares one step for all
layers, with one new token a row at these positions [b]; ``attend(layer, q, k, v)`` keeps the new
k, v [b, kv_heads, d] and returns what q [b, heads, d] attends to, as q.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import perfsuite
from perfsuite.gpu import DTYPES, compiled, torch

# Scores then spread by about 2.5: attention picks out some tokens of a long context, as that of
# trained weights does. Of scores spread by 1 it would be a mean over all, which hides mistakes.
SHARPNESS = 2.5
# What all layers add to the embedding, in units of it: each adds its share, as initialisation for
# training has it (GPT-2 scales by 1 / sqrt(2 layers)). Rounding errors then add up, not multiply.
_GROWTH = 2.0
# bf16 rounds each of some 100 operations in a row by up to 2 ** -9; fp32 keeps its own limit.
TOLERANCES = {"bf16": 4e-2, "fp32": None}


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes; ``head`` is the width of one head, ``positions`` the longest sequence."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocab: int
    dtype: str = "bf16"
    positions: int = 32768
    theta: float = 500_000.0
    epsilon: float = 1e-5

    @property
    def kind(self) -> Any:
        """The dtype of torch."""
        return getattr(torch, DTYPES[self.dtype])

    @property
    def item_bytes(self) -> int:
        """Bytes of one weight, and of one element of the cache."""
        return {"bf16": 2, "fp32": 4}[self.dtype]

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's matrices."""
        heads = 2 * self.heads + 2 * self.kv_heads
        return self.hidden * (heads * self.head + 3 * self.mlp)

    @property
    def weights(self) -> int:
        """Elements of all matrices that a token is multiplied with, the head among them."""
        return self.layers * self.layer_weights + self.hidden * self.vocab

    @property
    def weight_bytes(self) -> int:
        """Bytes of these matrices and of the embedding."""
        return self.item_bytes * (self.weights + self.hidden * self.vocab)

    @property
    def kv_elements(self) -> int:
        """Elements of keys and values that one token leaves in the cache, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head


# tiny is for CPUs. The others are those of the config.json published with Llama-3.2-1B and
# Llama-3.1-8B.
SHAPES = {
    "tiny": Shape(4, 256, 8, 2, 32, 768, 1024, dtype="fp32", positions=4096),
    "1b": Shape(16, 2048, 32, 8, 64, 8192, 128256),
    "8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer, each [out, in]; q, k, v are one matrix, and so are gate and up."""

    attention_norm: Any
    qkv: Any
    out: Any
    mlp_norm: Any
    gate_up: Any
    down: Any


class Llama:
    """A decoder whose weights follow from ``seed``: equal in every process on devices of one kind.

    Tokens are int64, logits [b, vocab] of the shape's dtype. Rotary positions go up to
    ``shape.positions``. Source: the architecture of Llama 3 (arXiv:2407.21783): RMSNorm, rotary
    positions, grouped queries, SwiGLU; its scaling of rotary frequencies is left out.
    """

    def __init__(self, shape: Shape, device: str, seed: int = 0) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        self.shape, self.device = shape, torch.device(device)
        # The head is drawn for itself: random weights tied to the embedding repeat their input.
        self.embedding, self.layers, self.norm, self.head = _drawn(shape, self.device, seed)
        # Cosines and sines [positions, head / 2] in fp32, of angles taken in float64.
        count = partial(torch.arange, dtype=torch.float64, device=self.device)
        turns = shape.theta ** (-2 * count(shape.head // 2) / shape.head)
        angles = count(shape.positions)[:, None] * turns
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        self._pieces: tuple[Callable[..., Any], ...] = (self._between, self._last)

    def prefill(
        self,
        tokens: Any,
        cache: Any,
        *,
        lengths: Any = None,
        rows: Any = None,
        attention: Any = None,
    ) -> Any:
        """Read prompts [b, s] into rows of the cache; return the logits after each prompt.

        Prompts of several lengths [b] are filled up on the right with any token. ``rows`` [b] are
        the cache's rows to fill (all of them, in order). ``attention`` takes causal q
        [b, heads, s, d] and k, v [b, kv_heads, s, d]; torch's own fused one if left out.
        """
        batch, length = tokens.shape
        rows = torch.arange(batch, device=self.device) if rows is None else rows
        positions = torch.arange(length, device=self.device)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = torch.nn.functional.embedding(tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            q, k, v = (part.transpose(1, 2) for part in self._project(layer, x, cos, sin))
            cache.store(index, k, v, rows)
            seen = (attention or attend_fused)(q, k, v)
            x = self._finish(layer, x, seen.transpose(1, 2).reshape(batch, length, -1))
        last = torch.full_like(rows, length - 1) if lengths is None else lengths - 1
        return self._logits(x[torch.arange(batch, device=self.device), last])

    def decode(self, tokens: Any, positions: Any, cache: Any) -> Any:
        """Take one token a row [b] at its position [b]; return the logits after it.

        Rows are those of the cache, all of them; no result leaves the device on the way, so that
        a CUDA graph can hold the step if the cache's memory stays where it is.
        """
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = torch.nn.functional.embedding(tokens, self.embedding)
        cache.begin(positions)
        q, k, v = self._project(self.layers[0], x, cos, sin)
        between, last = self._pieces
        for index, (layer, following) in enumerate(pairwise(self.layers)):
            seen = cache.attend(index, q, k, v)
            x, q, k, v = between(layer, following, x, seen, cos, sin)
        return last(x, cache.attend(len(self.layers) - 1, q, k, v))

    def fuse(self) -> None:
        """Compile what lies between two attentions: one piece for all layers, not a whole step."""
        self._pieces = compiled(self._between), compiled(self._last)

    def _project(self, layer: Layer, x: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
        """Return q, k, v as [..., heads, d], q and k turned by their positions."""
        s = self.shape
        packed = torch.nn.functional.linear(self._normed(x, layer.attention_norm), layer.qkv)
        parts = packed.unflatten(-1, (-1, s.head)).split((s.heads, s.kv_heads, s.kv_heads), dim=-2)
        q, k, v = parts
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def _between(
        self, layer: Layer, following: Layer, x: Any, seen: Any, cos: Any, sin: Any
    ) -> tuple[Any, ...]:
        """Return x after a layer that has attended, and q, k, v of the following one."""
        x = self._finish(layer, x, seen.flatten(1))
        return x, *self._project(following, x, cos, sin)

    def _last(self, x: Any, seen: Any) -> Any:
        return self._logits(self._finish(self.layers[-1], x, seen.flatten(1)))

    def _finish(self, layer: Layer, x: Any, seen: Any) -> Any:
        functional = torch.nn.functional
        x = x + functional.linear(seen, layer.out)
        gate, up = functional.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, layer.down)

    def _normed(self, x: Any, scales: Any) -> Any:
        size = (self.shape.hidden,)
        return torch.nn.functional.rms_norm(x, size, scales, self.shape.epsilon)

    def _logits(self, x: Any) -> Any:
        return torch.nn.functional.linear(self._normed(x, self.norm), self.head)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Turn each pair (i, i + d/2) of the last dimension by its position's angle, in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def attend_fused(q: Any, k: Any, v: Any, *, is_causal: bool = True) -> Any:
    """Attend with torch's fused kernels; several query heads share one of k and v."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=is_causal, enable_gqa=True)


def _drawn(s: Shape, device: Any, seed: int) -> tuple[Any, tuple[Layer, ...], Any, Any]:
    """Draw embedding, layers, last norm and head, one after another from one generator."""
    draw = partial(torch.randn, device=device, generator=torch.Generator(device).manual_seed(seed))
    # The embedding's elements are of 1 / sqrt(hidden).
    share = _GROWTH / (2 * s.layers * s.hidden) ** 0.5
    queries, keys = s.heads * s.head, s.kv_heads * s.head

    def matrix(rows: int, columns: int = s.hidden, gain: float = 1.0) -> Any:
        """Return a matrix that keeps the variance of what it multiplies, times gain squared."""
        return draw(rows, columns).mul_(gain / columns**0.5).to(s.kind)

    def scales() -> Any:
        """Return a norm's factors, about 1 each and no two the same."""
        return (1 + 0.1 * draw(s.hidden)).to(s.kind)

    def layer() -> Layer:
        qk = matrix(queries + keys, gain=SHARPNESS**0.5)
        return Layer(
            attention_norm=scales(),
            qkv=torch.cat((qk, matrix(keys))),
            out=matrix(s.hidden, queries, share),
            mlp_norm=scales(),
            gate_up=matrix(2 * s.mlp),
            down=matrix(s.hidden, s.mlp, share),
        )

    embedding = matrix(s.vocab)
    return embedding, tuple(layer() for _ in range(s.layers)), scales(), matrix(s.vocab)


def captured(launch: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Return a CUDA graph's replay of a launch, and what that returns: written anew each time."""
    results: list[Any] = []
    graph = perfsuite.capture(lambda: results.append(launch()))
    graph.instantiate()
    return graph.replay, results[-1]
