"""What XLA makes of a JAX program for a GPU: kernels, fusions and calls of libraries."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from typing import Any

from perfsuite import Case, Inspection, Metric, Regime, WrongResultError, case, package

METRICS = (
    Metric("kernels"),
    Metric("fusions", better="equal"),
    Metric("triton_fusions", better="equal"),
    Metric("library_calls", better="equal"),
    Metric("hlo_instructions", threshold=0.01),
    Metric("temp_bytes", "B"),
)
# The operation that a program needs.
PROGRAMS = {"mlp": "dot", "rms_norm": "rsqrt", "softmax": "exponential"}
# What XLA asks a device for, as the H100 SXM answers: CUDA C++ Programming Guide, technical
# specifications by compute capability; NVIDIA, H100 architecture.
H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 13 }
gpu_device_info {
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  l2_cache_size: 52428800
  memory_bandwidth: 3352320000000
  device_memory_size: 84978434048
}
"""
# What starts no kernel.
_FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element"}
_INSTRUCTION = re.compile(
    r"^ +(?:ROOT )?%[\w.-]+ = (?:\(.*?\)|\S+) ([a-z][a-z-]*)\((.*)", re.MULTILINE
)


def hlo_case() -> Case:
    """Return the case whose variants are these programs."""

    def build(ctx: Any, *, program: str, target: str) -> Inspection:
        """Compile a JAX program for an H100 that need not be there, and count what XLA makes of it.

        ``softmax`` takes 4096 x 1024 numbers in fp32, ``rms_norm`` 512 x 4096 in bf16, and
        ``mlp`` is Llama's, of 512 rows from 4096 to 14336 and back in bf16. Nothing is tuned by
        timing, as there is no GPU: kernels have XLA's default tiles. ``temp_bytes`` is what lies
        between kernels. A program without the operation that it needs is wrong.
        """
        return Inspection(read=lambda: read_metrics(program))

    declare = case(
        name="hlo",
        smoke={"program": "softmax", "target": "sm_90a"},
        nightly={"program": list(PROGRAMS), "target": "sm_90a"},
        needs=[package("jax"), package("jax_plugins.xla_cuda13")],
        regime=Regime.EXACT,
        target="target",
        metrics=METRICS,
        tags=["static"],
        source="OpenXLA, XLA:GPU architecture overview; JAX, ahead-of-time lowering",
    )
    return declare(build)


def read_metrics(program: str) -> dict[str, float]:
    """Compile a program and return its metrics; raises as ``metrics_of``."""
    made = _compiled(program)
    found = metrics_of(made.as_text(), PROGRAMS[program])
    return {**found, "temp_bytes": made.memory_analysis().temp_size_in_bytes}


def metrics_of(text: str, promised: str) -> dict[str, float]:
    """Count in a compiled HLO; raises ``WrongResultError`` where the promised operation is not."""
    every = Counter(opcode for opcode, _ in _INSTRUCTION.findall(text))
    if not every[promised]:
        raise WrongResultError(
            f"no {promised} in the compiled HLO", remedy="see what the program or XLA left out"
        )
    entry = _INSTRUCTION.findall(text[text.index("\nENTRY ") :])
    started = Counter(opcode for opcode, _ in entry if opcode not in _FREE)
    return {
        "kernels": started.total(),
        "fusions": started["fusion"],
        "triton_fusions": sum('"kind":"__triton' in rest for _, rest in entry),
        "library_calls": started["custom-call"],
        "hlo_instructions": every.total(),
    }


def _compiled(program: str) -> Any:
    jax: Any = import_module("jax")
    jax.config.update("jax_platforms", "cpu")  # a GPU that is there is not asked
    topologies = import_module("jax.experimental.topologies")
    described = topologies.get_topology_desc("", "cuda", target_config=H100, topology="1x1x1")
    place = jax.sharding.SingleDeviceSharding(described.devices[0])

    def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    def rms_norm(x: Any, weight: Any) -> Any:
        wide = x.astype("float32")
        scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
        return (wide * scale).astype(x.dtype) * weight

    function, dtype, shapes = {
        "mlp": (mlp, "bfloat16", ((512, 4096), (4096, 14336), (4096, 14336), (14336, 4096))),
        "rms_norm": (rms_norm, "bfloat16", ((512, 4096), (4096,))),
        "softmax": (jax.nn.softmax, "float32", ((4096, 1024),)),
    }[program]
    inputs = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape in shapes]
    return jax.jit(function).lower(*inputs).compile()
