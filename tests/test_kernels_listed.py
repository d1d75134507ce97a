"""Every kernel of the packs here is handed over, so that its code is guarded with no GPU."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import odd_kernels
import pytest
import sanitize_kernels

from perfsuite import Kernel
from perfsuite.model import Case
from perfsuite.packs.load import load_pack

PLUGINS = Path(__file__).parents[1] / "plugins"
PACKS = ("blackwell", "compute", "hopper", "inference", "memory", "scheduling")
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims)__\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Kernels that are not compiled ahead, and why.
EXEMPT = {
    "stream.cu: NAME": "a macro's parameter; what it makes is listed as stream_copy to stream_init",
    "dynamic_parallelism.cu: parent": "linked by nvcc with the device's runtime; child is listed",
}


def kernels_of(pack: str) -> tuple[Kernel, ...]:
    folder = str(PLUGINS / pack)
    if folder not in sys.path:  # where packs are not installed
        sys.path.append(folder)
    return tuple(importlib.import_module(f"perfsuite_{pack}").perf_kernels())


def cuda_kernels(text: str) -> set[str]:
    """Return the names after ``__global__``, less bounds."""
    bare = _BOUNDS.sub("\0(", _COMMENT.sub("", text))
    found = set()
    for part in bare.split("__global__")[1:]:
        name = re.search(r"(\w+)\s*\(", _without_bounds(part))
        assert name, part[:80]
        found.add(name[1])
    return found


def _without_bounds(text: str) -> str:
    """Cut each NUL and the brackets behind it, up to the body."""
    while 0 <= (start := text.find("\0")) < text.find("{"):
        end = start + 1
        while (
            text[start + 1 : end].count("(") > text[start + 1 : end].count(")") or end < start + 3
        ):
            end += 1
        text = text[:start] + text[end:]
    return text


def triton_kernels(text: str) -> set[str]:
    """Return the jitted functions that no other jitted one calls or hands on."""
    tree = ast.parse(text)
    jitted = {
        each.name: each
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef)
        and any(ast.unparse(one).split("(")[0].endswith(".jit") for one in each.decorator_list)
    }
    named = {
        name.id
        for each in jitted.values()
        for statement in each.body
        for name in ast.walk(statement)
        if isinstance(name, ast.Name)
    }
    return set(jitted) - named


def sources(pack: str) -> Iterator[tuple[str, set[str]]]:
    for path in sorted((PLUGINS / pack / f"perfsuite_{pack}").rglob("*")):
        if path.suffix in {".cu", ".cuh"}:
            yield path.name, cuda_kernels(path.read_text(encoding="utf-8"))
        elif path.suffix == ".py" and ".jit" in (text := path.read_text(encoding="utf-8")):
            yield path.stem, triton_kernels(text)


def _listed(pack: str) -> set[tuple[str, str]]:
    """Return file (or module) and function of each kernel, instances of templates as one."""
    return {
        (
            Path(kernel.file).name if kernel.file else kernel.module.rpartition(".")[2],
            kernel.function.partition("<")[0],
        )
        for kernel in kernels_of(pack)
    }


@pytest.mark.parametrize("pack", PACKS)
def test_every_kernel_of_a_pack_is_handed_over(pack: str) -> None:
    there = {(file, name) for file, names in sources(pack) for name in names}
    missing = {f"{file}: {name}" for file, name in there - _listed(pack)}
    assert missing - EXEMPT.keys() == set()


def test_kernels_are_found_behind_bounds_templates_and_comments() -> None:
    text = """
    // __global__ void commented(int n) {}
    extern "C" __global__ __launch_bounds__(most(T) * (2 + 1), 1) void first(int n) {}
    extern "C" __global__ void __launch_bounds__(THREADS)
    second(const int* x) { f<<<1, 2>>>(x); }
    template <int N> __global__ void third(int n) {}
    __device__ int helper(int n) { return n; }
    """
    assert cuda_kernels(text) == {"first", "second", "third"}
    text = "@triton.jit\ndef a(x):\n    b(x)\n@triton.jit\ndef b(x): pass\ndef c(): pass\n"
    assert triton_kernels(text) == {"a"}


@pytest.mark.parametrize("table", [sanitize_kernels.SMALL, odd_kernels.ODD])
def test_what_is_run_by_hand_on_a_gpu_are_cases_with_their_axes(
    table: dict[str, dict[str, list[Any]]],
) -> None:
    cases: dict[str, Mapping[str, Case]] = {}
    for name, axes in sanitize_kernels.wanted([], table):
        pack, _, case = name.partition(".")
        if pack not in cases:
            cases[pack] = load_pack(pack, f"module:perfsuite_{pack}@{PLUGINS / pack}").cases
        assert case in cases[pack]
        assert set(axes) == set(cases[pack][case].axes), name
        if "impl" in axes:
            found = cases[pack][case]
            assert axes["impl"] in {**found.axes, **found.full}["impl"], name


def test_the_sanitizer_s_list_refuses_a_case_that_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sanitize_kernels.py", "memory.stream", "memory.steam"])
    assert sanitize_kernels.main() == 1
    assert "memory.steam" in capsys.readouterr().out
