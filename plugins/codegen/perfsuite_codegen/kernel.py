"""One kernel compiled for one target: what it takes, and what its instructions do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from perfsuite import (
    Case,
    Inspection,
    Kernel,
    MachineCode,
    Metric,
    Need,
    Regime,
    WrongResultError,
    case,
    facts_of,
    feature,
    package,
    read_code,
)

if TYPE_CHECKING:
    from perfsuite_codegen.compiling import Binary

SMOKE_TARGET = "sm_90a"
# CUDA C++ Programming Guide, technical specifications by compute capability: the most shared memory
# of a block. What is not listed is not held to a limit.
SHARED_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
# AMD, CDNA 3 and CDNA 4 instruction set architecture: LDS.
SHARED_KIB |= {942: 64, 950: 160}
# The same table: KiB of shared memory, warps and blocks of a multiprocessor.
ROOM = {90: (228, 64, 32), 100: (228, 64, 32), 103: (228, 64, 32), 120: (100, 48, 24)}
# The cuobjdump of older ones says "Cannot decode architecture 'SM103'".
READS_SM103 = "3.7"

METRICS = (
    Metric("registers"),
    Metric("spill_bytes", "B"),
    Metric("stack_bytes", "B"),
    Metric("shared_bytes", "B"),
    Metric("tensor_memory_columns"),
    Metric("blocks_per_sm", better="higher"),
    Metric("binary_bytes", "B", threshold=0.01),
    # Schedules and address arithmetic differ a little without any meaning.
    Metric("instructions", threshold=0.01),
    Metric("tensor_core_ops", better="equal"),
    Metric("tma_ops", better="equal"),
    Metric("fma_ops", better="equal", threshold=0.01),
    Metric("special_function_ops"),
    Metric("global_loads"),
    Metric("global_load_width", "B", better="higher"),
    Metric("global_stores"),
    Metric("global_store_width", "B", better="higher"),
    Metric("shared_loads"),
    Metric("shared_stores"),
    Metric("barriers"),
    Metric("atomics"),
)


def case_of(kernels: Sequence[Kernel]) -> Case:
    """Return the case whose variants are these kernels, each for the targets it declares."""
    by_name = {kernel.name: kernel for kernel in kernels}

    def build(ctx: Any, *, kernel: str, target: str) -> Inspection:
        """Compile a kernel for a target and count what its machine code takes and does.

        No GPU is needed, and nothing is timed: every number is the same wherever and whenever the
        same compiler compiles the same source. Counts are of instructions as they stand in the
        code, not as often as they run. ``spill_bytes`` are what the instructions to and from local
        memory move, ptxas's spill stores and loads, and arrays that are indexed at run time.
        ``global_load_width`` and ``global_store_width`` are bytes per thread and instruction, on
        average: 16 is the widest, 4 is a vectorisation that was lost. ``shared_bytes`` of CUDA C++
        are the static ones. A kernel without the opcode that it promises is wrong, and so is one
        that asks for more shared memory than a block of the target can have.
        """
        return Inspection(read=lambda: read_metrics(by_name[kernel], target))

    targets = sorted({target for each in kernels for target in each.targets}, key=_number)
    quick = SMOKE_TARGET if SMOKE_TARGET in targets else targets[0]
    declare = case(
        name="kernel",
        smoke={"kernel": _smoke(kernels, quick), "target": quick},
        nightly=[{"kernel": each.name, "target": each.targets} for each in kernels],
        needs=_needs(kernels),
        regime=Regime.EXACT,
        target="target",
        metrics=METRICS,
        tags=["static"],
        source="AI Systems Performance Engineering, chapters 6 and 8; NVIDIA, CUDA Binary "
        "Utilities, instruction set reference",
    )
    return declare(build)


def read_metrics(kernel: Kernel, target: str) -> dict[str, float]:
    """Compile a kernel and return its metrics.

    Raises ``WrongResultError`` if it lacks the opcode it promises or cannot be launched.
    """
    from perfsuite_codegen.compiling import compile_kernel

    binary = compile_kernel(kernel, target)
    code = read_code(binary.cubin, binary.symbol)
    _check(kernel, target, binary, code)
    found = metrics_of(binary, code)
    if binary.warps and _number(target) in ROOM:
        found["blocks_per_sm"] = resident_blocks(
            _number(target), code.registers, binary.warps, binary.shared_bytes
        )
    return found


def metrics_of(binary: Binary, code: MachineCode) -> dict[str, float]:
    """Return the metrics of a kernel on any target; a width only where there are accesses."""
    return {
        **facts_of(code),
        "shared_bytes": binary.shared_bytes,
        "tensor_memory_columns": binary.tensor_memory_columns,
        "binary_bytes": len(binary.cubin),
    }


def resident_blocks(arch: int, registers: int, warps: int, shared_bytes: int) -> int:
    """Return how many blocks a multiprocessor has room for, as CUDA 13's cuda_occupancy.h does.

    A thread has that many ``registers``, a block that many ``warps``. Nothing else limits them
    here: neither clusters nor tensor memory.
    """
    shared_kib, most_warps, most_blocks = ROOM[arch]
    # Registers are given to a warp by 256, in each of four parts of 16,384.
    of_warp = -(-registers * 32 // 256) * 256
    at_once = 16384 // of_warp * 4
    # What checks a launch takes a block's warps by four.
    if -(-warps // 4) * 4 > at_once:
        return 0
    # CUDA takes a KiB of each block for itself; shared memory is given by 128 bytes.
    of_block = -(-(shared_bytes + 1024) // 128) * 128
    return min(at_once // warps, (shared_kib << 10) // of_block, most_warps // warps, most_blocks)


def _check(kernel: Kernel, target: str, binary: Binary, code: MachineCode) -> None:
    where = f"{kernel.function} of {kernel.file or kernel.module}"
    check_promise(kernel.expects.get(target, ""), code, f"{target} code of {kernel.name}", where)
    check_shared(kernel, target, binary)


def check_promise(promised: str, code: MachineCode, what: str, where: str) -> None:
    """Raise ``WrongResultError`` where the code lacks an opcode that was promised, if one was."""
    if promised and not code.opcodes.has(promised):
        lost = ": the tensor-core path is lost" if promised.partition(".")[0][-3:] == "MMA" else ""
        raise WrongResultError(
            f"no {promised} in the {what}{lost}",
            where=where,
            remedy="see whether shapes, types, layouts or the compiler changed",
        )


def check_shared(kernel: Kernel, target: str, binary: Binary) -> None:
    """Raise ``WrongResultError`` where no block of the target has so much shared memory."""
    limit = shared_limit(target)
    if 0 < limit < binary.shared_bytes:
        raise WrongResultError(
            f"{kernel.name} asks for {binary.shared_bytes} bytes of shared memory; a block of "
            f"{target} has {limit}",
            where=f"{kernel.function} of {kernel.file or kernel.module}",
            remedy="use smaller tiles or fewer stages, or leave this target out",
        )


def shared_limit(target: str) -> int:
    """Return the most bytes of shared memory of a block; 0 is not known."""
    return SHARED_KIB.get(_number(target), 0) << 10


def _smoke(kernels: Sequence[Kernel], target: str) -> list[str]:
    """Return one kernel of each pack that has any for the target, the languages in turn."""
    packs: dict[str, dict[str, str]] = {}
    for kernel in kernels:
        if target in kernel.targets:
            pack = packs.setdefault(kernel.name.partition(".")[0], {})
            pack.setdefault(kernel.language, kernel.name)
    taken = dict.fromkeys(("cuda", "triton", "gluon"), 0)
    chosen = []
    # By name: installed packs come in another order than those of a folder.
    for _, by_language in sorted(packs.items()):
        language = min(by_language, key=taken.__getitem__)
        taken[language] += 1
        chosen.append(by_language[language])
    return chosen


def _needs(kernels: Sequence[Kernel]) -> list[Need]:
    """Return the compilers; triton brings the disassembler too."""
    needs = [package("triton"), package("cuda.core"), package("torch")]
    if in_cuda := [kernel.name for kernel in kernels if kernel.language == "cuda"]:
        needs.append(feature("nvrtc").when(kernel=in_cuda))
    needs += [need.when(target="sm_103a") for need in at_least(READS_SM103)]
    return needs + too_new(kernels)


def too_new(kernels: Sequence[Kernel]) -> list[Need]:
    """Return a newer Triton for each kernel that the one here does not compile."""
    return [need.when(kernel=each.name) for each in kernels for need in at_least(each.triton)]


def at_least(version: str) -> list[Need]:
    """Return this version of Triton where an older one is installed, and nothing otherwise."""
    is_older = (0,) < _triton_version() < _numbers(version)
    return [package(f"triton>={version}")] if is_older else []


def _triton_version() -> tuple[int, ...]:
    try:
        return _numbers(metadata.version("triton"))
    except metadata.PackageNotFoundError:
        return (0,)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _number(target: str) -> int:
    return int(re.sub(r"\D", "", target))
