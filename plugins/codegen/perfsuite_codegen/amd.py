"""One Triton kernel compiled for one of AMD's GPUs: what it takes, and what its instructions do."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from perfsuite import Case, Inspection, Kernel, Metric, Opcodes, Regime, case, package
from perfsuite_codegen.compiling import Binary, compile_kernel, reachable
from perfsuite_codegen.kernel import at_least, check_shared, shared_limit, too_new

TARGETS = ("gfx942", "gfx950")
SMOKE_TARGET = "gfx942"
# AMD, CDNA 3 and CDNA 4 instruction set architecture: a compute unit has four SIMDs, and a
# workgroup at most 1,024 threads, waves of 64.
SIMDS, MOST_WARPS = 4, 16
# Their tiles are chosen for the 227 KiB of Hopper.
TOO_LARGE = {
    "gfx942": (
        "compute.skinny_bf16_64_4096_triton",
        "inference.paged_attention_part_fp32",
        "inference.paged_attention_part_fp32_64",
    ),
    "gfx950": ("compute.gemm_triton_2048",),
}
# What has no code for AMD: PTX, and products with a scale for each block, which gfx942 lacks.
NVIDIA_ALONE = ("inline_asm", "dot_scaled")

METRICS = (
    Metric("vector_registers"),
    Metric("accumulation_registers"),
    Metric("scalar_registers"),
    Metric("vector_spills"),
    Metric("scalar_spills"),
    Metric("scratch_bytes", "B"),
    Metric("shared_bytes", "B"),
    Metric("waves_per_simd", better="higher"),
    Metric("code_bytes", "B", threshold=0.01),
    Metric("instructions", threshold=0.01),
    Metric("tensor_core_ops", better="equal"),
    Metric("fma_ops", better="equal", threshold=0.01),
    Metric("global_loads"),
    Metric("global_load_width", "B", better="higher"),
    Metric("global_stores"),
    Metric("global_store_width", "B", better="higher"),
    Metric("shared_loads"),
    Metric("shared_stores"),
    Metric("barriers"),
    Metric("atomics"),
)
# What LLVM says of a kernel, below its instructions.
_SAID = {
    "vector_registers": r"^ +\.vgpr_count: +(\d+)",
    "accumulation_registers": r"^ +(?:- )?\.agpr_count: +(\d+)",
    "scalar_registers": r"^ +\.sgpr_count: +(\d+)",
    "vector_spills": r"^ +\.vgpr_spill_count: +(\d+)",
    "scalar_spills": r"^ +\.sgpr_spill_count: +(\d+)",
    "scratch_bytes": r"^ +\.private_segment_fixed_size: +(\d+)",
    "code_bytes": r"^; codeLenInByte = (\d+)",
    "waves_per_simd": r"^; Occupancy: (\d+)",
}
_INSTRUCTION = re.compile(r"^\t([a-z]\w+)", re.MULTILINE)
_ACCESS = re.compile(
    r"(?:global|buffer|flat)_(load|store)_(?:lds_)?[us]?(byte|short|dword(?:x\d)?)"
)
_WIDTHS = {"byte": 1, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
_FUNCTION = re.compile(r"^def (\w+)(.*?)(?=^(?:@|[A-Za-z_])|\Z)", re.MULTILINE | re.DOTALL)


def case_of(kernels: Sequence[Kernel]) -> Case | None:
    """Return the case of the Triton kernels that AMD's compiler takes; None where there is none."""
    by_name = {kernel.name: kernel for kernel in kernels if is_portable(kernel)}
    if not by_name:
        return None

    def build(ctx: Any, *, kernel: str, target: str) -> Inspection:
        """Compile a Triton kernel for one of AMD's GPUs and count what its code takes and does.

        Neither a GPU nor ROCm is needed: Triton has LLVM's compiler for AMD. The launch is the one
        recorded on NVIDIA, with waves of 64 threads for warps of 32. ``vector_registers`` are all
        of a thread, those for accumulation among them. ``waves_per_simd`` is what registers and
        shared memory leave room for. ``tensor_core_ops`` are MFMA and SMFMAC. A kernel that asks
        for more shared memory (LDS) than a workgroup can have is wrong.
        """
        return Inspection(read=lambda: read_metrics(by_name[kernel], target))

    declare = case(
        name="amd_kernel",
        # The one with the fewest arguments is the quickest to compile.
        smoke={
            "kernel": min(by_name, key=lambda name: (len(by_name[name].signature), name)),
            "target": SMOKE_TARGET,
        },
        nightly=[
            {"kernel": name, "target": [each for each in TARGETS if name not in TOO_LARGE[each]]}
            for name in by_name
        ],
        needs=[
            package("triton"),
            package("torch"),
            *at_least("3.7"),
            *too_new(list(by_name.values())),
        ],
        regime=Regime.EXACT,
        target="target",
        metrics=METRICS,
        tags=["static"],
        source="AMD, CDNA 3 and CDNA 4 instruction set architecture; LLVM, user guide for the "
        "AMDGPU backend",
    )
    return declare(build)


def is_portable(kernel: Kernel) -> bool:
    """Say whether a kernel is Triton's alone and can be launched on AMD with as many warps."""
    return (
        kernel.language == "triton"
        and not kernel.constants.get("launch_pdl")
        and kernel.num_warps <= MOST_WARPS
        and not any(word in _reached(kernel) for word in NVIDIA_ALONE)
    )


def _reached(kernel: Kernel) -> str:
    """Return the text of a kernel and of what it calls in its module, which is not imported."""
    functions = _functions(reachable(kernel))
    names = [kernel.function]
    seen: dict[str, str] = {}
    while names:
        name = names.pop()
        if name in functions and name not in seen:
            seen[name] = functions[name]
            names += re.findall(r"\w+", functions[name])
    return "".join(seen.values())


@cache
def _functions(module: str) -> dict[str, str]:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or not found.origin:
        return {}
    return dict(_FUNCTION.findall(Path(found.origin).read_text(encoding="utf-8")))


def read_metrics(kernel: Kernel, target: str) -> dict[str, float]:
    """Compile a kernel and return its metrics; raises ``WrongResultError`` if it is too large."""
    binary = compile_kernel(kernel, target)
    check_shared(kernel, target, binary)
    return metrics_of(binary, shared_limit(target))


def metrics_of(binary: Binary, shared_limit: int) -> dict[str, float]:
    """Return the metrics of a kernel; a width only where there are accesses.

    ``shared_limit`` is the shared memory of a compute unit in bytes.
    """
    text = binary.assembly
    said = {name: re.search(wanted, text, re.MULTILINE) for name, wanted in _SAID.items()}
    found = {name: float(each[1]) for name, each in said.items() if each}
    found["shared_bytes"] = binary.shared_bytes
    if binary.shared_bytes:
        # LLVM counts by registers alone: Triton asks for shared memory at launch.
        blocks = shared_limit // binary.shared_bytes
        found["waves_per_simd"] = min(found["waves_per_simd"], blocks * binary.warps / SIMDS)
    counts = Counter(_INSTRUCTION.findall(text))
    ops = Opcodes(counts)
    found |= {
        "instructions": ops.total,
        "tensor_core_ops": ops.starting("v_mfma", "v_smfmac"),
        "fma_ops": ops.starting("v_fma", "v_pk_fma"),
        "shared_loads": ops.starting("ds_read"),
        "shared_stores": ops.starting("ds_write"),
        "barriers": ops.starting("s_barrier"),
        "atomics": ops.starting("global_atomic", "buffer_atomic", "flat_atomic", "ds_add"),
    }
    moved = {"load": Counter[int](), "store": Counter[int]()}
    for opcode, count in counts.items():
        if access := _ACCESS.match(opcode):
            moved[access[1]][_WIDTHS[access[2]]] += count
    for way, widths in moved.items():
        found[f"global_{way}s"] = widths.total()
        if widths:
            bytes_moved = sum(width * count for width, count in widths.items())
            found[f"global_{way}_width"] = bytes_moved / widths.total()
    return found
