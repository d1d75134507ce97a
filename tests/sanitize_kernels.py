"""Runs every CUDA C++ kernel of the single-GPU packs once, small and of odd size, to be watched.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=.
    compute-sanitizer --tool memcheck --report-api-errors no python tests/sanitize_kernels.py

and the same with ``--tool racecheck``. (cuda-bindings asks the driver for what newer ones have; the
errors that it gets are no kernel's.) Each is compared with its reference as in any run, and named
before it begins. Cases' names as arguments choose some of them. With ``--launch`` each is launched
once and compared with nothing: racecheck breaks off with an internal error of its own in cuBLAS's
bf16 kernels, which some cases' references or mistakes launch, and without its cache torch refuses
to allocate while a graph is captured, as ``sorted`` of ``scheduling.work_queue`` does. ``--kernel-
name kne=NAME`` of compute-sanitizer, once for each kernel, leaves torch's own out and saves most of
the time.

With ``--odd`` it runs Triton's kernels at sizes that are no multiple of a tile, where a night has
none: the packs' tests have the others in Triton's interpreter, which knows nothing of rounding.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from perfsuite.devices.protocol import open_device
from perfsuite.engine.measure import Session
from perfsuite.model import Settings
from perfsuite.packs.load import load_pack

ROOT = Path(__file__).parents[1]
ONLY_LAUNCH, ONLY_ODD = "--launch", "--odd"
# A case a line with the values of its axes: each is tried with each of the others.
SMALL = """
memory.stream op=copy|scale|add|triad|dot|init|read n=5|4099 impl=cuda
memory.copy_overlap mib=1 impl=serial|two
memory.coalescing n=4096 stride=1|8 impl=cuda
memory.transpose n=33|129 impl=naive|shared|padded|swizzled
memory.vectorized n=4099 shift=0 grid=full|few impl=words|pairs|vectors
memory.vectorized n=4099 shift=1 grid=full impl=realigned
memory.reduction n=7|4099 impl=atomic|tree|shuffle|vectorised
memory.atomics n=4099 keys=uniform|skewed impl=global|elected|shared|shared_elected
memory.async_prefetch rows=67 impl=async stages=1|2|3|4
memory.async_prefetch rows=67 impl=sync stages=1
memory.bank_conflicts stride=1|32 impl=plain
memory.bank_conflicts stride=32 impl=padded|swizzled
memory.bank_conflicts stride=4 impl=vectors
memory.l2_sweep kib=1003 impl=cuda
memory.pointer_chase kib=16
memory.readonly_cache n=4099 lanes=same|scattered impl=plain|readonly|constant|shared
memory.spill panels=67 impl=spilled|bounded|twice|split
memory.tiled_matmul n=64|97 impl=naive|shared|registers
compute.divergence n=4099 data=mixed|rare impl=branchy|predicated|compacted
compute.fma steps=8 impl=cuda
compute.gemm dtype=fp32 m=65 n=67 k=33 impl=cuda_naive
compute.gemm dtype=fp32 m=64 n=128 k=64 impl=cuda_tiled
compute.gemm dtype=fp32 m=2048 n=2176 k=80 impl=cuda_tiled
compute.gemm_ladder size=264 impl=loop|shared|register|wmma|mma_sync|wgmma
compute.gemv_skinny m=1 n=67 k=2048 impl=cuda
compute.ilp_unroll n=4099 chains=1|2|4|8 unroll=8
compute.mixed_gemm m=1 n=67 k=1152 impl=int8|int4
compute.occupancy n=4099 impl=block_32|block_256|shared_2|wide_1|rare_path|rare_path_bounded
compute.redundancy tokens=61 heads=3 impl=cuda_recompute|cuda_fast|cuda_hoisted
compute.softmax dtype=fp32|bf16 rows=5 cols=1000|8191|32768 impl=cuda
scheduling.dynamic_parallelism items=3 impl=host_each|host_once|device
scheduling.graph_conditional impl=host_each|while_node
scheduling.graph_params nodes=3 impl=stream|update|bucketed
scheduling.async_alloc kib=64 impl=pool|graph
scheduling.green_context sms=16 impl=partition
scheduling.persistent steps=5 impl=relaunch|persistent
scheduling.stream_priority impl=high
scheduling.grid_sync steps=5 blocks=8 impl=relaunch|atomic|cluster
scheduling.launch_latency burst=1 impl=cuda|cuda_5|cuda_19
scheduling.megakernel context=77 impl=persistent
scheduling.streams kernels=3 impl=many
scheduling.work_queue lengths=pareto|equal impl=static|blocks|queue|sorted
hopper.tma_copy size=65552 impl=vectors|cp_async|tma
hopper.cluster_dsmem n=16404 impl=global_atomics|cluster
hopper.wgmma_gemm m=136 n=136 k=72 impl=wgmma
"""
ODD = """
memory.stream op=copy|triad|dot|init n=5|4099 impl=triton
memory.coalescing n=4099 stride=1|8 impl=triton
memory.transpose n=33|129 impl=triton
memory.tiled_matmul n=97|200 impl=triton
memory.reduction n=7|4099 impl=triton
memory.gather_scatter op=gather|jagged_sum order=random rows=67|4099 impl=triton
memory.gather_scatter op=index_add order=random|sorted rows=67|4099 impl=lists|atomics
memory.scan_sort_topk op=scan|topk n=4099|70001 impl=triton
compute.gemm dtype=bf16 m=65 n=72 k=136 impl=triton
compute.softmax dtype=fp32|bf16 rows=67 cols=1000|8191 impl=triton
compute.attention dtype=bf16 b=1 h=3 s=77|519 d=128 causal=False|True impl=triton
compute.gemv_skinny m=1|5 n=67 k=2048 impl=triton
compute.gemm_shapes m=161 n=136|1408 k=520|8192 impl=tiles|stream_k
compute.grouped_gemm rows=333 experts=7 k=256 skew=zipf impl=triton
compute.mixed_gemm m=5|33 n=66 k=1152 impl=int8|int4
compute.quantize_cast to=fp8|int8 rows=67 cols=1000 impl=triton
compute.vecadd_tile op=add|rowsum n=67 impl=triton
compute.norm dtype=bf16|fp32 op=rms|layer direction=fwd|fwd_bwd rows=67 cols=1000|1001 impl=triton
compute.pointwise_fusion k=3|16 n=4099 impl=triton
compute.rope_swiglu dtype=bf16 op=rope|swiglu tokens=67 width=1024 impl=triton
compute.cross_entropy dtype=bf16 tokens=67 width=72 vocab=1001 impl=triton
compute.attention_mask dtype=bf16 mask=window|document|softcap h=3 s=519 impl=triton
compute.gqa_mla dtype=bf16 kind=gqa|mla b=3 s=301 impl=triton
compute.ssm_scan dtype=bf16 b=1 h=2 s=333 impl=triton
scheduling.kernel_fusion n=4099 impl=triton
scheduling.pdl steps=3 impl=plain|early
"""


def chosen(names: list[str], table: str = SMALL) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield cases and axes of a table, of the named cases if any are named."""
    for line in table.strip().splitlines():
        case, *bound = line.split()
        axes = [axis.split("=") for axis in bound]
        for values in product(*(texts.split("|") for _, texts in axes)):
            if not names or case in names:
                yield (
                    case,
                    {name: _value(text) for (name, _), text in zip(axes, values, strict=True)},
                )


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.lower())
    except msgspec.DecodeError:
        return text


def main(words: list[str]) -> int:
    """Check one variant after the other; return how many failed."""
    table = ODD if ONLY_ODD in words else SMALL
    names = [word for word in words if not word.startswith("--")]
    if unknown := set(names) - {name for name, _ in chosen([], table)}:
        print(f"not in the list: {', '.join(sorted(unknown))}")  # noqa: T201 - a script
        return len(unknown)
    device = open_device("cuda")
    failed = 0
    for name, axes in chosen(names, table):
        pack, _, case = name.partition(".")
        cases = load_pack(pack, f"module:perfsuite_{pack}@{ROOT / 'plugins' / pack}").cases
        print(f"{name} {axes}: ", end="", flush=True)  # noqa: T201 - what comes after may hang
        started = time.monotonic()
        try:
            session = Session(device, cases[case], axes, Settings(check_only=True), 0)
            if ONLY_LAUNCH in words:
                session.launches(1)[0]()
                device.synchronize()
            else:
                session.prepare()
        except Exception as error:  # noqa: BLE001 - the others are to be watched as well
            failed += 1
            print(f"failed: {type(error).__name__}: {error}")  # noqa: T201 - a script
        else:
            print(f"{time.monotonic() - started:.1f} s")  # noqa: T201 - a script
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
