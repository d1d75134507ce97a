"""Work whose length is free to choose and whose result is exact: a congruential sequence.

One round is v -> 1664525 v + 1013904223 modulo 2**32 (Numerical Recipes, chapter 7.1). No round can
start before the one before it, and any number of rounds has a closed form to check with.
"""

from typing import Any

from perfsuite.gpu import torch

MULTIPLIER = 1664525
INCREMENT = 1013904223
MASK = 2**32 - 1


def advance(values: Any, rounds: Any) -> Any:
    """Return int32 ``values`` after as many ``rounds`` each (an int, or a tensor that broadcasts).

    By squaring: the round applied twice is again v -> a v + c, with other a and c.
    """
    left = torch.as_tensor(rounds, dtype=torch.int64, device=values.device)
    now = values.long() & MASK
    factor, shift = MULTIPLIER, INCREMENT
    while bool(left.any()):
        # A product beyond 63 bits wraps modulo 2**64, which leaves its low 32 bits right.
        now = torch.where((left & 1).bool(), (now * factor + shift) & MASK, now)
        factor, shift = factor * factor & MASK, (factor + 1) * shift & MASK
        left >>= 1
    return (now - ((now >> 31) << 32)).int()


def inputs(rng: Any, *shape: int) -> tuple[Any, Any]:
    """Return int32 values of any size, and room for as many."""
    return rng.randint(-(2**31), 2**31 - 1, *shape), rng.empty(*shape, dtype="int32")


def draw(generator: Any, *shape: int) -> Any:
    """Return int32 values of any size, where the generator is."""
    where = {"dtype": torch.int32, "device": generator.device, "generator": generator}
    return torch.randint(-(2**31), 2**31 - 1, shape, **where)


def keys(count: int) -> list[int]:
    """Return the first ``count`` members of the sequence from 1: a fixed shuffle, sorted by them.

    The same for every Python and torch, so that two runs deal with the same items in one order.
    """
    value, made = 1, []
    for _ in range(count):
        value = (MULTIPLIER * value + INCREMENT) & MASK
        made.append(value)
    return made
