"""The matrix cases beyond gemm: their kernels compiled and interpreted, their work counted."""

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kernel_codes import codes_of, kernels_of
from perfsuite_compute import fp8_grouped, grouped_gemm


def test_gemv_reads_16_bytes_at_a_time_many_before_the_first_use(tmp_path: Path) -> None:
    code = codes_of("compute")["gemv_rows_4096"].code
    loads = {name: n for name, n in code.opcodes.counts.items() if name.startswith("LDG")}
    assert all(".128" in name for name in loads)
    assert sum(loads.values()) == 2 * 8  # x and w in the unrolled loop, which leaves no rest
    assert code.registers <= 64  # four blocks fit a multiprocessor
    # Before the first product: what a thread has on its way at once.
    from perfsuite_codegen.compiling import compile_kernel

    cubin = tmp_path / "gemv.cubin"
    cubin.write_bytes(compile_kernel(kernels_of("compute")["gemv_rows_4096"], "sm_90a").cubin)
    triton = Path(str(importlib.util.find_spec("triton").origin))  # type: ignore[union-attr]
    command = [str(triton.with_name("backends") / "nvidia/bin/cuobjdump"), "-sass", str(cubin)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.partition("FFMA")[0].count("LDG.") >= 8


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("n", [28672, 28671])
def test_quantised_row_is_read_by_16_bytes_and_converts_nothing(kind: str, n: int) -> None:
    made = codes_of("compute")[f"mixed_gemv_{kind}_{n}"]
    # As many on their way, taken before the loop and in it.
    chunks, outputs = 2 * {"int8": 2, "int4": 3}[kind], 4
    assert made.code.opcodes.counts["LDG.E.EF.128"] == chunks * outputs
    assert not made.count("I2F", "I2FP", *(["FMUL"] if kind == "int4" else []))
    # A word of eight nibbles is four pairs, of one instruction each, and three shifts.
    pairs = chunks // 2 * outputs * 4 * 4
    assert pairs <= made.count("LOP3") < 1.2 * pairs
    assert made.count("HMMA") == pairs // 4 + chunks // 2 * 8


@pytest.mark.parametrize(("kind", "instructions"), [("int8", 4), ("int4", 8)])
@pytest.mark.parametrize("rows", [16, 64, 256])
def test_quantised_weights_stay_in_registers(kind: str, instructions: int, rows: int) -> None:
    made = codes_of("compute")[f"mixed_{kind}_{rows}_gluon"]
    assert made.code.opcodes.counts[f"HGMMA.64x{rows}x16.F32.BF16"] == 2 * instructions
    assert not made.count("I2F", "I2FP", "STS", "STSM", "SHFL")


def test_quantising_rounds_its_product_before_it_rounds_to_a_code() -> None:
    for name in ("quantise_int8_7168_triton", "quantise_int8_16384_triton"):
        made = codes_of("compute")[name]
        # Fused, the products would be gone.
        assert made.count("FMUL") >= 32
        assert made.count("FADD") >= 32


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
    # Code number p + 2 e (4 bits: p + 4 e) of word 4 t + q is k = (q, p, t, e) = (3, 1, 2, 1).
    k, at = {"int8": (16 * 3 + 8 + 5, 44 + 3), "int4": (32 * 3 + 8 + 5, 44 + 5 // 2)}[kind]
    one = mixed_gemm.quantise(torch.eye(128)[k : k + 1], kind)[0]
    assert (one != one[0, 0]).nonzero().tolist() == [[0, at]]
    assert int(one[0, at]) == {"int8": 127, "int4": 0xF8}[kind]


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


def test_sizes_of_experts_add_up_and_one_is_empty() -> None:
    for experts in (8, 64, 256):
        sizes = grouped_gemm.sizes_of(16384, experts, "zipf")
        assert len(sizes) == experts
        assert sum(sizes) == sum(grouped_gemm.sizes_of(16384, experts, "equal")) == 16384
        assert min(sizes) == 0
        assert max(sizes) > 3 * 16384 // experts


def test_operands_of_all_formats_stand_for_the_same_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    axes: Any = {"layout": "masked", "experts": 2, "rows": 20, "n": 200, "k": 512}
    found = {}
    for impl in ("triton", "loop", "rowwise", "bf16"):
        built = fp8_grouped.fp8_grouped_gemm.build(open_device("cpu").context(1), impl=impl, **axes)
        found[impl] = built.reference(*built.make_inputs(open_device("cpu").rng(1)))
    for ours, apart, *others in zip(*found.values(), strict=True):
        assert torch.equal(ours, apart)
        # e4m3 keeps 4 bits of a value: with a scale a row, more of the small blocks are lost.
        errors = [float((other - ours).norm() / ours.norm()) for other in others]
        assert 5e-2 > errors[0] > errors[1] > 0
        assert errors[1] < 3e-3

    def multiplied(a: Any, b: Any, a_scale: Any, b_scale: Any, **_: Any) -> Any:
        return a.float() * a_scale[..., None] @ (b.float() * b_scale[:, None])

    monkeypatch.setattr("torch._scaled_grouped_mm", multiplied)
    built = fp8_grouped.fp8_grouped_gemm.build(
        open_device("cpu").context(1), impl="rowwise", **axes
    )
    given = built.make_inputs(open_device("cpu").rng(1))
    for result, expected in zip(built.fn(*given), found["rowwise"], strict=True):
        assert torch.allclose(result.double(), expected, rtol=1e-3, atol=1e-3)


def test_rooms_of_experts_are_whole_tiles_that_hold_their_rows() -> None:
    for layout, total in (("contiguous", 4 * 8192 + 256), ("masked", 6 * 128)):
        experts, rows = (4, 8192) if layout == "contiguous" else (6, 20)
        sizes = fp8_grouped.sizes_of(experts, rows)
        begins = fp8_grouped.begins_of(layout, experts, rows)
        ends = [begin + size for begin, size in zip(begins, sizes, strict=False)]
        assert all(end <= after for end, after in zip(ends, begins[1:], strict=True))
        assert not any(begin % 128 for begin in begins)
        assert begins[-1] == total
        assert len({*sizes}) > 2
