"""What formulas, traces and references are about, against what is counted or said elsewhere."""

import pytest
from perfsuite_memory import advance, allocator, checkpointing, gather_scatter, offload

import perfsuite


def test_a_gather_must_read_what_is_drawn_at_least_once() -> None:
    case = gather_scatter.gather_scatter.declared()[0]
    assert isinstance(case, perfsuite.Case)
    assert case.work is not None
    once = case.work(op="gather", order="random", rows=2**20, impl="torch")
    assert once.read_bytes == (2**20 - 3) * 520
    one = case.work(op="gather", order="sorted", rows=2**20, impl="torch")
    assert one.read_bytes / (2**20 * 512) == pytest.approx(1 - 1 / 2.71828 + 8 / 512, rel=1e-4)


@pytest.mark.parametrize("rounds", [0, 1, 2, 1024])
def test_closed_form_is_what_the_rounds_come_to(rounds: int) -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 12345], dtype=torch.int32)
    want = advance.expected(values, rounds)
    now = values.long()
    for _ in range(rounds):
        now = (now * 1664525 + 1013904223) % 2**32
    assert torch.equal((now - ((now >> 31) << 32)).int(), want)


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
        workload = checkpointing.checkpointing.build(None, width=64, seq=64, impl=impl)
        assert workload.exact is not None
        inputs = workload.make_inputs(open_device("cpu").rng(3))
        done[impl] = workload.exact(*inputs)["executed_flops"]
    assert done["selective"] == done["none"]
    assert 1.15 < done["full"] / done["none"] < 1.34
    # The counter does not know a CPU's attention.
    attention = 3 * checkpointing.LAYERS * 2 * 64**2 * 64
    assert done["none"] == checkpointing.flops(width=64, seq=64) - attention


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
