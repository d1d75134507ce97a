"""The CUDA C++ kernels, without a GPU: compiled by NVRTC for sm_90, seen in SASS."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import perfsuite_memory
import pytest
from perfsuite_memory import coalescing, stream, transpose

FOLDER = Path(perfsuite_memory.__file__).parent
FIELD = {"THREADS": coalescing.THREADS, "ITEMS": coalescing.ITEMS}


def _compile(file: str, macros: dict[str, Any]) -> bytes:
    core = pytest.importorskip("cuda.core")
    options = core.ProgramOptions(
        std="c++17", arch="sm_90", define_macro=[(key, str(value)) for key, value in macros.items()]
    )
    source = (FOLDER / file).read_text(encoding="utf-8")
    return bytes(core.Program(source, "c++", options).compile("cubin").code)


def _opcodes(tmp_path: Path, file: str, macros: dict[str, Any]) -> dict[str, Counter[str]]:
    """Return the opcode counts of each kernel of a .cu file."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        pytest.skip("cuobjdump comes with triton")
    tool = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
    cubin = tmp_path / "kernels.cubin"
    cubin.write_bytes(_compile(file, macros))
    text = subprocess.run([tool, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    found = {}
    for part in text.split("Function : ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = Counter(
            re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", body)
        )
    return found


def _spills(counts: Counter[str]) -> bool:
    return any(code.startswith(("LDL", "STL")) for code in counts)


def test_stream_loads_sixteen_bytes_and_does_not_spill(tmp_path: Path) -> None:
    for threads, unroll in (stream.BOTH_WAYS, stream.ONE_WAY):
        macros = {"THREADS": threads, "UNROLL": unroll, "SCALAR": f"{stream.SCALAR}f"}
        kernels = _opcodes(tmp_path, "stream.cu", macros)
        assert set(kernels) == {f"stream_{op}" for op in stream.INPUTS}
        for op in (op for op in stream.INPUTS if stream.geometry(op) == (threads, unroll)):
            counts = kernels[f"stream_{op}"]
            loads = sum(n for code, n in counts.items() if code.startswith("LDG.E.128"))
            stores = sum(n for code, n in counts.items() if code.startswith("STG.E.128"))
            assert loads == stream.INPUTS[op] * unroll, op
            assert stores == (op not in stream.REDUCTIONS) * unroll, op
            assert not _spills(counts), op


@pytest.mark.parametrize("stride", [1, 2, 32])
def test_field_is_taken_word_by_word(tmp_path: Path, stride: int) -> None:
    counts = _opcodes(tmp_path, "coalescing.cu", {**FIELD, "STRIDE": stride})["take_field"]
    assert counts["LDG.E.CONSTANT"] == coalescing.ITEMS
    assert counts["STG.E"] == coalescing.ITEMS
    assert not _spills(counts)


@pytest.mark.parametrize("vectors", [0, 1])
def test_transpose_kernels_do_what_their_names_say(tmp_path: Path, vectors: int) -> None:
    kernels = _opcodes(tmp_path, "transpose.cu", {"VECTORS": vectors})
    assert set(kernels) == {f"transpose_{impl}" for impl in transpose.KERNELS}
    assert not any(map(_spills, kernels.values()))
    assert kernels["transpose_naive"]["STS"] == 0
    assert kernels["transpose_shared"]["STS"] == kernels["transpose_padded"]["STS"] == 4
    assert kernels["transpose_swizzled"]["LDG.E.EF.128"] == 4 * vectors
    assert kernels["transpose_swizzled"]["STS.128"] == 4 * vectors
    # What begins anywhere is read by words and still written by vectors.
    assert kernels["transpose_swizzled"]["STG.E.EF.128"] == 4
