"""The cases that the host takes part in, with no GPU: closed forms, traces, gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from perfsuite_memory import advance, allocator, checkpointing, copy_overlap, offload, unified

import perfsuite


@dataclass
class PlayedContext:
    """A context whose kernel is played by Python."""

    device: str = "cpu"
    place: str = "cpu"
    seed: int = 3

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays advance."""
        assert f"{name}(" in path.read_text(encoding="utf-8")
        rounds = int(options[0].removeprefix("-DROUNDS="))
        return lambda grid, block, values, n: play_advance(grid * block, values, n, rounds)


def play_advance(threads: int, values: Any, n: int, rounds: int) -> None:
    assert threads >= n == values.numel()
    now = values.long()
    for _ in range(rounds):
        now = (now * 1664525 + 1013904223) % 2**32
    values.copy_((now - ((now >> 31) << 32)).int())


def _check(workload: Any) -> float | None:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    return check(open_device("cpu"), workload, seed=3).known_error


@pytest.mark.parametrize("rounds", [0, 1, 2, 1024])
def test_closed_form_is_what_the_rounds_come_to(rounds: int) -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 12345], dtype=torch.int32)
    want = advance.expected(values, rounds)
    step = advance.load(PlayedContext(), rounds)
    step(values, len(values))
    assert torch.equal(values, want)


def test_serial_copies_in_and_out_and_an_early_copy_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(copy_overlap, "ROUNDS", 3)
    workload = copy_overlap.copy_overlap.build(PlayedContext(), mib=1, impl="serial")
    assert isinstance(workload, perfsuite.Workload)
    x = torch.randint(-(2**31), 2**31 - 1, (2**18,), dtype=torch.int32)
    outputs = [torch.zeros_like(x) for _ in range(2)]
    workload.fn(x, outputs[0])
    workload.wrong(x, outputs[1])
    want = workload.reference(x, outputs[0])
    assert [torch.equal(out, want) for out in outputs] == [True, False]


def test_trace_fills_the_slots_first_and_has_small_and_large_blocks() -> None:
    trace = allocator.trace_of(256)
    assert [slot for slot, _ in trace[: allocator.SLOTS]] == list(range(allocator.SLOTS))
    sizes = [size for _, size in trace]
    assert min(sizes) >= 512
    assert max(sizes) < 8 << 20
    assert min(sizes) < 2048
    assert max(sizes) > 4 << 20
    assert all(size % 4 == 0 for size in sizes)


def test_blocks_are_marked_and_one_handed_out_twice_is_refused() -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    context = open_device("cpu").context(3)
    workload = allocator.allocator.build(context, steps=64, impl="torch")
    assert isinstance(workload, perfsuite.Workload)
    assert workload.exact is not None
    assert workload.exact() == {"overlaps": 0.0}
    assert _check(workload) == 0


def test_blocks_that_lie_over_each_other_are_counted() -> None:
    given: list[int] = []
    trace = ((0, 64), (1, 64), (2, 64), (1, 32))
    addresses = itertools.count(0, 48)
    heap = allocator.Heap(lambda size: next(addresses), given.append, int)
    assert allocator.overlaps(heap, trace) == 3
    assert sorted(given) == [0, 48, 96, 144]


@pytest.mark.parametrize("impl", ["none", "selective", "full"])
def test_gradients_are_the_same_however_activations_are_kept(impl: str) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    case = checkpointing.checkpointing
    workload = case.build(open_device("cpu").context(3), width=128, seq=48, impl=impl)
    assert isinstance(workload, perfsuite.Workload)
    error = _check(workload)
    assert error is not None
    assert 0 < error < 0.015


def test_only_a_full_checkpoint_multiplies_matrices_again() -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    context = open_device("cpu").context(3)
    done = {}
    for impl in ("none", "selective", "full"):
        workload = checkpointing.checkpointing.build(context, width=64, seq=64, impl=impl)
        assert isinstance(workload, perfsuite.Workload)
        assert workload.exact is not None
        done[impl] = workload.exact()["executed_flops"]
    assert done["selective"] == done["none"]
    assert 1.15 < done["full"] / done["none"] < 1.34
    work = checkpointing.checkpointing.work
    assert work is not None
    # The counter does not know a CPU's attention.
    attention = 3 * checkpointing.LAYERS * 2 * 64**2 * 64
    assert done["none"] == work(width=64, seq=64, impl="none").flops - attention


@pytest.mark.parametrize("impl", ["device", "pinned"])
def test_adam_steps_alike_with_its_states_here_or_there(
    impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(offload, "PARAMETERS", 4099)
    workload = offload.offload.build(PlayedContext(), what="optimizer", impl=impl)
    assert isinstance(workload, perfsuite.Workload)
    p, g, m = torch.randn(3, 4099)
    before = [p, g, m, torch.rand(4099)]
    outs = [torch.full((4099,), float("nan")) for _ in range(3)]
    kept = [each.clone() for each in before]
    workload.fn(*before, *outs)
    assert all(map(torch.equal, before, kept))
    for got, want in zip(outs, workload.reference(*before, *outs), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    p_out, m_out, v_out = workload.wrong(*before, *outs)
    assert not torch.allclose(v_out, outs[2])
    assert torch.allclose(p_out, outs[0])
    assert torch.allclose(m_out, outs[1])


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
    torch.testing.assert_close(offload.reference(start, g, m, v)[0], p.detach())


def test_chain_is_right_and_an_overwritten_activation_is_refused() -> None:
    pytest.importorskip("torch")
    from perfsuite_memory import offload_activations

    workload = offload_activations.workload(PlayedContext(), "device", (256, 128, 8))
    error = _check(workload)
    assert error is not None
    assert error < 0.02


def test_reading_before_the_gpu_is_done_is_refused() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randint(-(2**31), 2**31 - 1, (4096,), dtype=torch.int32)
    want = unified.reference(x, x)
    stepped, early = x.clone(), torch.zeros_like(x)
    advance.load(PlayedContext(), unified.ROUNDS)(stepped, len(x))
    unified.before_the_gpu(x, early)
    assert torch.equal(stepped, want)
    assert not torch.equal(early, want)
