"""The kernels without a GPU: those that cases load, as machine code for sm_90a, and interpreted."""

from fnmatch import fnmatch
from pathlib import Path

import pytest
from kernel_codes import codes_of
from pack_scripts import lines_of
from perfsuite_memory import (
    atomics,
    coalescing,
    l2_sweep,
    readonly_cache,
    scan_sort_topk,
    spill,
    stream,
)

import perfsuite


def test_blocks_of_scans_and_of_the_largest_k_cover_what_they_are_given() -> None:
    pytest.importorskip("triton")
    from perfsuite_memory import scan_sort_topk_triton as scans
    from perfsuite_memory import topk_triton

    assert scans.WINDOW >= 32 * scans.SCAN_WARPS
    # All maxima of the largest array are ranked at once.
    assert topk_triton.RANK_BLOCK * topk_triton.MAXIMUM_BLOCK >= scan_sort_topk.TOP_N
    assert min(topk_triton.MOST, topk_triton.FEW) >= scan_sort_topk.K


def _code(name: str) -> perfsuite.MachineCode:
    found: perfsuite.MachineCode = codes_of("memory")[name].code
    return found


def test_only_the_kernel_that_is_about_spills_spills() -> None:
    spilling = [name for name, made in codes_of("memory").items() if made.spills]
    assert spilling == ["spill_center_spilled"]


VECTORS = atomics.UNROLL + 1
COUNTS = 4 * VECTORS + 1
FIELD = {"LDG.E.CONSTANT": coalescing.ITEMS, "STG.E": coalescing.ITEMS}

# What each kernel is for, as opcodes (with modifiers) and how often they stand in the code.
SEEN: dict[str, dict[str, int]] = {
    # Sixteen bytes an access.
    **{
        f"stream_{op}": {
            "LDG.E.128*": stream.INPUTS[op] * stream.geometry(op)[1],
            "STG.E.128*": (op not in stream.REDUCTIONS) * stream.geometry(op)[1],
        }
        for op in stream.INPUTS
    },
    **{
        f"stream_{op}_triton": {
            "LDG.E.128*": 4 * stream.INPUTS[op], "STG.E.128*": 4 * (op not in stream.REDUCTIONS)
        }
        for op in stream.INPUTS
    },
    "take_field_1": FIELD,
    "take_field_2": FIELD,
    "take_field_32": FIELD,
    "take_field_8_triton": {"LDG.E.128*": 0},
    "transpose_naive": {"STS*": 0},
    "transpose_shared": {"STS": 4},
    "transpose_padded": {"STS": 4},
    "transpose_swizzled": {"LDG.E.EF.128": 4, "STS.128": 4, "STG.E.EF.128": 4},
    # What begins anywhere is read by words and still written by vectors.
    "transpose_swizzled_odd": {"LDG.E.EF.128": 0, "STS.128": 0, "STG.E.EF.128": 4},
    "vectorized_copy_words": {"LDG.E.CONSTANT": 1, "STG.E": 1},
    "vectorized_copy_pairs": {"LDG.E.64.CONSTANT": 1, "STG.E.64": 1},
    "vectorized_copy_vectors": {"LDG.E.128.CONSTANT": 1, "STG.E.128": 1},
    "vectorized_copy_realigned": {"LDG.E.128.CONSTANT": 1, "SHFL.DOWN": 1, "STG.E.128": 1},
    # One read for each of a lane's words: none was kept from one pass to the next.
    "bank_conflicts_read_plain_1": {"LDS": 32},
    "bank_conflicts_read_plain_32": {"LDS": 32},
    "bank_conflicts_read_padded_32": {"LDS": 32},
    "bank_conflicts_read_swizzled_32": {"LDS": 32},
    "bank_conflicts_read_vectors_4": {"LDS.128": 8},
    "l2_sweep_read_passes": {"LDG.E.128.STRONG.GPU": l2_sweep.UNROLL},
    # The chase is unrolled eight times; two loads come before it.
    "pointer_chase_chase": {"LDG.E": 10},
    "tiled_matmul_matmul_shared": {"FFMA": 32, "BAR.SYNC.DEFER_BLOCKING": 2},
    # 128 products of 8 + 16 floats, six vectors, for each of eight steps, and the first step's six.
    # Copies of three stages: floats of a, which are turned, and vectors of b, or floats of both.
    "tiled_matmul_matmul_registers": {
        "FFMA": 1024, "LDS.128": 54, "LDGSTS.E": 3 * 8, "LDGSTS.E.BYPASS.128": 3 * 2,
    },
    "tiled_matmul_matmul_registers_odd": {"FFMA": 1024, "LDS.128": 54, "LDGSTS.E": 3 * (8 + 8)},
    "async_prefetch_filter_sync": {"LDG.E.128.CONSTANT": 1, "STS.128": 1, "LDS.128": 4},
    **{
        f"async_prefetch_filter_async_{n}": {"LDGSTS.E.BYPASS.128": n, "LDG.E.128.CONSTANT": 0}
        for n in (1, 2, 3, 4)
    },
    # Keys of all vectors that are loaded at once, of one behind them, and of what is no vector.
    "atomics_count_global": {"REDG.E.ADD.STRONG.GPU": COUNTS, "LDG.E.128.CONSTANT": VECTORS},
    "atomics_count_elected": {"REDG.E.ADD.STRONG.GPU": COUNTS},
    # The hardware counts equal lanes by itself where each adds one.
    "atomics_count_shared": {"ATOMS.POPC.INC.32": COUNTS},
    "atomics_count_shared_elected": {"ATOMS.ADD": COUNTS},
    "spill_center_bounded": {"LDG.E.CONSTANT": spill.DEPTH, "STG.E": spill.DEPTH},
    "spill_center_split": {"LDG.E.CONSTANT": spill.DEPTH // 4, "STG.E": spill.DEPTH // 4},
    "reduction_atomic": {"RED*": 1},
    "reduction_tree": {"RED*": 0},
    "reduction_shuffle": {"RED*": 0, "SHFL*": 10, "BAR.SYNC*": 1},
    "gather_triton": {"LDG.E.128*": 4, "STG.E.128*": 4},
    # Four floats an atomic, or one atomic a row.
    "index_link_triton": {"ATOMG.E.EXCH*": 4},
    "index_sum_triton": {"RED*": 0, "ATOM*": 0},
    # A whole tile's and a part of the last one's, where n is a multiple of 16.
    "scan_triton": {"LDG.E.128*": 32 + 4, "STG.E.128*": 32 + 4},
}  # fmt: skip
AT_LEAST = {
    "take_field_1_triton": {"LDG.E.128*": 1},
    "take_field_8_triton": {"LDG.E*": 1},
    "transpose_triton": {"LDG.E.128*": 1, "STG.E.128*": 1},
    "reduction_tree": {"BAR.SYNC*": 2},
    "jagged_triton": {"LDG.E.128*": 4},
    "index_add_triton": {"*F32x4*": 1},
    "index_sum_triton": {"LDG.E.EF.128*": 4, "STG.E.128*": 4},
    "scan_triton": {"ATOMG*": 2},
    "advance": {"BRA*": 2},
}


def _count(name: str, opcode: str) -> int:
    counts = _code(name).opcodes.counts
    return sum(number for found, number in counts.items() if fnmatch(found, opcode))


@pytest.mark.parametrize("name", sorted({*SEEN, *AT_LEAST}))
def test_machine_code_shows_what_a_kernel_is_for(name: str) -> None:
    exactly, at_least = SEEN.get(name, {}), AT_LEAST.get(name, {})
    assert {opcode: _count(name, opcode) for opcode in exactly} == exactly
    assert all(_count(name, opcode) >= least for opcode, least in at_least.items())


def test_lookups_go_where_their_names_say() -> None:
    codes = {impl: _code(f"readonly_cache_look_up_{impl}").opcodes for impl in readonly_cache.IMPLS}
    # Two accesses of 4 bytes a key, in each of the copies that the compiler makes of the loop.
    assert codes["plain"].counts.get("LDG.E.CONSTANT", 0) == 0
    assert codes["readonly"].counts.get("LDG.E", 0) == 0
    assert codes["constant"].of("LDC") > codes["constant"].of("LDG")
    assert codes["shared"].of("LDS") >= readonly_cache.LOOKUPS


def test_rounds_stay_a_loop() -> None:
    # An unrolled loop would have a multiplication a round.
    assert _code("advance").opcodes.of("IMAD") < 10


def test_triton_kernels_are_right_on_sizes_with_tails() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    lines_of(Path(__file__).with_name("interpret.py"), TRITON_INTERPRET="1")
