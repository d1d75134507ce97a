"""What XLA makes of JAX programs, with no GPU."""

import os

import pytest
from perfsuite_codegen import hlo

from perfsuite import WrongResultError

COMPILED = """HloModule jit_f, is_scheduled=true

%added (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p.1: f32[8,4]) -> f32[8] {
  %p.1 = f32[8,4]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %e.2 = f32[8,4]{1,0} exponential(%p.1)
  ROOT %r = f32[8]{0} reduce(%e.2, %zero), dimensions={1}, to_apply=%added
}

ENTRY %main (x: f32[8,4], y: f32[4,4]) -> (f32[8]) {
  %x = f32[8,4]{1,0} parameter(0)
  %y = f32[4,4]{1,0} parameter(1)
  %gemm.1 = (f32[8,4]{1,0}, s8[64]{0}) custom-call(%x, %y), custom_call_target="__cublas$gemm"
  %part = f32[8,4]{1,0} get-tuple-element(%gemm.1), index=0
  %rows = f32[8]{0} fusion(%part), kind=kCustom, calls=%fused, backend_config={"kind":"__triton"}
  %again = f32[8]{0} fusion(%rows), kind=kLoop, calls=%other
  ROOT %out = (f32[8]{0}) tuple(%again)
}
"""


def test_what_starts_a_kernel_is_counted_where_the_program_enters() -> None:
    assert hlo.metrics_of(COMPILED, "exponential") == {
        "kernels": 3,
        "fusions": 2,
        "triton_fusions": 1,
        "library_calls": 1,
        "hlo_instructions": 14,
    }


def test_a_program_without_what_it_needs_is_wrong() -> None:
    with pytest.raises(WrongResultError, match="no dot in the compiled HLO"):
        hlo.metrics_of(COMPILED, "dot")


def test_xla_fuses_without_a_gpu() -> None:
    if os.environ.get("CI") != "true":
        pytest.importorskip("jax_plugins.xla_cuda13")
    softmax, mlp = hlo.read_metrics("softmax"), hlo.read_metrics("mlp")
    assert softmax.keys() == {metric.name for metric in hlo.METRICS}
    assert (softmax["kernels"], softmax["triton_fusions"], softmax["temp_bytes"]) == (1, 1, 0)
    # Gate and up are one product, whose bf16 output alone waits for the next kernel.
    assert mlp["temp_bytes"] == 512 * 2 * 14336 * 2
    assert mlp["kernels"] == mlp["fusions"] == 4
