"""nvcc, played by a script: what it is asked, what it makes, and what it says when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.boundary import PerfError

pytest.importorskip("torch")

from perfsuite.devices.kernels import RELOCATABLE, linked
from perfsuite.devices.tensors import compilers, sharing


def _install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = folder / "nvcc"
    compiler.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_cubin_is_what_the_compiler_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The last argument is where to write; what it was asked is what it writes.
    _install(tmp_path, 'for last; do :; done; printf "%s " "$@" > "$last"', monkeypatch)
    asked = linked("x.cu", "sm_90a", ("-DN=4", RELOCATABLE)).decode().split()
    assert {"-arch=sm_90a", "-dlink", "-DN=4", RELOCATABLE, "x.cu", "-lcudadevrt"} <= set(asked)
    assert "nvcc" in compilers()


def test_compiler_is_quoted_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "echo 'x.cu(3): error: no such thing' >&2; exit 2", monkeypatch)
    with pytest.raises(PerfError, match="no such thing") as told:
        linked("x.cu", "sm_90a", (RELOCATABLE,))
    assert told.value.where == "x.cu"


def test_missing_compiler_is_no_feature_and_says_what_to_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerfError, match="cannot be run") as told:
        linked("x.cu", "sm_90a", (RELOCATABLE,))
    assert "feature('nvcc')" in told.value.remedy
    assert "nvcc" not in compilers()


@pytest.mark.parametrize(
    ("driver", "mig", "ways"),
    [
        ("580.159.04", "off", {"green_context"}),
        ("535.1", "off", set()),
        ("", "", set()),
        ("580.1", "on", {"green_context", "mig"}),
    ],
)
def test_ways_to_share_a_gpu_are_found(
    driver: str, mig: str, ways: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert set(sharing(driver, mig)) == ways
    (tmp_path / "control").touch()
    assert set(sharing(driver, mig)) == ways | {"mps"}
