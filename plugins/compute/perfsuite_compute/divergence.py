"""Divergence: threads of one warp that want different paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Claim, Workload, cuda, package

SOURCE = Path(__file__).with_name("divergence.cu")
THREADS, ITEMS, ROUNDS = 256, 8, 1024
N = 2**22
ODD_N = N - 37
# Numerical Recipes, chapter 7.1, and the sequence of C's rand.
SEQUENCES = ((1664525, 1013904223), (1103515245, 12345))
# One item in so many has work where work is rare.
RARE = 32
_MASK = 2**32 - 1
_PATHS = "CUDA C++ Programming Guide, 'SIMT Architecture': a warp that diverges executes each path"


def _is_asked(n: int, data: str, impl: str) -> bool:
    if n == ODD_N:
        return (data, impl) == ("mixed", "compacted")
    return data != "sorted" or impl == "branchy"


def _memory_bytes(n: int, data: str, impl: str) -> int:
    # Kinds, input and output, and what the reference makes of them in 64 bits.
    return n * (1 + 4 + 4 + 4 * 8)


@perfsuite.case(
    axes={
        "n": [N, ODD_N],
        "data": ["mixed", "sorted", "rare"],
        "impl": ["branchy", "predicated", "compacted"],
    },
    smoke={"n": [ODD_N]},
    only=_is_asked,
    full_only=[{"data": ["rare"], "impl": ["predicated"]}],
    needs=(package("torch"), cuda()),
    memory_bytes=_memory_bytes,
    tags=["divergence"],
    source="warp divergence: AI Systems Performance Engineering, chapters 6 and 8",
)
def divergence(ctx: Any, n: int, data: str, impl: str) -> Workload:
    """Take n whole numbers through 1024 rounds each, by one of two rules or by none.

    ``mixed`` has the two rules at random, half and half; ``sorted`` the same with all of one before
    all of the other; ``rare`` has one item in 32 that takes rounds at all. ``branchy`` asks for the
    kind and branches: a warp takes every path that one of its threads wants. ``predicated`` has one
    path whose constants are chosen by kind, and rounds that change nothing for those with no work.
    ``compacted`` has each block sort 2048 items by kind in shared memory before it works. A round
    is exact arithmetic modulo 2**32, so results are compared to the bit; no rate of such operations
    is known, so that no work is stated.
    """
    kernel = ctx.load_cuda(SOURCE, f"take_{impl}", options=cuda_options())
    blocks = -(-n // (THREADS * (ITEMS if impl == "compacted" else 1)))

    def wrong(kinds: Any, x: Any, y: Any) -> None:
        # The last warp of the first rule's is not full, and its items are dropped.
        _reference(kinds, x, y)
        last = (kinds == 1).nonzero()[-1]
        y[last] = x[last]

    return Workload(
        fn=lambda kinds, x, y: kernel(blocks, THREADS, kinds, x, y, n),
        make_inputs=lambda rng: (
            _kinds(rng, n, data),
            rng.randint(-(2**31), 2**31 - 1, n),
            rng.empty(n, dtype="int32"),
        ),
        reference=lambda kinds, x, y: _reference(kinds, x, y.clone()),
        wrong=wrong,
        tolerance=0.0,
    )


def cuda_options() -> tuple[str, ...]:
    """Return the macros of divergence.cu."""
    constants = [
        f"-D{name}_{part}={value}u"
        for name, rule in zip(("FIRST", "SECOND"), SEQUENCES, strict=True)
        for part, value in zip(("MULTIPLIER", "INCREMENT"), rule, strict=True)
    ]
    return (f"-DTHREADS={THREADS}", f"-DITEMS={ITEMS}", f"-DROUNDS={ROUNDS}", *constants)


def _kinds(rng: Any, n: int, data: str) -> Any:
    if data == "rare":
        return (rng.randint(0, RARE, n, dtype="uint8") == 0).byte()
    kinds = rng.randint(1, 3, n, dtype="uint8")
    return kinds.sort().values if data == "sorted" else kinds


def _reference(kinds: Any, x: Any, y: Any) -> Any:
    """Write the closed form of the rounds to y: by squaring, as a rule twice is again a rule."""
    y.copy_(x)
    for kind, rule in enumerate(SEQUENCES, start=1):
        factor, shift = rule
        left, now = ROUNDS, x[kinds == kind].long() & _MASK
        while left:
            if left & 1:
                # A product beyond 63 bits wraps modulo 2**64, which leaves its low 32 bits right.
                now = (now * factor + shift) & _MASK
            factor, shift = factor * factor & _MASK, (factor + 1) * shift & _MASK
            left >>= 1
        y[kinds == kind] = (now - ((now >> 31) << 32)).int()
    return y


CASES: tuple[perfsuite.Case | Claim, ...] = (
    divergence,
    Claim(
        name="predicated_paths",
        case="divergence",
        faster={"impl": "predicated"},
        than={"impl": "branchy"},
        by=1.6,
        at={"n": (N,), "data": ("mixed",)},
        needs=(cuda(),),
        source=f"{_PATHS}, so that two of equal length take twice as long as one; 1.6 is asked for",
    ),
    Claim(
        name="compacted_paths",
        case="divergence",
        faster={"impl": "compacted"},
        than={"impl": "branchy"},
        by=4.0,
        at={"n": (N,), "data": ("rare",)},
        needs=(cuda(),),
        source=f"{_PATHS}; with one item in 32, 1 - (31 / 32)**32 = 64 % of warps have one and "
        "take its path, where a 32nd would do: a ratio of 20, of which sorting and memory take "
        "their part; four is asked for",
    ),
)
