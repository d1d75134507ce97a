"""The matrix cases beyond gemm: their kernels compiled and interpreted, their work counted."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of
from perfsuite_compute import grouped_gemm, kernels_matrices

import perfsuite
from perfsuite.packs.load import load_pack

HERE = Path(__file__).parent
SHARED_LIMIT = 227 << 10  # bytes of shared memory that one block may have on sm_90
CASES = load_pack("compute", "module:perfsuite_compute@").cases


def _lines(script: str, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    pytest.importorskip("triton")
    return lines_of(HERE / script, *arguments, **environment)


@cache
def _compiled() -> dict[str, dict[str, Any]]:
    pytest.importorskip("cuda.core")
    return {row["name"]: row for row in _lines("compile_matrices.py")}


def _opcodes(name: str) -> Counter[str]:
    """Return how often each opcode occurs, without modifiers."""
    counts: Counter[str] = Counter()
    for opcode, count in _compiled()[name]["opcodes"].items():
        counts[opcode.partition(".")[0]] += count
    return counts


def test_every_matrix_kernel_compiles_for_hopper_without_spilling() -> None:
    rows = _compiled()
    assert rows.keys() == {kernel.name for kernel in kernels_matrices.kernels()}
    assert [name for name, row in rows.items() if row["spilled"]] == []
    assert [name for name in rows if _opcodes(name)["LDL"] + _opcodes(name)["STL"]] == []
    assert max(row["shared"] for row in rows.values()) <= SHARED_LIMIT


def test_matrix_kernels_that_promise_tensor_cores_use_them() -> None:
    promised = [each.name for each in kernels_matrices.kernels() if each.expects]
    assert promised
    assert [name for name in promised if not _opcodes(name)["HGMMA"]] == []


def test_gemv_reads_16_bytes_at_a_time_many_before_the_first_use() -> None:
    row = _compiled()["gemv_rows_4096"]
    loads = {name: count for name, count in row["opcodes"].items() if name.startswith("LDG")}
    assert all(".128" in name for name in loads)
    assert sum(loads.values()) == 2 * 8  # x and w in the unrolled loop, which leaves no rest
    assert row["loads_ahead"] >= 8
    assert row["registers"] <= 64  # four blocks fit a multiprocessor


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("n", [28672, 28671])
def test_quantised_row_is_read_by_16_bytes_and_converts_nothing(kind: str, n: int) -> None:
    opcodes = _opcodes(f"mixed_gemv_{kind}_{n}")
    # As many on their way, taken before the loop and in it.
    chunks, outputs = 2 * {"int8": 2, "int4": 3}[kind], 4
    loads = _compiled()[f"mixed_gemv_{kind}_{n}"]["opcodes"]["LDG.E.EF.128"]
    assert loads == chunks * outputs
    assert not opcodes["I2F"] + opcodes["I2FP"] + opcodes["FMUL"] * (kind == "int4")
    # A word of eight nibbles is four pairs, of one instruction each, and three shifts.
    pairs = chunks // 2 * outputs * 4 * 4
    assert pairs <= opcodes["LOP3"] < 1.2 * pairs
    assert opcodes["HMMA"] == pairs // 4 + chunks // 2 * 8


def test_triton_matrix_kernels_are_right_on_odd_sizes_in_the_interpreter() -> None:
    rows = _lines("interpret_matrices.py", TRITON_INTERPRET="1")
    assert len(rows) == 49
    errors = {row["name"]: row["error"] for row in rows}
    # The interpreter truncates to fp8 where a GPU rounds: no code is off by more than one.
    limits = {"quantised fp8": 1e-2, "quantised int8": 1e-30}
    limits = {name: limits.get(name[: name.find(" ", 10)], 2e-3) for name in errors}
    assert {name: error for name, error in errors.items() if not error < limits[name]} == {}


@pytest.mark.parametrize("to", ["fp8", "int8"])
def test_quantised_codes_are_exact_on_the_cpu_and_another_row_s_scale_is_refused(to: str) -> None:
    assert _check("quantize_cast", to=to, rows=600, cols=1001, impl="eager") == 0.0


def test_quantising_rounds_its_product_before_it_rounds_to_a_code() -> None:
    for name in ("quantise_int8_7168_triton", "quantise_int8_16384_triton"):
        opcodes = _opcodes(name)
        # Fused, the products would be gone.
        assert opcodes["FMUL"] >= 32
        assert opcodes["FADD"] >= 32


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_weights_are_near_the_weights(kind: str) -> None:
    import torch
    from perfsuite_compute import mixed_gemm

    w = torch.randn(8, 512, generator=torch.Generator().manual_seed(1))
    codes, scale = mixed_gemm.quantise(w, kind)
    back = mixed_gemm.dequantise(codes, scale, kind)
    assert codes.nbytes == w.numel() // (1 if kind == "int8" else 2)
    # Half a step of a largest value of about 3.
    assert (back - w.double()).abs().max() <= 0.51 * float(scale.max())


@pytest.mark.parametrize(
    ("programs", "whole", "peers"),
    # As many multiprocessors as an H200, as an H100 on PCIe and as a B200 have.
    [(132, 132, 12), (114, 114, 3), (148, 143, 1)],
)
def test_only_the_tiles_that_fill_no_wave_are_split(programs: int, whole: int, peers: int) -> None:
    pytest.importorskip("triton")
    from perfsuite_compute.stream_k_triton import shares_of

    odd = shares_of(1601, 1408, 8192, programs=programs, is_streamed=True)
    assert odd == (whole, peers)
    assert shares_of(1601, 1408, 8192, programs=programs, is_streamed=False) == (143, 1)
    assert shares_of(1536, 1408, 8192, programs=132, is_streamed=True) == (132, 1)


def test_launched_tiles_are_those_handed_over() -> None:
    pytest.importorskip("triton")
    from perfsuite_compute import (
        grouped_gemm_triton,
        skinny_triton,
        stream_k_triton,
    )

    for (rows, kind), tiles in kernels_matrices.SKINNY_TILES.items():
        assert skinny_triton.tiles_for(rows, kind) == tiles
    for module, handed in (
        (stream_k_triton, kernels_matrices.STREAM_K),
        (grouped_gemm_triton, kernels_matrices.GROUPED),
    ):
        tile = module.BLOCK_M, module.BLOCK_N, module.BLOCK_K
        assert (*tile, module.STAGES, module.WARPS) == handed
    how = stream_k_triton.GROUP, stream_k_triton.SLICE, stream_k_triton.AT_ONCE
    assert how == kernels_matrices.STREAM_K_HOW
    assert skinny_triton.FEW == kernels_matrices.SKINNY_FEW


def _check(name: str, **axes: Any) -> float | None:
    """Check a variant on the CPU; its mistake is refused there, too."""
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    device = open_device("cpu")
    workload = CASES[name].build(device.context(3), **axes)
    assert isinstance(workload, perfsuite.Workload)
    return check(device, workload, seed=3).known_error


@pytest.mark.parametrize("impl", ["loop", "padded", "torch"])
@pytest.mark.parametrize("skew", ["equal", "zipf"])
def test_grouped_variant_is_right_on_the_cpu_and_its_mistake_refused(skew: str, impl: str) -> None:
    assert _check("grouped_gemm", rows=256, experts=8, k=256, skew=skew, impl=impl) is not None


def test_sizes_of_experts_add_up_and_one_is_empty() -> None:
    for experts in (8, 64, 256):
        sizes = grouped_gemm.sizes_of(16384, experts, "zipf")
        assert len(sizes) == experts
        assert sum(sizes) == sum(grouped_gemm.sizes_of(16384, experts, "equal")) == 16384
        assert min(sizes) == 0
        assert max(sizes) > 3 * 16384 // experts
