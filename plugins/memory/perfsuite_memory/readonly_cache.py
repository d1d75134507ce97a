"""A small table that every thread reads: by plain and read-only loads, constant, shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory.grid import resident

SOURCE = Path(__file__).with_name("readonly_cache.cu")
GUIDE = "NVIDIA, CUDA C++ Best Practices Guide, Constant Memory"
IMPLS = ("plain", "readonly", "constant", "shared")
THREADS = 512
# Four times as many as an SM holds at once.
BLOCKS_PER_SM = 16
LANES = 32
SIZE = 4096
LOOKUPS = 6
# Odd, so that the lookups of a key spread over the table.
STEP = 517
# The table's first words again behind its last: 27 KB, which fit L1, but not the few KiB of cache
# that constant memory has of its own.
WORDS = SIZE + (LOOKUPS - 1) * STEP
OPTIONS = tuple(
    f"-D{name}={value}"
    for name, value in {
        "THREADS": THREADS, "LOOKUPS": LOOKUPS, "STEP": STEP, "SIZE": SIZE,
    }.items()
)  # fmt: skip
# As many as the ceiling's copy has, beside which a kernel's beginning and end are nothing.
ODD_N = 2**26 - 5
# Knuth's multiplicative hash, as in readonly_cache.cu.
MULTIPLIER = 2654435761


def _work(*, n: int, lanes: str, impl: str) -> perfsuite.Work:
    # Keys in, sums out; the table stays on the chip.
    del lanes, impl
    return perfsuite.Work(read_bytes=4 * n, write_bytes=4 * n)


def _memory_bytes(*, n: int, lanes: str, impl: str) -> int:
    # Keys, sums, and the reference's three arrays of 8 bytes.
    del lanes, impl
    return (2 * 4 + 3 * 8) * n


@perfsuite.case(
    axes={"n": [ODD_N], "lanes": ["same", "scattered"], "impl": list(IMPLS)},
    smoke={"lanes": ["scattered"], "impl": ["readonly", "constant"]},
    full={"n": [2**20, ODD_N]},
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=_memory_bytes,
    source=GUIDE,
    version=3,
)
def readonly_cache(ctx: Any, *, n: int, lanes: str, impl: str) -> perfsuite.Workload:
    """Add up six words out of a table of 16 KiB for each of n keys, that begins again at its end.

    With ``same`` 32 keys in a row are one, as coefficients and weights are read: constant memory is
    made for that, if the table fits its cache. With ``scattered`` each is its own, which constant
    memory serves one after another. readonly tells the compiler that nobody writes to the table
    (__restrict__), which lets it load ahead of stores; shared has a copy in each block. With
    ``same`` plain and readonly loads of 2^26 keys take 136 us on an H200, 93 % of a copy's rate,
    shared 138. With eight words it is 158 and 141, by a sweep, for then L1 is asked so often that
    it is what the former two wait for. Scattered lanes wait for L1, which looks at four lines in a
    cycle, or for the banks of shared memory. Whole numbers modulo 2**32, compared to the bit.
    """
    kernel = ctx.load_cuda(SOURCE, f"look_up_{impl}", options=OPTIONS)
    blocks = resident(ctx, BLOCKS_PER_SM)

    def wrong(table: Any, keys: Any, sums: Any) -> None:
        # One lookup too few: the loop's bound is off by one.
        sums.copy_(_sums(table, keys, LOOKUPS - 1))

    return perfsuite.Workload(
        fn=lambda table, keys, sums: kernel(blocks, THREADS, table, keys, sums, n),
        make_inputs=lambda rng: (
            _table(ctx.place),
            _keys(rng, n, lanes),
            rng.empty(n, dtype="int32"),
        ),
        reference=lambda table, keys, sums: _sums(table, keys, LOOKUPS),
        wrong=wrong,
        tolerance=0.0,
    )


def _table(place: Any) -> Any:
    import torch

    words = (torch.arange(WORDS, device=place) % SIZE + 1) * MULTIPLIER
    return words.to(torch.int32)


def _keys(rng: Any, n: int, lanes: str) -> Any:
    if lanes == "scattered":
        return rng.randint(0, SIZE, n)
    return rng.randint(0, SIZE, -(-n // LANES)).repeat_interleave(LANES)[:n]


def _sums(table: Any, keys: Any, lookups: int) -> Any:
    import torch

    total = torch.zeros(len(keys), dtype=torch.long, device=keys.device)
    words = table.long()
    for j in range(lookups):
        total += words[(keys + j * STEP) % SIZE]
    return total.to(torch.int32)


CLAIMS = (
    perfsuite.Claim(
        name="readonly_over_constant",
        case="readonly_cache",
        faster={"impl": "readonly"},
        than={"impl": "constant"},
        # Up to 32 addresses a warp; what else a kernel does is not slowed down.
        by=1.5,
        source=f"{GUIDE}: accesses to different addresses by threads within a warp are serialized, "
        "so that the cost scales linearly with their number",
        at={"lanes": ("scattered",)},
        needs=(perfsuite.cuda(),),
    ),
)
