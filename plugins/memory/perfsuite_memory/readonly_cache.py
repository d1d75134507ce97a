"""A small table that every thread reads: by plain and read-only loads, constant, shared memory."""

from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import load, sm_count, torch

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
MACROS = {"THREADS": THREADS, "LOOKUPS": LOOKUPS, "STEP": STEP, "SIZE": SIZE}
# As many as the ceiling's copy has, beside which a kernel's beginning and end are nothing.
ODD_N = 2**26 - 5
# Knuth's multiplicative hash, as in readonly_cache.cu.
MULTIPLIER = 2654435761
_AS_PLAIN = perfsuite.Beats(
    "plain",
    0.97,
    "measured: 1.00 to 1.01 on an H100 and an H200. Since sm_70 both go through the same L1",
    name="no_slower",
)


@perfsuite.operator(
    smoke={"n": ODD_N, "lanes": "scattered", "impl": ["readonly", "constant"]},
    nightly={"n": ODD_N, "lanes": ["same", "scattered"]},
    full={"n": 2**20, "lanes": ["same", "scattered"]},
    needs=[perfsuite.cuda()],
    # Keys in, sums out; the table stays on the chip.
    work=lambda n, **_: perfsuite.Work(read_bytes=4 * n, write_bytes=4 * n),
    tolerance=0.0,
    source=GUIDE,
    version=3,
)
def readonly_cache(rng: Any, *, n: int, lanes: str) -> Any:
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
    alike = LANES if lanes == "same" else 1
    keys = rng.randint(0, SIZE, -(-n // alike)).repeat_interleave(alike)[:n]
    words = (torch.arange(WORDS, device=keys.device) % SIZE + 1) * MULTIPLIER
    return words.to(torch.int32), keys, rng.empty(n, dtype="int32")


@readonly_cache.reference
def _sums(table: Any, keys: Any, sums: Any, *, lookups: int = LOOKUPS) -> Any:
    total = torch.zeros(len(keys), dtype=torch.long, device=keys.device)
    words = table.long()
    for j in range(lookups):
        total += words[(keys + j * STEP) % SIZE]
    return total.to(torch.int32)


# One lookup too few: the loop's bound is off by one.
readonly_cache.wrong(partial(_sums, lookups=LOOKUPS - 1))


def _look_up(ctx: Any, *, n: int, impl: str) -> Any:
    kernel = load(ctx, __file__, f"look_up_{impl}", **MACROS)
    blocks = BLOCKS_PER_SM * sm_count()
    return lambda table, keys, sums: kernel(blocks, THREADS, table, keys, sums, n)


for name in IMPLS:
    readonly_cache.impl(_look_up, name=name, beats=_AS_PLAIN if name == "readonly" else ())
