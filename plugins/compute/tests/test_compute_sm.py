"""The cases about what a multiprocessor does: compiled for Hopper, and played on the CPU."""

import pytest
from kernel_codes import codes_of
from perfsuite_compute import divergence, gemm_ladder, ilp_unroll
from perfsuite_compute.redundancy import EACH

import perfsuite

Codes = dict[str, perfsuite.MachineCode]


@pytest.fixture(scope="module")
def codes() -> Codes:
    """Return the machine code of each kernel for sm_90."""
    return {name: made.code for name, made in codes_of("compute").items()}


def _facts(codes: Codes, name: str) -> dict[str, float]:
    return perfsuite.facts_of(codes[name])


def test_chains_and_unrolled_steps_are_in_the_loop(codes: Codes) -> None:
    for chains, unroll in ((1, 1), (1, 8), (2, 8), (4, 8), (8, 1), (8, 8)):
        found = _facts(codes, f"fma_chains_{chains}_{unroll}")
        assert found["fma_ops"] == chains * unroll


def test_rare_path_takes_registers_and_bounds_give_them_back(codes: Codes) -> None:
    registers = {name: codes[name].registers for name in codes if name.startswith("occupancy")}
    assert registers["occupancy_block_256"] <= 32
    # Two blocks of 256 threads an SM of 65,536 registers, against eight.
    assert 65536 // 3 < registers["occupancy_rare_path"] * 256 <= 65536 // 2
    assert registers["occupancy_rare_path_bounded"] == 32
    assert codes["occupancy_wide_1"].opcodes.has("LDG.128")


def test_branches_have_a_loop_each_and_predication_one(codes: Codes) -> None:
    rounds = {impl: codes[f"take_{impl}"].opcodes.of("IMAD") for impl in ("branchy", "predicated")}
    assert 16 <= rounds["branchy"] < 32
    assert 8 <= rounds["predicated"] < 16
    assert codes["take_compacted"].opcodes.of("VOTE", "VOTEU") >= 2 * divergence.ITEMS


def test_fast_angles_are_special_functions_and_hoisted_ones_serve_more_heads(codes: Codes) -> None:
    assert _facts(codes, "rotate_fast")["special_function_ops"] == 6
    # What a precise sine of a huge angle keeps in local memory, which no position here reaches.
    assert _facts(codes, "rotate_recompute")["spill_bytes"] == 80
    assert _facts(codes, "rotate_hoisted")["global_stores"] == EACH
    instructions = {name: codes[f"rotate_{name}"].opcodes.total for name in ("recompute", "fast")}
    assert instructions["recompute"] > 4 * instructions["fast"]


def test_ladder_climbs_from_loads_to_tensor_cores(codes: Codes) -> None:
    found = {impl: codes[rung.function] for impl, rung in gemm_ladder.RUNGS.items()}
    has_tensor_cores = {impl: found[impl].opcodes.has("HMMA.16816.F32.BF16") for impl in found}
    assert {impl for impl, has in has_tensor_cores.items() if has} == {"wmma", "mma_sync"}
    assert found["wgmma"].opcodes.of("HGMMA") == 4  # 16 of a slot's 64 each
    assert found["wgmma"].opcodes.of("UTMALDG") == 1 + 4  # a slot's boxes of a and b
    assert found["wgmma"].opcodes.has("USETMAXREG")
    assert found["register"].opcodes.of("FFMA") == 64 * 16
    assert found["mma_sync"].opcodes.of("LDGSTS") == 16
    assert found["mma_sync"].opcodes.has("LDSM.16.MT88.4")  # b, turned on its way to registers


def test_rungs_cover_a_ragged_matrix_and_fit_an_sm() -> None:
    for rung in gemm_ladder.RUNGS.values():
        grid = rung.grid(130, 64)
        tiles = (-(-64 // (rung.columns or rung.tile)), -(-130 // rung.tile))
        assert grid == ((tiles[0] * tiles[1],) if rung.shared_bytes else tiles)
        blocks = 1 if rung.boxes else 2
        assert blocks * (rung.shared_bytes + 1024) <= 228 << 10


def test_rounding_of_a_chain_stays_within_its_tolerance() -> None:
    torch = pytest.importorskip("torch")
    now = start = torch.linspace(-4, 4, 999)
    for _ in range(ilp_unroll.STEPS):
        now = now * ilp_unroll.SCALE + ilp_unroll.SHIFT
    wanted = ilp_unroll.reference(start)
    assert ((now - wanted).norm() / wanted.norm()).item() < ilp_unroll.TOLERANCE
