"""Selecting, skipping and ordering variants."""

from __future__ import annotations

import itertools
import sys

import pytest
from msgspec.structs import replace
from store_data import FACTS, variant

from perfsuite import Need, arch, cuda, feature, gpus, package
from perfsuite.boundary import UsageError
from perfsuite.model import DeviceFacts, Scalar, Variant, variant_id
from perfsuite.packs.select import is_installed, missing_need, order, select

H200 = replace(FACTS, memory_bytes=140_000_000_000, features=("fp8", "tma"))
CPU = DeviceFacts(device="cpu", name="CPU", unit="", identity={})


def bound(case: str, *needs: Need, **axes: Scalar) -> Variant:
    """Return a variant of a case, its pack's name before the dot; one with needs of its own."""
    made = variant(case, 1)
    info = replace(made.case, needs=needs, tags=("canary",) if made.case.name == "gemm" else ())
    return replace(made, id=variant_id(made.pack, info.name, axes), case=info, axes=axes)


VARIANTS = (
    bound("copy", n=1024, impl="torch"),
    bound("copy", n=2**20, impl="torch"),
    bound("copy", n=2**20, impl="triton"),
    bound("compute.gemm", m=64, fused=True),
    bound("compute.softmax", n=0.5, dtype="1e3", impl="memory.fast"),
)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("impl=triton", [2]),
        ("impl!=triton", [0, 1, 4]),
        ("n>=1e6", [1, 2]),
        ("n<=1024", [0, 4]),
        ("n<1024", [4]),
        ("n=1.048576e6", [1, 2]),
        (" n >= 1e6 , impl = torch ", [1]),
        ("dtype=1e3", [4]),
        ("fused=true", [3]),
        ("pack=compute", [3, 4]),
        ("case=gemm", [3]),
        ("tag=canary", [3]),
        ("tag!=canary", [0, 1, 2, 4]),
        ("pack=compute,tag!=canary", [4]),
        (" memory.copy[n=1024, impl=torch] ", [0]),
        (f"{VARIANTS[3].id} {VARIANTS[0].id}", [0, 3]),
        ("compute", [3, 4]),
        ("compute.gemm", [3]),
        ("torch and not 1024", [1]),
        ("gemm or 1024 torch and 1048576", [0, 1, 3]),
        ("memory.copy[*,impl=tor*", [0, 1]),
        ("*.gemm*", [3]),
        ("memory.*", [0, 1, 2]),
    ],
)
def test_a_selection_takes(text: str, chosen: list[int]) -> None:
    assert select(VARIANTS, text) == tuple(VARIANTS[index] for index in chosen)
    assert select((), text) == ()  # why there is none, such as a pack that fails, is told elsewhere


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "is empty") for text in ("", " ")),
        *((text, "ends in") for text in ("copy and", "not")),
        *((text, "no condition") for text in ("impl=", "=x", "impl=a,", "n=>1", "a b=1")),
        ("n>=many", "no number"),
        ("size=1", r"axis 'size'(.|\n)*dtype, fused, impl, m, n"),
        *((text, "no variant of 5") for text in ("n=7", "pack=none", "impl>3", "fused>0")),
        ("copy cop", r"called .cop.(.|\n)*did you mean copy,"),
        ("impl=cud", "(?s)no variant of 5.*impl has "),
        ("memory.copy[n=7,impl=torch]", r"no variant of 5(.|\n)*did you mean memory.copy\[n=1024,"),
    ],
)
def test_what_selects_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        select(VARIANTS, text)
    assert not text.strip() or repr(text) in caught.value.where
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("need", "facts", "said"),
    [
        (cuda(), CPU, "needs device cuda, this run uses cpu"),
        (arch("sm_90a"), H200, ""),
        (arch("sm_90"), replace(H200, arch="sm_90a"), ""),
        (arch("sm_80+"), H200, ""),
        (arch("sm_80"), H200, "needs arch sm_80, this GPU is sm_90"),
        (arch("sm_100+"), H200, "needs arch sm_100+, this GPU is sm_90"),
        (arch("sm_100a"), replace(H200, arch="sm_120"), "needs arch sm_100a, this GPU is sm_120"),
        (arch("sm_80+"), CPU, "needs arch sm_80+, this device is no GPU"),
        (gpus(2), H200, "needs gpus 2, this run has 1"),
        (package("json"), CPU, ""),
        (package("no_such_thing"), CPU, "needs package no_such_thing, which is not installed"),
        (feature("fp4"), H200, "needs feature fp4, this device has fp8, tma"),
        (feature("fp4"), CPU, "needs feature fp4, this device has none"),
        (gpus(2).when(impl="nccl"), H200, ""),
    ],
)
def test_a_missing_need_is_named(need: Need, facts: DeviceFacts, said: str) -> None:
    assert missing_need(bound("copy", need, impl="triton"), facts) == said


def test_memory_is_a_need() -> None:
    large, fitting = (replace(VARIANTS[0], memory_bytes=n * 10**9) for n in (150, 140))
    said = "needs 150.0 GB of memory, this device has 140.0 GB"
    assert [missing_need(each, H200) for each in (large, fitting)] == [said, ""]
    assert missing_need(large, CPU) == ""


def test_a_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "xml.dom.minidom", raising=False)
    assert is_installed("xml.dom.minidom")
    assert "xml.dom.minidom" not in sys.modules
    assert not is_installed("xml.dom.nothing")
    assert not is_installed("this.is.nothing")


def test_order_depends_on_the_seed_only_and_keeps_cases_together() -> None:
    assert order(VARIANTS, 3) == order(reversed(VARIANTS), 3)
    assert any(order(VARIANTS, seed) != order(VARIANTS, 3) for seed in range(20))
    ordered = order([bound(name, n=n) for name in "abc" for n in range(5)], 1)
    assert len(ordered) == 15
    names = [variant.case.name for variant in ordered]
    assert sum(one != other for one, other in itertools.pairwise(names)) == 2
