"""The sizes of the models, and what a step of each must compute and move."""

from __future__ import annotations

from dataclasses import dataclass


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
    dtype: str = "bfloat16"
    positions: int = 32768
    theta: float = 500_000.0
    epsilon: float = 1e-5

    @property
    def item_bytes(self) -> int:
        """Bytes of one weight, and of one element of the cache."""
        return {"bfloat16": 2, "float32": 4}[self.dtype]

    @property
    def rate_dtype(self) -> str:
        """The dtype's name among the rates of a GPU."""
        return {"bfloat16": "bf16", "float32": "fp32"}[self.dtype]

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
    def kv_elements(self) -> int:
        """Elements of keys and values that one token leaves in the cache, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head


# tiny is for CPUs. The others are those of the config.json published with Llama-3.2-1B and
# Llama-3.1-8B.
SHAPES = {
    "tiny": Shape(4, 256, 8, 2, 32, 768, 1024, dtype="float32", positions=4096),
    "1b": Shape(16, 2048, 32, 8, 64, 8192, 128256),
    "8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),
}
