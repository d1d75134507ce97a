"""Divergence: threads of one warp that want different paths."""

from typing import Any

from perfsuite import Beats, cuda, operator
from perfsuite.gpu import load, torch

THREADS, ITEMS, ROUNDS = 256, 8, 1024
# Numerical Recipes, chapter 7.1, and the sequence of C's rand.
SEQUENCES = ((1664525, 1013904223), (1103515245, 12345))
_PATHS = "CUDA C++ Programming Guide, 'SIMT Architecture': a warp that diverges executes each path"


@operator(
    smoke={"n": 2**22 - 37, "data": "mixed", "impl": "compacted"},
    nightly=[
        {"n": 2**22, "data": "mixed"},
        {"n": 2**22, "data": "rare", "impl": ["branchy", "compacted"]},
        {"n": 2**22, "data": "sorted", "impl": "branchy"},
    ],
    full={"n": 2**22, "data": "rare", "impl": "predicated"},
    needs=[cuda()],
    flops=None,  # no rate of such operations is known
    tags=["divergence"],
    source="warp divergence: AI Systems Performance Engineering, chapters 6 and 8",
)
def divergence(rng: Any, *, n: int, data: str) -> tuple[Any, ...]:
    """Take n whole numbers through 1024 rounds each, by one of two rules or by none.

    ``mixed`` has the two rules at random, half and half; ``sorted`` the same with all of one before
    all of the other; ``rare`` has one item in 32 that takes rounds at all. ``branchy`` asks for the
    kind and branches: a warp takes every path that one of its threads wants. ``predicated`` has one
    path whose constants are chosen by kind, and rounds that change nothing for those with no work.
    ``compacted`` has each block sort 2048 items by kind in shared memory before it works. A round
    is exact arithmetic modulo 2**32, so results are compared to the bit; no rate of such operations
    is known, so that no work is stated.
    """
    if data == "rare":  # one item in 32 has work
        kinds = (rng.randint(0, 32, n, dtype="uint8") == 0).byte()
    else:
        kinds = rng.randint(1, 3, n, dtype="uint8")
    if data == "sorted":
        kinds = kinds.sort().values
    return kinds, rng.randint(-(2**31), 2**31 - 1, n), rng.empty(n, dtype="int32")


@divergence.reference
def _reference(kinds: Any, x: Any, y: Any) -> Any:
    """Return the closed form of r rounds: a**r x + c (a**r - 1) / (a - 1) modulo 2**32."""
    result = x
    for kind, (factor, shift) in enumerate(SEQUENCES, start=1):
        power = factor**ROUNDS
        offset = shift * (power - 1) // (factor - 1)
        now = (x.long() * (power % 2**32) + offset % 2**32) % 2**32
        result = torch.where(kinds == kind, (now - ((now >> 31) << 32)).int(), result)
    return result


@divergence.wrong
def _drops_items(kinds: Any, x: Any, y: Any) -> Any:
    """Leave the last item of the first rule, whose last warp is not full, as it came."""
    result, last = _reference(kinds, x, y), (kinds == 1).nonzero()[-1]
    result[last] = x[last]
    return result


def _launch(ctx: Any, *, n: int, impl: str) -> Any:
    macros: dict[str, object] = {"THREADS": THREADS, "ITEMS": ITEMS, "ROUNDS": ROUNDS}
    for which, rule in zip(("FIRST", "SECOND"), SEQUENCES, strict=True):
        macros |= {f"{which}_MULTIPLIER": f"{rule[0]}u", f"{which}_INCREMENT": f"{rule[1]}u"}
    kernel = load(ctx, __file__, f"take_{impl}", **macros)
    blocks = -(-n // (THREADS * (ITEMS if impl == "compacted" else 1)))
    return lambda kinds, x, y: kernel(blocks, THREADS, kinds, x, y, n)


divergence.impl(_launch, name="branchy")
divergence.impl(
    _launch,
    name="predicated",
    beats=Beats(
        "branchy", 1.6, f"{_PATHS}: two of a length take twice the time", {"data": "mixed"}
    ),
)
divergence.impl(
    _launch,
    name="compacted",
    beats=Beats(
        "branchy",
        4.0,
        f"{_PATHS}; with one item in 32, 1 - (31 / 32)**32 = 64 % of warps have one and take its "
        "path, where a 32nd would do: a ratio of 20, of which sorting and memory take their part",
        {"data": "rare"},
    ),
)
