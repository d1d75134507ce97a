"""The cases about access patterns and caches, without a GPU: references, work and machine code."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pack_scripts import lines_of
from perfsuite_memory import (
    async_prefetch,
    atomics,
    bank_conflicts,
    kernels_access,
    l2_sweep,
    pointer_chase,
    readonly_cache,
    spill,
    tiled_matmul,
    vectorized,
)

import perfsuite

KERNELS = {kernel.name: kernel for kernel in kernels_access.kernels()}
CUDA = sorted(name for name, kernel in KERNELS.items() if kernel.language == "cuda")

# Of each case what differs in its data, the smallest that still has a tail.
SMALL: list[tuple[perfsuite.Case, dict[str, Any]]] = [
    (vectorized.vectorized, {"n": 4099, "shift": 0, "grid": "few", "impl": "vectors"}),
    (vectorized.vectorized, {"n": 4096, "shift": 1, "grid": "full", "impl": "realigned"}),
    *((bank_conflicts.bank_conflicts, {"stride": s, "impl": "plain"}) for s in (1, 2, 32)),
    (l2_sweep.l2_sweep, {"kib": 1003, "impl": "cuda"}),
    (pointer_chase.pointer_chase, {"kib": 16}),
    (tiled_matmul.tiled_matmul, {"n": 131, "impl": "shared"}),
    (async_prefetch.async_prefetch, {"rows": 17, "impl": "async", "stages": 4}),
    *((atomics.atomics, {"n": 4099, "keys": k, "impl": "shared"}) for k in ("uniform", "skewed")),
    (readonly_cache.readonly_cache, {"n": 4099, "lanes": "same", "impl": "plain"}),
    (spill.spill, {"panels": 3, "impl": "split"}),
]


class Loader:
    """A context on a CPU that notes which kernels a builder loads, and compiles none."""

    place = "cpu"

    def __init__(self) -> None:
        self.loaded: list[tuple[str, str, tuple[str, ...]]] = []

    def load_cuda(self, path: Path, name: str, *, options: tuple[str, ...]) -> Any:
        """Note what a builder asks for."""
        self.loaded.append((str(path), name, options))
        return SimpleNamespace()


def _name(value: object) -> str:
    return value.name if isinstance(value, perfsuite.Case) else "-".join(map(str, value.values()))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("case", "axes"), SMALL, ids=_name)
def test_reference_refuses_the_control(case: perfsuite.Case, axes: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    device = open_device("cpu")
    rng = device.rng(3)
    workload = case.build(Loader(), **axes)
    assert isinstance(workload, perfsuite.Workload)
    inputs = workload.make_inputs(rng)
    expected = workload.reference(*inputs)
    assert device.compare(expected, expected, workload.tolerance).is_right
    device.poison(rng.outputs)
    workload.wrong(*inputs)
    assert not device.compare(tuple(rng.outputs), expected, workload.tolerance).is_right


def test_the_axes_load_the_kernels_that_are_listed() -> None:
    pytest.importorskip("torch")
    ctx = Loader()
    for impl in vectorized.WIDTHS:
        vectorized.vectorized.build(
            ctx, n=64, shift=int(impl == "realigned"), grid="few", impl=impl
        )
    for impl, stride in kernels_access.BANKS:
        bank_conflicts.bank_conflicts.build(ctx, stride=stride, impl=impl)
    l2_sweep.l2_sweep.build(ctx, kib=64, impl="cuda")
    pointer_chase.pointer_chase.build(ctx, kib=64)
    for impl in tiled_matmul.GEOMETRY:
        tiled_matmul.tiled_matmul.build(ctx, n=2048, impl=impl)
    tiled_matmul.tiled_matmul.build(ctx, n=tiled_matmul.ODD_N, impl="registers")
    for impl, stages in (("sync", 1), *(("async", stages) for stages in (1, 2, 3, 4))):
        async_prefetch.async_prefetch.build(ctx, rows=8, impl=impl, stages=stages)
    for impl in atomics.IMPLS:
        atomics.atomics.build(ctx, n=64, keys="uniform", impl=impl)
    for impl in readonly_cache.IMPLS:
        readonly_cache.readonly_cache.build(ctx, n=64, lanes="same", impl=impl)
    for impl in spill.GEOMETRY:
        spill.spill.build(ctx, panels=8, impl=impl)
    handed = {(k.file, k.function, k.options) for k in KERNELS.values() if k.language == "cuda"}
    assert set(ctx.loaded) == handed


@functools.cache
def _image(file: str, options: tuple[str, ...]) -> bytes:
    core = pytest.importorskip("cuda.core")
    macros = [tuple(option[2:].split("=")) for option in options]
    chosen = core.ProgramOptions(std="c++17", arch="sm_90", define_macro=macros)
    source = Path(file).read_text(encoding="utf-8")
    return bytes(core.Program(source, "c++", chosen).compile("cubin").code)


@functools.cache
def _code(name: str) -> perfsuite.MachineCode:
    kernel = KERNELS[name]
    return perfsuite.read_code(_image(kernel.file, kernel.options), kernel.function)


@pytest.mark.parametrize("name", CUDA)
def test_only_the_kernel_that_is_about_spills_spills(name: str) -> None:
    code = _code(name)
    spills = bool(code.stack_bytes or code.opcodes.of("LDL", "STL"))
    assert spills == (name == "spill_center_spilled")


VECTORS = atomics.UNROLL + 1
COUNTS = 4 * VECTORS + 1

# What each kernel is for, as opcodes (with modifiers) and how often they stand in the code.
SEEN = {
    "vectorized_copy_words": {"LDG.E.CONSTANT": 1, "STG.E": 1},
    "vectorized_copy_pairs": {"LDG.E.64.CONSTANT": 1, "STG.E.64": 1},
    "vectorized_copy_vectors": {"LDG.E.128.CONSTANT": 1, "STG.E.128": 1},
    "vectorized_copy_realigned": {"LDG.E.128.CONSTANT": 1, "SHFL.DOWN": 1, "STG.E.128": 1},
    # One read for each of a lane's words: none was kept from one pass to the next.
    "bank_conflicts_read_plain_1": {"LDS": 32},
    "bank_conflicts_read_plain_32": {"LDS": 32},
    "bank_conflicts_read_padded_32": {"LDS": 32},
    "bank_conflicts_read_swizzled_32": {"LDS": 32},
    "bank_conflicts_read_vectors_4": {"LDS.128": 8},
    "l2_sweep_read_passes": {"LDG.E.128.STRONG.GPU": l2_sweep.UNROLL},
    # The chase is unrolled eight times; two loads come before it.
    "pointer_chase_chase": {"LDG.E": 10},
    "tiled_matmul_matmul_shared": {"FFMA": 32, "BAR.SYNC.DEFER_BLOCKING": 2},
    # 128 products of 8 + 16 floats, six vectors, for each of eight steps, and the first step's six.
    # Copies of three stages: floats of a, which are turned, and vectors of b, or floats of both.
    "tiled_matmul_matmul_registers": {
        "FFMA": 1024,
        "LDS.128": 54,
        "LDGSTS.E": 3 * 8,
        "LDGSTS.E.BYPASS.128": 3 * 2,
    },
    "tiled_matmul_matmul_registers_odd": {"FFMA": 1024, "LDS.128": 54, "LDGSTS.E": 3 * (8 + 8)},
    "async_prefetch_filter_sync": {"LDG.E.128.CONSTANT": 1, "STS.128": 1, "LDS.128": 4},
    **{
        f"async_prefetch_filter_async_{n}": {"LDGSTS.E.BYPASS.128": n, "LDG.E.128.CONSTANT": 0}
        for n in (1, 2, 3, 4)
    },
    # Keys of all vectors that are loaded at once, of one behind them, and of what is no vector.
    "atomics_count_global": {"REDG.E.ADD.STRONG.GPU": COUNTS, "LDG.E.128.CONSTANT": VECTORS},
    "atomics_count_elected": {"REDG.E.ADD.STRONG.GPU": COUNTS},
    # The hardware counts equal lanes by itself where each adds one.
    "atomics_count_shared": {"ATOMS.POPC.INC.32": COUNTS},
    "atomics_count_shared_elected": {"ATOMS.ADD": COUNTS},
    "spill_center_bounded": {"LDG.E.CONSTANT": spill.DEPTH, "STG.E": spill.DEPTH},
    "spill_center_split": {"LDG.E.CONSTANT": spill.DEPTH // 4, "STG.E": spill.DEPTH // 4},
}


@pytest.mark.parametrize("name", sorted(SEEN))
def test_machine_code_shows_what_a_kernel_is_for(name: str) -> None:
    counts = _code(name).opcodes.counts
    assert {opcode: counts.get(opcode, 0) for opcode in SEEN[name]} == SEEN[name]


def test_lookups_go_where_their_names_say() -> None:
    codes = {impl: _code(f"readonly_cache_look_up_{impl}").opcodes for impl in readonly_cache.IMPLS}
    # Two accesses of 4 bytes a key, in each of the copies that the compiler makes of the loop.
    assert codes["plain"].counts.get("LDG.E.CONSTANT", 0) == 0
    assert codes["readonly"].counts.get("LDG.E", 0) == 0
    assert codes["constant"].of("LDC") > codes["constant"].of("LDG")
    assert codes["shared"].of("LDS") >= readonly_cache.LOOKUPS


def test_work_counts_each_byte_and_operation_that_must_be() -> None:
    def work(case: perfsuite.Case, **axes: Any) -> perfsuite.Work:
        assert case.work is not None
        return case.work(**axes)

    axes = {"n": 1000, "shift": 0, "grid": "full", "impl": "words"}
    assert work(vectorized.vectorized, **axes).bytes == 8000
    assert work(tiled_matmul.tiled_matmul, n=100, impl="naive").flops == 2e6
    assert work(tiled_matmul.tiled_matmul, n=100, impl="naive").bytes == 12e4
    axes = {"rows": 10, "impl": "sync", "stages": 1}
    assert work(async_prefetch.async_prefetch, **axes).flops == 26 * 10 * 1024
    assert work(l2_sweep.l2_sweep, kib=4096, impl="cuda").bytes == 2**30
    assert work(l2_sweep.l2_sweep, kib=4096, impl="cuda").link == "l2"
    assert work(l2_sweep.l2_sweep, kib=2**20, impl="cuda").link == "hbm"
    assert work(bank_conflicts.bank_conflicts, stride=1, impl="plain").link == "shared"


@pytest.mark.parametrize("module", [tiled_matmul, async_prefetch])
def test_what_copies_ahead_asks_for_a_gpu_that_can(module: Any) -> None:
    # All kernels of a file are compiled, also those beside the one that holds cp.async.
    assert "cp.async" in module.SOURCE.read_text(encoding="utf-8")
    case = getattr(module, module.SOURCE.stem)
    impls = [impl for impl in case.axes["impl"] if impl not in {"torch", "triton"}]
    asks = [need for need in case.needs if (need.kind, need.value) == ("arch", "sm_80+")]
    assert all(any(need.applies({"impl": impl}) for need in asks) for impl in impls)
    assert all(perfsuite.arch("sm_80+") in claim.needs for claim in module.CLAIMS)


def test_triton_is_right_on_sizes_with_tails() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    lines_of(Path(__file__).with_name("interpret_access.py"), TRITON_INTERPRET="1")


def test_triton_has_the_tiles_that_are_listed() -> None:
    pytest.importorskip("triton")
    from perfsuite_memory import tiled_matmul_triton

    assert KERNELS["tiled_matmul_triton"].constants == {
        "TILE": tiled_matmul_triton.TILE,
        "DEPTH": tiled_matmul_triton.DEPTH,
    }
