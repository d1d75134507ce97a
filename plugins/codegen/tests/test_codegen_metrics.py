"""Planted mistakes show in the metrics, and a compiler's word is the same twice."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from perfsuite_codegen.compiling import compile_kernel
from perfsuite_codegen.kernel import case_of, metrics_of, read_metrics, resident_blocks

import perfsuite
from perfsuite import CaseError, Kernel, Opcodes, WrongResultError, read_code

pytest.importorskip("triton")
pytest.importorskip("torch")
pytest.importorskip("cuda.core")


HERE = Path(__file__).resolve().parent
SIZED: dict[str, Any] = {"PRECISION": "tf32", "SIZE": 64}


def cuda(function: str, *options: str, folder: Path = HERE, **fields: Any) -> Kernel:
    """Return a kernel of planted.cu."""
    blocks = () if any("BLOCKS" in option for option in options) else ("-DBLOCKS=1",)
    return Kernel(
        name=f"planted.{function.partition('<')[0]}",
        language="cuda",
        function=function,
        file=str(folder / "planted.cu"),
        options=(*options, *blocks),
        **fields,
    )


def product(**changed: Any) -> Kernel:
    """Return the matrix product: tf32 on tensor cores, unless changed."""
    kernel = Kernel(
        name="planted.product",
        language="triton",
        function="product",
        module="planted_triton",
        signature=dict.fromkeys("abc", "*fp32"),
        constants=SIZED,
        aligned=("a", "b", "c"),
        expects={"sm_90a": "HGMMA", "sm_120a": "HMMA"},
    )
    return replace(kernel, **changed)


@cache
def metrics_on(target: str) -> Mapping[str, float]:
    """Return the metrics of the matrix product as it is."""
    return read_metrics(product(), target)


def unpromised(kernel: Kernel, target: str) -> dict[str, float]:
    """Return the metrics of a kernel without holding it to what it promises."""
    binary = compile_kernel(kernel, target)
    return metrics_of(binary, read_code(binary.cubin, binary.symbol))


def test_a_planted_spill_is_counted_as_ptxas_counts_it() -> None:
    fits, spills = cuda("powers"), cuda("powers", "-DBLOCKS=4")
    before, now = read_metrics(fits, "sm_90a"), read_metrics(spills, "sm_90a")
    assert before["spill_bytes"] == before["stack_bytes"] == 0
    assert now["spill_bytes"] == sum(_spilled_by_ptxas(spills, "sm_90a")) > 0
    assert now["registers"] <= 65536 / 512 / 4 < before["registers"]


def _spilled_by_ptxas(kernel: Kernel, target: str) -> list[int]:
    """Return the bytes of spill stores and loads in ptxas's own report."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        std="c++17", arch=target, ptxas_options="-v", define_macro=[("BLOCKS", "4")]
    )
    said = io.StringIO()
    text = Path(kernel.file).read_text(encoding="utf-8")
    Program(text, "c++", options).compile("cubin", logs=said)
    properties = said.getvalue().split("Function properties for powers")[1]
    found = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", properties)
    assert found is not None
    return [int(size) for size in found.groups()]


def test_scalar_instead_of_vector_accesses_are_named() -> None:
    before, now = (
        read_metrics(cuda("copy", *options), "sm_90a") for options in ((), ("-DSCALAR",))
    )
    assert (before["global_loads"], before["global_load_width"]) == (1, 16)
    assert (now["global_loads"], now["global_load_width"]) == (4, 4)


@pytest.mark.parametrize(
    ("target", "opcode", "count"), [("sm_90a", "HGMMA", 8), ("sm_120a", "HMMA", 64)]
)
def test_a_lost_tensor_core_path_is_wrong(target: str, opcode: str, count: int) -> None:
    right = metrics_on(target)
    assert right["tensor_core_ops"] == count
    lost = product(constants={"PRECISION": "ieee", "SIZE": 64})
    with pytest.raises(WrongResultError, match=rf"no {opcode} in the {target} code of planted"):
        read_metrics(lost, target)
    now = unpromised(lost, target)
    assert now["tensor_core_ops"] == 0
    assert now["fma_ops"] > right["fma_ops"]


def test_more_shared_memory_than_a_block_can_have_is_wrong() -> None:
    large = product(
        signature=dict.fromkeys("abc", "*fp16"), constants={"PRECISION": "tf32", "SIZE": 256},
        num_warps=8,
    )  # fmt: skip
    with pytest.raises(WrongResultError, match=r"bytes of shared memory; a block of sm_120a has"):
        read_metrics(large, "sm_120a")


def test_tensor_memory_is_counted_on_blackwell() -> None:
    found = read_metrics(product(), "sm_100a")
    assert found["tensor_memory_columns"] > 0
    assert found["tensor_core_ops"] > 0


@pytest.mark.parametrize(
    ("arch", "registers", "warps", "shared", "blocks"),
    [
        (90, 32, 4, 0, 16),
        (90, 168, 12, 100 << 10, 1),
        (90, 128, 4, 46 << 10, 4),
        (90, 128, 5, 0, 3),
        (90, 16, 1, 0, 32),
        (90, 255, 9, 0, 0),
        (120, 32, 4, 0, 12),
        (120, 64, 4, 24 << 10, 4),
    ],
)
def test_blocks_are_as_many_as_nvidias_header_says(
    arch: int, registers: int, warps: int, shared: int, blocks: int
) -> None:
    assert resident_blocks(arch, registers, warps, shared) == blocks


def test_size_is_the_images_and_blocks_are_known_of_tritons_kernels() -> None:
    binary = compile_kernel(product(), "sm_90a")
    found = metrics_on("sm_90a")
    assert found["binary_bytes"] == len(binary.cubin) > 16 * found["instructions"]
    blocks = resident_blocks(90, int(found["registers"]), 4, binary.shared_bytes)
    assert found["blocks_per_sm"] == blocks > 0
    assert "blocks_per_sm" not in read_metrics(cuda("copy"), "sm_90a")


def test_an_instance_of_a_template_is_found_by_its_expression() -> None:
    assert read_metrics(cuda("copy_as<double>"), "sm_90a")["global_load_width"] == 8


def test_an_autotuned_function_is_compiled_as_it_stands() -> None:
    assert read_metrics(product(function="tuned"), "sm_90a") == metrics_on("sm_90a")


def test_the_same_kernel_from_another_folder_has_the_same_code(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for name in ("one", "another"):
        folder = tmp_path / name / ("x" * len(found))
        folder.mkdir(parents=True)
        for file in ("planted.cu", "planted_triton.py"):
            shutil.copy(HERE / file, folder)
        found.append(_compiled_in(folder))
    assert found[0] == found[1]
    assert all(metrics["instructions"] > 0 for metrics, _ in found[0].values())


def _compiled_in(folder: Path) -> dict[str, Any]:
    """Compile in a fresh process, with the sources of that folder and with no cache."""
    roots = [HERE.parent, Path(perfsuite.__file__).parents[1]]
    kernels = [cuda("powers", "-DBLOCKS=4", folder=folder), product(folder=str(folder))]
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "compile_twice.py")],
        input=msgspec.json.encode(kernels).decode(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("kernel", "target", "said"),
    [
        (cuda("copy", "-lineinfo"), "sm_90a", "option '-lineinfo'"),
        (cuda("nothing"), "sm_90a", "does not compile for sm_90a: .*nothing"),
        (cuda("copy", "-DBLOCKS=("), "sm_90a", r"does not compile for sm_90a: .*error"),
        (product(signature=dict.fromkeys("abx", "*fp32")), "sm_90a", "no argument 'x'"),
        (product(aligned=("d",)), "sm_90a", "no argument 'd'; it has a, b, c"),
        (product(constants={"PRECISION": "tf32"}), "sm_90a", "needs argument 'SIZE'"),
        (product(constants={**SIZED, "STAGES": 2}), "sm_90a", "'STAGES', which is no argument"),
        (product(constants={**SIZED, "SIZE": 63}), "sm_90a", "compile for sm_90a: .*power of 2"),
        (product(function="HERE"), "sm_90a", "not a function for Triton: 'HERE'"),
        (product(module="planted_nothing"), "sm_90a", "No module named 'planted_nothing'"),
        (product(), "sm_100f", "cannot be compiled for sm_100f"),
        (product(), "sm_90", "cannot be compiled for sm_90"),
    ],
)
def test_a_kernel_that_cannot_be_compiled_is_named(kernel: Kernel, target: str, said: str) -> None:
    with pytest.raises(CaseError, match=said) as caught:
        compile_kernel(kernel, target)
    assert kernel.name in caught.value.what
    assert "\n" not in caught.value.what


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere")
    before = dict(os.environ)
    compile_kernel(product(), "sm_90a")
    assert dict(os.environ) == before


def test_a_case_reads_the_metrics_that_it_declares() -> None:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.measure import Session
    from perfsuite.model import Settings

    device = open_device("cpu")
    axes = {"kernel": "planted.product", "target": "sm_90a"}
    session = Session(device, case_of([product()]), axes, Settings(), seed=1)
    session.prepare()
    assert session.finish().exact == metrics_on("sm_90a")


def test_opcodes_are_told_apart_by_class_and_width() -> None:
    counts = {
        "LDG.E.LTC128B.64": 2, "LDG.E": 1, "LDG.E.U8.CONSTANT": 1, "LDGSTS.E.BYPASS.128": 3,
        "HGMMA.64x256x16.F32.BF16": 4, "HFMA2.MMA": 5, "UTCHMMA.2CTA": 1, "RED.E.ADD": 1,
        "REDUX.SUM": 7, "NOP": 9, "UTMALDG.2D": 2, "UTMACMDFLUSH": 2,
    }  # fmt: skip
    ops = Opcodes(counts)
    assert ops.moved("LDG") == 2 * 8 + 4 + 1
    assert ops.moved("LDGSTS") == 48
    assert ops.ending("MMA") == 5
    assert ops.of("RED", "REDG") == 1
    assert ops.starting("UTMALDG", "UTMASTG") == 2
    assert ops.total == sum(counts.values()) - 9
    assert ops.has("LDG.64")
    assert ops.has("HGMMA.64x256x16")
    assert not ops.has("LDG.128")
    assert not ops.has("HMMA")


def test_code_that_cuobjdump_cannot_read_is_an_error() -> None:
    with pytest.raises(CaseError, match="cuobjdump"):
        read_code(b"\x7fELF nothing", "f")
    binary = compile_kernel(cuda("copy"), "sm_90a")
    with pytest.raises(CaseError, match="nothing"):
        read_code(binary.cubin, "nothing")
