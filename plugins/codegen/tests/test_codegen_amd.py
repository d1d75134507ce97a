"""What AMD's compiler makes of Triton kernels, and which of them it is asked for."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import perfsuite_codegen
import pytest
from msgspec.structs import replace

import perfsuite
from perfsuite import Kernel, WrongResultError

pytest.importorskip("triton", "3.7")
pytest.importorskip("torch")
from perfsuite_codegen import amd
from perfsuite_codegen.compiling import Binary

SIZED: dict[str, Any] = {"PRECISION": "ieee", "SIZE": 64}
PRODUCT = Kernel(
    name="planted.product",
    language="triton",
    module="planted_triton",
    function="product",
    signature=dict.fromkeys("abc", "*fp16"),
    constants=SIZED,
    aligned=("a", "b", "c"),
)


def test_a_lost_vectorisation_shows_and_all_metrics_are_declared() -> None:
    aligned = amd.read_metrics(PRODUCT, "gfx942")
    scalar = amd.read_metrics(replace(PRODUCT, aligned=()), "gfx942")
    assert aligned["tensor_core_ops"] > 0
    assert (aligned["global_load_width"], scalar["global_load_width"]) == (16, 2)
    assert scalar["global_loads"] == 8 * aligned["global_loads"]
    assert set(aligned) == {metric.name for metric in amd.METRICS}


def test_more_shared_memory_than_a_workgroup_can_have_is_wrong() -> None:
    large = replace(PRODUCT, constants={**SIZED, "SIZE": 256}, num_warps=8)
    with pytest.raises(WrongResultError, match=r"bytes of shared memory; a block of gfx942 has"):
        amd.read_metrics(large, "gfx942")


def test_waves_are_those_that_registers_and_shared_memory_leave_room_for() -> None:
    text = "\tds_read_b128 v[0:3], v4\n\tbuffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen lds\n"
    text += "\tglobal_load_short_d16_hi v0, v1\n; Occupancy: 4\n"
    for shared, waves in ((0, 4), (16 << 10, 4), (30 << 10, 2), (40 << 10, 1)):
        found = amd.metrics_of(Binary(b"", "f", shared, 0, 4, text), 64 << 10)
        assert found["waves_per_simd"] == waves
    assert (found["global_loads"], found["global_load_width"]) == (2, 9)
    assert (found["shared_loads"], found["instructions"]) == (1, 3)


def test_what_is_nvidias_alone_is_no_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        def _bend(x):
            return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=r,r", [x])

        def capped(x):
            return _bend(x)

        def plain(x):
            return x
    """
    (tmp_path / "some_kernels.py").write_text(textwrap.dedent(source), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    plain = replace(PRODUCT, module="some_kernels", function="plain", folder=str(tmp_path))
    left_out = [
        replace(plain, function="capped"),
        replace(plain, constants={"launch_pdl": True}),
        replace(plain, num_warps=32),
        replace(plain, language="gluon"),
    ]
    assert not any(map(amd.is_portable, left_out))
    _, case, *_ = perfsuite_codegen.perf_cases([*left_out, plain])
    assert isinstance(case, perfsuite.Case)
    assert {(tier, axes["target"]) for tier, axes in case.points} == {
        ("smoke", "gfx942"),
        ("nightly", "gfx950"),
    }
    names = {case.name for case in perfsuite_codegen.perf_cases(left_out)}
    assert names == {"kernel", "dsl_kernel", "hlo"}
