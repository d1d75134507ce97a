"""The pack is sound: listed without numpy, results right, mistakes refused, the A1 as promised."""

from __future__ import annotations

from pathlib import Path

import acme_perf
import pytest
from acme_perf.assembler import AssemblyError, assemble
from acme_perf.device import A1

from perfsuite.testing import check_device, check_pack

PROGRAMS = Path(acme_perf.__file__).parent


def test_the_pack_is_sound_on_its_own_device() -> None:
    assert set(check_pack(acme_perf, device="acme")) == {
        "acme.softscale[n=10007,impl=naive]",
        "acme.softscale[n=10007,impl=fused]",
        "acme.program[name=softscale_naive]",
        "acme.program[name=softscale_fused]",
    }


def test_the_a1_keeps_to_the_protocol() -> None:
    check_device(A1(unit="a1-0", seed=1))


def test_a_fused_program_moves_two_vectors_instead_of_seven() -> None:
    naive, fused = (assemble(PROGRAMS / f"softscale_{name}.a1") for name in ("naive", "fused"))
    assert (naive.bursts(1024), fused.bursts(1024)) == (7, 2)
    assert 2.0 < naive.cycles(65536) / fused.cycles(65536) < 2.5


def test_what_is_no_instruction_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.a1").write_text("load v0, x\nfly v0\n", encoding="utf-8")
    with pytest.raises(AssemblyError, match=r"bad\.a1:2: no instruction of the A1: 'fly v0'"):
        assemble(tmp_path / "bad.a1")
