"""The Triton kernels, without a GPU: right on tails in the interpreter, vectorised for sm_90."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pack_scripts import lines_of

HERE = Path(__file__).parent


def _lines(script: str, **environment: str) -> list[dict[str, Any]]:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    return lines_of(HERE / script, **environment)


@pytest.fixture(scope="module")
def opcodes() -> dict[str, Counter[str]]:
    """Return the SASS opcode counts of each kernel."""
    (found,) = _lines("compile_triton.py")
    return {name: Counter(listing) for name, listing in found.items()}


def test_kernels_are_right_on_sizes_with_tails() -> None:
    _lines("interpret_triton.py", TRITON_INTERPRET="1")


def test_no_kernel_spills(opcodes: dict[str, Counter[str]]) -> None:
    spilled = {
        name for name, counts in opcodes.items() for code in counts if code[:3] in ("LDL", "STL")
    }
    assert opcodes
    assert not spilled


def test_streams_move_sixteen_bytes_an_access(opcodes: dict[str, Counter[str]]) -> None:
    loads = {"copy": 4, "scale": 4, "add": 8, "triad": 8, "init": 0}
    for op, expected in loads.items():
        assert opcodes[f"map_{op}"]["LDG.E.128"] == expected, op
        assert opcodes[f"map_{op}"]["STG.E.128"] == 4, op
    assert opcodes["reduce_read"]["LDG.E.128"] == 4
    assert opcodes["reduce_dot"]["LDG.E.128"] == 8


def test_only_the_coalesced_field_is_read_in_vectors(opcodes: dict[str, Counter[str]]) -> None:
    assert opcodes["take_field_1"]["LDG.E.128"] > 0
    assert opcodes["take_field_8"]["LDG.E.128"] == 0
    assert opcodes["take_field_8"]["LDG.E"] > 0


def test_transpose_moves_sixteen_bytes_an_access(opcodes: dict[str, Counter[str]]) -> None:
    assert opcodes["transpose"]["LDG.E.128"] > 0
    assert opcodes["transpose"]["STG.E.128"] > 0
