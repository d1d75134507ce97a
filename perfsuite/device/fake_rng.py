"""Inputs of the fake device: lists of floats."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

POISON = float("nan")


@dataclass(slots=True)
class FakeRng:
    """Inputs as lists of floats."""

    seed: int
    outputs: list[Any] = field(default_factory=list)

    def randn(self, *shape: int, dtype: str = "float32", place: str = "device") -> list[float]:
        """Standard normal values, flattened."""
        del dtype, place
        source = random.Random(self.seed)  # noqa: S311 - data, not secrets
        return [source.gauss(0, 1) for _ in range(math.prod(shape))]

    def rand(self, *shape: int, dtype: str = "float32", place: str = "device") -> list[float]:
        """Uniform values in [0, 1), flattened."""
        del dtype, place
        source = random.Random(self.seed)  # noqa: S311 - data, not secrets
        return [source.random() for _ in range(math.prod(shape))]

    def randint(self, low: int, high: int, *shape: int, dtype: str = "int32") -> list[int]:
        """Uniform integers in [low, high), flattened."""
        del dtype
        source = random.Random(self.seed)  # noqa: S311 - data, not secrets
        return [source.randrange(low, high) for _ in range(math.prod(shape))]

    def empty(self, *shape: int, dtype: str = "float32", place: str = "device") -> list[float]:
        """An output, to be written in place."""
        del dtype, place
        output = [POISON] * math.prod(shape)
        self.outputs.append(output)
        return output
