"""What the pack lists of the kernels it is handed."""

from collections.abc import Sequence
from typing import Any

import perfsuite_codegen
import pytest
from perfsuite_codegen import kernel as kernel_module

import perfsuite
from perfsuite import Kernel, Need


def cuda(name: str, **fields: Any) -> Kernel:
    return Kernel(name=name, language="cuda", function="f", file="/f.cu", **fields)


KERNELS = (
    Kernel(
        name="planted.product",
        language="triton",
        function="f",
        module="m",
        targets=("sm_100a", "sm_90a"),
    ),
    cuda("planted.copy", targets=("sm_80", "sm_120a")),
    cuda("planted.powers"),
    cuda("other.copy"),
    cuda("other.second", triton="3.7"),
)


def case() -> perfsuite.Case:
    found, *_ = perfsuite_codegen.perf_cases(KERNELS)
    assert isinstance(found, perfsuite.Case)
    return found


def needs(**axes: str) -> set[str]:
    return {need.value for need in case().needs if isinstance(need, Need) and need.applies(axes)}


def test_no_kernels_are_told_with_what_to_do() -> None:
    with pytest.raises(perfsuite.PerfError, match="--perf-packs codegen,memory"):
        perfsuite_codegen.perf_cases(())


def test_only_cuda_kernels_need_nvrtc() -> None:
    assert "nvrtc" in needs(kernel="planted.powers", target="sm_90a")
    assert "nvrtc" not in needs(kernel="planted.product", target="sm_90a")


def test_a_variant_is_a_kernel_for_a_target_that_it_declares() -> None:
    found = case()
    pairs = {(axes["kernel"], axes["target"]) for _, axes in found.points}
    declared = {(kernel.name, target) for kernel in KERNELS for target in kernel.targets}
    assert pairs == declared
    assert (found.target, found.regime) == ("target", perfsuite.Regime.EXACT)


def smoke(kernels: Sequence[perfsuite.Kernel]) -> list[tuple[Any, Any]]:
    found, *_ = perfsuite_codegen.perf_cases(kernels)
    return [(axes["kernel"], axes["target"]) for tier, axes in found.points if tier == "smoke"]


def test_smoke_has_one_kernel_of_each_pack_in_different_languages() -> None:
    assert smoke(KERNELS) == [("other.copy", "sm_90a"), ("planted.product", "sm_90a")]
    both = [cuda("a.x"), KERNELS[0], cuda("planted.y"), cuda("old.z", targets=("sm_80",))]
    # Installed packs come in another order than those of a folder: the choice is the same.
    for order in (both, [*both[1:], both[0]]):
        assert [kernel for kernel, _ in smoke(order)] == ["a.x", "planted.product"]


def test_smoke_takes_another_target_where_there_is_none_for_hopper() -> None:
    assert smoke([cuda("old.z", targets=("sm_120a", "sm_80"))]) == [("old.z", "sm_80")]


def test_what_an_old_disassembler_cannot_read_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, missing in (((3, 6), {"triton>=3.7"}), ((3, 7), set()), ((3, 10), set())):
        monkeypatch.setattr(kernel_module, "_triton_version", lambda version=version: version)
        found = needs(kernel="planted.powers", target="sm_103a")
        assert found == {"triton", "cuda.core", "torch", "nvrtc"} | missing
        assert "triton>=3.7" not in needs(kernel="planted.powers", target="sm_100a")
        # What an old compiler cannot compile is skipped, too.
        assert missing <= needs(kernel="other.second", target="sm_100a")
        _, for_amd, *_ = perfsuite_codegen.perf_cases(KERNELS)
        assert {need.value for need in for_amd.needs} == {"triton", "torch"} | missing
