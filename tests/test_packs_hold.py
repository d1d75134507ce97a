"""Every pack of the repository is sound, and hands over all of its kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sanitize_kernels

from perfsuite.boundary import PackError
from perfsuite.packs.load import load_pack
from perfsuite.testing import check_pack

ROOT = Path(__file__).parents[1]
PLUGINS = ROOT / "plugins"
PACKS = ("blackwell", "compute", "hopper", "inference", "memory", "scheduling")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# What stands before a kernel's name may have brackets in its own; a name is a word before one.
_BOUNDS = re.compile(
    r"__(?:launch_bounds|cluster_dims)__\s*(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"
)
# A jitted function that others call has another name.
_JITTED = re.compile(r"^@(?:triton|gluon)\.jit\b.*\ndef (\w+_kernel)\(", re.MULTILINE)
# A macro makes these, of its parameter NAME; nvcc links parent with the device's own runtime.
EXEMPT = {f"stream.cu: {name}" for name in ["NAME", "stream_copy", "stream_scale", "stream_add"]}
EXEMPT |= {"stream.cu: stream_triad", "dynamic_parallelism.cu: parent"}


def cuda_kernels(text: str) -> set[str]:
    """Return the names after ``__global__``, less bounds."""
    return set(re.findall(r"__global__[^(]*?(\w+)\s*\(", _BOUNDS.sub("", _COMMENT.sub("", text))))


def sources(pack: str) -> Iterator[tuple[str, str]]:
    """Yield file (or module) and name of each kernel in a pack's sources."""
    for path in sorted((PLUGINS / pack / f"perfsuite_{pack}").rglob("*")):
        if path.suffix in {".cu", ".cuh"}:
            yield from ((path.name, name) for name in cuda_kernels(path.read_text("utf-8")))
        elif path.suffix == ".py":
            yield from ((path.stem, name) for name in _JITTED.findall(path.read_text("utf-8")))


@pytest.mark.parametrize("pack", PACKS)
def test_every_kernel_of_a_pack_is_handed_over(pack: str) -> None:
    kernels = load_pack(pack, f"module:perfsuite_{pack}@{PLUGINS / pack}").pack.kernels
    # Instances of templates are one.
    listed = {
        (
            Path(kernel.file).name if kernel.file else kernel.module.rpartition(".")[2],
            kernel.function.partition("<")[0],
        )
        for kernel in kernels
    }
    assert {f"{file}: {name}" for file, name in set(sources(pack)) ^ listed} - EXEMPT == set()


def test_what_is_run_by_hand_on_a_gpu_are_cases_with_their_axes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded = {
        pack: load_pack(pack, f"module:perfsuite_{pack}@{PLUGINS / pack}").cases for pack in PACKS
    }
    for table in (sanitize_kernels.SMALL, sanitize_kernels.ODD):
        for name, axes in sanitize_kernels.chosen([], table):
            pack, _, case = name.partition(".")
            found = loaded[pack][case]
            assert set(axes) == set(found.axes), name
            assert axes.get("impl") in {None, *found.axes.get("impl", ())}, name
    assert sanitize_kernels.main(["memory.stream", "memory.steam"]) == 1
    assert "memory.steam" in capsys.readouterr().out


@pytest.mark.parametrize(
    "pack", sorted(path.parent.name for path in PLUGINS.glob("*/pyproject.toml"))
)
def test_pack_is_sound(pack: str) -> None:
    if pack == "codegen":  # it compiles what others hand over, and check_pack loads one pack
        with pytest.raises(PackError, match="no pack hands over a kernel"):
            check_pack(PLUGINS / pack, device="")
    else:
        assert check_pack(PLUGINS / pack, device="") == ()
