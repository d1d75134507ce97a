"""Tile sizes of the pack's kernels, fixed by chip so that two runs time the same kernel."""

from typing import NamedTuple

GROUP = 8  # rows of tiles that walk the columns together, so that their B tiles stay in L2
DATACENTER = 10  # compute capability of the chips with tensor memory
_HOPPER = 9


class Tiles(NamedTuple):
    """Rows, columns and steps of a tile in elements; slots; warps; columns stored at once."""

    m: int
    n: int
    k: int
    stages: int
    warps: int
    width: int


# 4 slots of 48 KiB, of the 227 KiB that a block may have; 99 KiB on the chips of workstations.
DENSE = Tiles(128, 256, 64, 4, 8, 256)
DENSE_SMALL = Tiles(128, 128, 64, 3, 8, 128)
# Four warps read the 128 rows of tensor memory, 32 each. A block of the pair holds half of each
# operand's tile, so that 6 slots take what 4 of a single block do.
ONE_CTA = Tiles(128, 256, 64, 4, 4, 64)
TWO_CTAS = Tiles(256, 256, 64, 6, 4, 64)
# By the bits of an element: 128 bytes of each row a step. Sums of 128 x 256 fit into tensor memory;
# without it, in registers, they spill.
SCALED = {4: Tiles(128, 256, 256, 4, 4, 256), 8: Tiles(128, 256, 128, 4, 4, 256)}
SCALED_SMALL = Tiles(128, 128, 128, 3, 8, 128)


def dense_tiles(major: int) -> Tiles:
    """Return the tiles of the bf16 kernel in Triton for a compute capability."""
    return DENSE if major in {_HOPPER, DATACENTER} else DENSE_SMALL


def scaled_tiles(major: int, bits: int) -> Tiles:
    """Return the tiles of the block-scaled kernel for a compute capability."""
    return SCALED[bits] if major == DATACENTER else SCALED_SMALL
