"""The pack's kernels, compiled for Hopper and interpreted on the CPU: no GPU is needed."""

from pathlib import Path

from kernel_codes import codes_of, wrong_in

SHARED_LIMIT = 227 << 10  # bytes of shared memory that one block may have on sm_90
# What a precise sine keeps of a huge angle, and what the bound on registers costs.
SPILLING = {"rotate_recompute", "rotate_hoisted", "occupancy_rare_path_bounded"}
SPILLING |= {"rotate_hoisted_31"}
# 136 outputs a row are stored one by one: 816 bytes of the sums have no register.
SPILLING |= {"grouped_gemm_8_triton"}


def test_kernels_fit_a_block_and_spill_only_where_that_is_the_case_s_subject() -> None:
    codes = codes_of("compute")
    assert {name for name, made in codes.items() if made.spills} == SPILLING
    assert max(made.shared_bytes for made in codes.values()) <= SHARED_LIMIT


def test_what_promises_tensor_cores_uses_them() -> None:
    promised = {name: made for name, made in codes_of("compute").items() if made.expects}
    # The second is for fp8.
    assert {made.expects for made in promised.values()} == {"HGMMA", "QGMMA"}
    assert [name for name, made in promised.items() if not made.count(made.expects)] == []
    names = [f"gemm_triton_{size}" for size in (1024, 2048)]
    names += [f"attention_{kind}_triton" for kind in ("full", "causal")]
    assert all(promised[name].count("UTMALDG") for name in names)
    assert not any(promised[name].count("LDG") for name in names)


def test_softmax_takes_only_the_ends_of_odd_rows_one_by_one() -> None:
    loads = {name: made.count("LDG") for name, made in codes_of("compute").items()}
    # 8192 x 2 or 4 bytes / 256 threads / 16, and one for both ends.
    assert loads["softmax_bf16_8191"] == loads["softmax_bf16_8192"] + 1 == 5
    assert loads["softmax_bf16_8191_triton"] == loads["softmax_bf16_8192_triton"] + 1 == 5
    assert loads["softmax_fp32_8191_triton"] == loads["softmax_fp32_8192_triton"] + 1 == 9


def test_triton_softmax_copies_wide_rows_ahead() -> None:
    made = codes_of("compute")["softmax_bf16_32768_triton"]
    # Two rows before the loop and one in it, 32 values a thread; nothing is loaded otherwise.
    assert made.count("LDGSTS") == 3 * 32 * 2 // 16
    assert not made.count("LDG")


def test_triton_kernels_are_right_on_odd_sizes_in_the_interpreter() -> None:
    script = Path(__file__).with_name("interpret.py")
    # The interpreter truncates to fp8 where a GPU rounds: no code is off by more than one. What it
    # rounds up to a power of two it halves: 2 % of the codes of moe_fp8, 10 % of the result.
    assert wrong_in(script, 137, 2e-3, fp8=1e-2, int8=1e-30, fused=1e-5, moe=0.12) == {}
