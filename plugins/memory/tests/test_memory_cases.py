"""The references, and what they refuse, on small odd sizes; inputs that formulas are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from perfsuite_memory import (
    advance,
    allocator,
    async_prefetch,
    atomics,
    bank_conflicts,
    checkpointing,
    coalescing,
    copy_overlap,
    gather_scatter,
    l2_sweep,
    offload,
    pointer_chase,
    readonly_cache,
    reduction,
    scan_sort_topk,
    spill,
    stream,
    tiled_matmul,
    transpose,
    vectorized,
)

import perfsuite
from perfsuite.testing import check_pack

# Of each case what differs in its data, the smallest that still has a tail; torch's if it has one.
SMALL: list[tuple[perfsuite.Case | perfsuite.Operator, dict[str, Any]]] = [
    *((stream.stream, {"op": op, "n": 4099}) for op in stream.INPUTS),
    *((coalescing.coalescing, {"n": 1027, "stride": stride}) for stride in (1, 8)),
    *((transpose.transpose, {"n": n}) for n in (64, 67)),
    (vectorized.vectorized, {"n": 4099, "shift": 0, "grid": "few", "impl": "vectors"}),
    (vectorized.vectorized, {"n": 4096, "shift": 1, "grid": "full", "impl": "realigned"}),
    *((bank_conflicts.bank_conflicts, {"stride": s, "impl": "plain"}) for s in (1, 2, 32)),
    (l2_sweep.l2_sweep, {"kib": 1003, "impl": "cuda"}),
    (pointer_chase.pointer_chase, {"kib": 16}),
    *((tiled_matmul.tiled_matmul, {"n": n}) for n in (131, 512)),
    (async_prefetch.async_prefetch, {"rows": 17, "impl": "async", "stages": 4}),
    *((atomics.atomics, {"n": 4099, "keys": k, "impl": "shared"}) for k in ("uniform", "skewed")),
    (readonly_cache.readonly_cache, {"n": 4099, "lanes": "same", "impl": "plain"}),
    (spill.spill, {"panels": 3, "impl": "split"}),
    *(
        (reduction.reduction, {"n": n, "impl": impl})
        for n in (1, 255, 70001)
        for impl in ("torch", *reduction.KERNELS)
    ),
    *(
        (gather_scatter.gather_scatter, {"op": op, "order": order, "rows": rows})
        for op, order in (
            ("gather", "random"),
            ("gather", "sorted"),
            ("index_add", "random"),
            ("index_add", "sorted"),
            ("jagged_sum", "sorted"),
        )
        for rows in (64, 1000)
    ),
    *(
        (scan_sort_topk.scan_sort_topk, {"op": op, "n": n})
        for op in ("scan", "sort", "topk")
        for n in (1089, 66562)
    ),
    (scan_sort_topk.scan_sort_topk, {"op": "topk_rows", "n": 66562}),
    (allocator.allocator, {"steps": 64}),
    *(
        (checkpointing.checkpointing, {"width": 128, "seq": 48, "impl": impl})
        for impl in ("none", "selective", "full")
    ),
    *((offload.offload, {"what": w, "impl": "device"}) for w in ("optimizer", "activations")),
]
# Implementations that a CPU plays; others stand for their references.
PLAYED = {"torch", "none", "selective", "full", "device", *reduction.KERNELS}


@dataclass
class PlayedContext:
    """A context whose CUDA C++ kernels are played by Python, to see how builders launch them."""

    device: str = "cpu"
    place: str = "cpu"
    seed: int = 3

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays the kernel; it must be in the file."""
        text = path.read_text(encoding="utf-8")
        assert f"{name}(" in text or f"{path.stem.upper()}(" in text or "##" in text
        rounds = int(options[0].rpartition("=")[2]) if name == "advance" else 0
        plays: dict[str, Callable[..., None]] = {
            "reduction_atomic": _play_atomic,
            "advance": partial(_play_advance, rounds=rounds),
        }
        return plays.get(name, _play_sums)


def _play_atomic(grid: int, block: int, x: Any, out: Any, n: int) -> None:
    assert grid * block >= n == x.numel()
    out += x.sum()


def _play_sums(grid: int, block: int, x: Any, sums: Any, n: int) -> None:
    assert n == x.numel()
    assert grid == sums.numel()
    assert x.data_ptr() != sums.data_ptr()
    parts = x.new_zeros(-(-n // (grid * block)), grid, block)
    parts.view(-1)[:n] = x.reshape(-1)
    sums.copy_(parts.sum((0, 2)).view(sums.shape))


def _play_advance(grid: int, block: int, values: Any, n: int, rounds: int) -> None:
    assert grid * block >= n == values.numel()
    now = values.long()
    for _ in range(rounds):
        now = (now * 1664525 + 1013904223) % 2**32
    values.copy_((now - ((now >> 31) << 32)).int())


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small what no axis says."""
    monkeypatch.setattr(offload, "PARAMETERS", 4099)
    monkeypatch.setattr(offload, "TOKENS", 256)
    monkeypatch.setattr(offload, "WIDTH", 128)
    monkeypatch.setattr(copy_overlap, "ROUNDS", 3)


def _check(workload: Any) -> float:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    error = check(open_device("cpu"), workload, seed=3).known_error
    assert error is not None
    return error


def _name(value: Any) -> str:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value.name)


@pytest.mark.parametrize(("declared", "axes"), SMALL, ids=_name)
def test_reference_takes_what_is_right_and_refuses_mistakes(
    declared: perfsuite.Case | perfsuite.Operator, axes: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    axes = axes if declared is pointer_chase.pointer_chase else {"impl": "torch", **axes}
    workload = declared.build(PlayedContext(), **axes)
    assert isinstance(workload, perfsuite.Workload)
    if axes.get("impl") not in PLAYED:
        workload = structs.replace(workload, fn=workload.reference)
    exact = workload.tolerance == 0
    assert _check(workload) <= (0 if exact else workload.tolerance or 1e-5)


def test_pack_is_listed_as_it_must_be() -> None:
    check_pack(Path(__file__).parents[1], device="")


def test_a_gather_must_read_what_is_drawn_at_least_once() -> None:
    case = gather_scatter.gather_scatter.declared()[0]
    assert isinstance(case, perfsuite.Case)
    assert case.work is not None
    once = case.work(op="gather", order="random", rows=2**20, impl="torch")
    assert once.read_bytes == (2**20 - 3) * 520
    one = case.work(op="gather", order="sorted", rows=2**20, impl="torch")
    assert one.read_bytes / (2**20 * 512) == pytest.approx(1 - 1 / 2.71828 + 8 / 512, rel=1e-4)


def test_tree_ends_in_one_sum() -> None:
    assert reduction.tree_sizes(2**28) == (2**20, 2**12, 16, 1)
    assert reduction.tree_sizes(257) == (2, 1)
    assert reduction.tree_sizes(1) == (1,)


@pytest.mark.parametrize("rounds", [0, 1, 2, 1024])
def test_closed_form_is_what_the_rounds_come_to(rounds: int) -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 12345], dtype=torch.int32)
    want = advance.expected(values, rounds)
    advance.load(PlayedContext(), rounds)(values, len(values))
    assert torch.equal(values, want)


def test_serial_copies_in_and_out() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randint(-(2**31), 2**31 - 1, (2**18,), dtype=torch.int32)
    out = torch.zeros_like(x)
    copy_overlap.copy_overlap.launch(PlayedContext(), mib=1, impl="serial")(x, out)
    assert torch.equal(out, advance.expected(x, copy_overlap.ROUNDS))


def test_trace_fills_the_slots_first_and_has_small_and_large_blocks() -> None:
    trace = allocator.trace_of(256)
    assert [slot for slot, _ in trace[: allocator.SLOTS]] == list(range(allocator.SLOTS))
    sizes = [size for _, size in trace]
    assert 512 <= min(sizes) < 2048
    assert 4 << 20 < max(sizes) < 8 << 20
    assert all(size % 4 == 0 for size in sizes)


def test_blocks_that_lie_over_each_other_are_counted() -> None:
    given: list[int] = []
    addresses = iter(range(0, 192, 48))
    heap = allocator.Heap(lambda size: next(addresses), given.append, int)
    assert allocator.overlaps(heap, ((0, 64), (1, 64), (2, 64), (1, 32))) == 3
    assert sorted(given) == [0, 48, 96, 144]


def test_only_a_full_checkpoint_multiplies_matrices_again() -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    done = {}
    for impl in ("none", "selective", "full"):
        workload = checkpointing.checkpointing.build(PlayedContext(), width=64, seq=64, impl=impl)
        assert workload.exact is not None
        inputs = workload.make_inputs(open_device("cpu").rng(3))
        done[impl] = workload.exact(*inputs)["executed_flops"]
    assert done["selective"] == done["none"]
    assert 1.15 < done["full"] / done["none"] < 1.34
    # The counter does not know a CPU's attention.
    attention = 3 * checkpointing.LAYERS * 2 * 64**2 * 64
    assert done["none"] == checkpointing.flops(width=64, seq=64) - attention


def test_adam_steps_alike_with_its_states_there() -> None:
    pytest.importorskip("torch")
    here = offload.offload.build(PlayedContext(), what="optimizer", impl="device")
    there = offload.offload.launch(PlayedContext(), what="optimizer", impl="pinned")
    assert _check(structs.replace(here, fn=there)) < 1e-5


def test_adam_is_torch_s_own() -> None:
    torch = pytest.importorskip("torch")
    start, g = torch.randn(2, 100, dtype=torch.float64)
    p = start.clone().requires_grad_()
    adam = torch.optim.Adam([p], lr=offload.RATE, betas=(0.9, 0.999), eps=1e-8)
    m, v = torch.randn(100, dtype=torch.float64), torch.rand(100, dtype=torch.float64)
    step = torch.tensor(float(offload.STEP - 1))
    adam.state[p] = {"step": step, "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    p.grad = g
    adam.step()
    found = offload.reference(start, g, m, v, what="optimizer")[0]
    torch.testing.assert_close(found, p.detach())
