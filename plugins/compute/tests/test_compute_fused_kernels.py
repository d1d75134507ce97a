"""The fused cases' kernels, compiled for Hopper and interpreted on the CPU: no GPU is needed."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of
from perfsuite_compute import kernels_decode, kernels_fused, perf_kernels, pointwise_fusion

HERE = Path(__file__).parent
SHARED_LIMIT = 227 << 10  # bytes of shared memory that one block may have on sm_90
KERNELS = {kernel.name: kernel for kernel in (*kernels_fused.kernels(), *kernels_decode.kernels())}


@cache
def _compiled() -> dict[str, dict[str, Any]]:
    pytest.importorskip("triton")
    return {row["name"]: row for row in lines_of(HERE / "fused_sm90.py")}


def test_each_kernel_compiles_for_hopper_without_spilling() -> None:
    rows = _compiled()
    assert set(rows) == set(KERNELS)
    assert {name: row["stack"] for name, row in rows.items() if row["stack"]} == {}
    assert max(row["shared"] for row in rows.values()) <= SHARED_LIMIT


def test_kernels_are_handed_over_with_the_pack_s() -> None:
    names = {kernel.name for kernel in perf_kernels()}
    assert set(KERNELS) <= names


def test_rows_at_multiples_of_16_bytes_are_read_by_16_bytes() -> None:
    rows = _compiled()
    assert "LDG.E.128" in rows["norm_rms_4096"]["opcodes"]
    assert "LDG.E.128" in rows["norm_rms_4095"]["opcodes"]
    assert "STG.E.128" in rows["norm_rms_4095"]["opcodes"]


def test_kernels_are_right_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    rows = lines_of(HERE / "fused_interpret.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    assert len(rows) > 5
    assert max(row["error"] for row in rows) < 1e-5


@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("interval_attention", "UTMALDG"),
        ("softcap_attention", "UTMALDG"),
        ("decode_4", "UTMALDG"),
        ("mla_decode", "UTMALDG"),
        ("interval_attention", "HGMMA"),
        ("softcap_attention", "HGMMA"),
        ("decode_4", "HMMA"),
        ("mla_decode", "HGMMA"),
        ("mla_decode_gluon", "HGMMA"),
        ("mla_decode_gluon", "UTMALDG"),
        ("ssm_state", "HGMMA"),
        ("ssm_scan", "HGMMA"),
        ("ssm_scan", "UTMALDG"),
        ("ssm_scan", "UTMASTG"),
        ("norm_rms_backward", "LDGSTS"),
    ],
)
def test_kernels_use_tensor_cores_and_copies_that_run_ahead(name: str, opcode: str) -> None:
    assert [each for each in _compiled()[name]["opcodes"] if each.split(".")[0] == opcode]


@pytest.mark.parametrize("name", ["pointwise_16", "rope", "swiglu", "cross_entropy_65536"])
def test_streams_move_16_bytes_an_access(name: str) -> None:
    opcodes = _compiled()[name]["opcodes"]
    assert "LDG.E.128" in opcodes
    assert "STG.E.128" in opcodes


def test_every_kernel_is_handed_over_as_it_is_launched() -> None:
    pytest.importorskip("triton")
    handed = {(kernel.module, kernel.function) for kernel in KERNELS.values()}
    modules = {name: importlib.import_module(name) for name, _ in handed}
    written = {
        (name, each)
        for name, module in modules.items()
        for each in vars(module)
        if each.endswith("_kernel")
    }
    assert handed == written
    for name, warps in (("norm_rms_4096", "warps_for"), ("rope", "ROPE_WARPS")):
        found = getattr(modules[KERNELS[name].module], warps)
        assert KERNELS[name].num_warps == (found if isinstance(found, int) else found(4096))


@pytest.mark.parametrize(
    ("name", "launched"),
    [
        ("pointwise_4", {"BLOCK": "BLOCK", "num_warps": "WARPS"}),
        ("swiglu", {"BLOCK": "SWIGLU_BLOCK", "num_warps": "SWIGLU_WARPS"}),
        ("cross_entropy_65536", {"BLOCK": "BLOCK", "num_warps": "WARPS"}),
        ("interval_attention", {"BLOCK_M": "BLOCK_M", "num_stages": "STAGES"}),
        ("interval_attention", {"BLOCK_N": "BLOCK_N", "num_warps": "WARPS"}),
        ("decode_4", {"BLOCK_N": "BLOCK_N", "num_stages": "STAGES", "num_warps": "WARPS"}),
        ("mla_decode", {"ROWS": "MLA_HEADS", "BLOCK_N": "MLA_BLOCK_N"}),
        ("mla_decode", {"num_stages": "MLA_STAGES", "num_warps": "MLA_WARPS"}),
        ("mla_decode_gluon", {"num_warps": "WARPS"}),
        ("ssm_scan", {"CHUNK": "CHUNK", "EACH": "SCAN_EACH"}),
        ("ssm_scan", {"num_stages": "STAGES", "num_warps": "WARPS"}),
        ("ssm_state", {"CHUNK": "CHUNK", "EACH": "STATE_EACH"}),
        ("ssm_state", {"num_stages": "STATE_STAGES", "num_warps": "WARPS"}),
        ("norm_column_sum", {"BLOCK_ROWS": "SUM_ROWS", "BLOCK_COLS": "SUM_COLS"}),
    ],
)
def test_configuration_is_the_one_that_is_launched(name: str, launched: dict[str, str]) -> None:
    pytest.importorskip("triton")
    kernel = KERNELS[name]
    module = importlib.import_module(kernel.module)
    for field, constant in launched.items():
        given = kernel.constants[field] if field.isupper() else getattr(kernel, field)
        assert given == getattr(module, constant), field


def test_latent_tiles_in_gluon_are_those_that_are_launched() -> None:
    pytest.importorskip("triton")
    from perfsuite_compute import gqa_mla_gluon as m

    assert [repr(each) for each in m.layouts()] == [kernels_decode.TILE_LAYOUT] * 2
    shapes = {
        "q_desc": (m.ROWS, m.LATENT),
        "q_rope_desc": (m.ROWS, m.ROPE),
        "latent_desc": (m.BLOCK_N, m.LATENT),
        "rope_desc": (m.BLOCK_N, m.ROPE),
    }
    signature = KERNELS["mla_decode_gluon"].signature
    for name, (rows, width) in shapes.items():
        assert signature[name].startswith(f"tensordesc<bf16[{rows}, {width}],")


def test_chain_has_the_constants_of_its_case() -> None:
    constants = KERNELS["pointwise_4"].constants
    given = (pointwise_fusion.SCALE, pointwise_fusion.SHIFT, pointwise_fusion.LIMIT)
    assert (constants["SCALE"], constants["SHIFT"], constants["LIMIT"]) == given
