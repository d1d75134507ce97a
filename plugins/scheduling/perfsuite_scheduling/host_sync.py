"""A training loop that reads its loss at every step, or once at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Regime, Work, Workload, cuda
from perfsuite.gpu import torch
from perfsuite_scheduling import counting

FEATURES = 64
# Stable: the largest eigenvalue of x'x / samples is about (1 + sqrt(64 / 512))**2 = 1.8 at most.
RATE = 0.1
_VALUE_BYTES = 4


def _work(samples: int, steps: int, impl: str) -> Work:
    # A step multiplies the matrix by the weights, and its transpose by the residuals.
    matrix = samples * FEATURES
    return Work(
        read_bytes=steps * 2 * matrix * _VALUE_BYTES,
        write_bytes=steps * FEATURES * _VALUE_BYTES,
        flops=4.0 * steps * matrix,
        rate_dtype="fp32",
    )


@perfsuite.case(
    smoke={"samples": 512, "steps": 64, "impl": ["each_step", "at_end"]},
    # 128 MiB on a GPU, so that a step takes it about as long as the host takes to issue one.
    nightly={"samples": 524288, "steps": 64, "impl": ["each_step", "at_end"]},
    full={"samples": 524288, "steps": [16, 256], "impl": ["each_step", "at_end"]},
    work=_work,
    metrics=[counting.READS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["synchronisation"],
    source="PyTorch, Performance Tuning Guide: avoid unnecessary CPU-GPU synchronization; "
    "AI Systems Performance Engineering, chapter 7",
)
def host_sync(ctx: Any, samples: int, steps: int, impl: str) -> Workload:
    """Fit 64 weights to the samples by gradient descent, fp32, and add up the losses.

    ``each_step`` adds ``loss.item()`` to a Python number, as loops that print their loss do: the
    host waits for the GPU at every step and the GPU then waits for the host. ``at_end`` adds up on
    the device and reads once, so that the host issues a step while the GPU works on another; with
    512 samples the GPU's part is too short to tell. Each returns the weights and the sum of
    losses, both on the host.
    """
    run = {"each_step": _read_each_step, "at_end": _read_at_end}[impl]

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        x = rng.randn(samples, FEATURES)
        y = x @ rng.randn(FEATURES) + 0.1 * rng.randn(samples)
        return x, y

    def exact() -> dict[str, float]:
        x = torch.ones(512, FEATURES, device=ctx.place)
        reads = perfsuite.count_operators(lambda: run(x, x[:, 0], steps))[counting.READ]
        return {"host_reads": float(reads)}

    return Workload(
        fn=lambda x, y: run(x, y, steps),
        make_inputs=make_inputs,
        reference=lambda x, y: _reference(x, y, steps),
        wrong=lambda x, y: _read_too_early(x, y, steps),
        captures=False,
        exact=exact,
    )


def _step(x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
    residual = x @ weights - y
    return weights - (2 * RATE / len(x)) * (x.T @ residual), residual.square().mean()


def _read_each_step(x: Any, y: Any, steps: int) -> tuple[Any, Any]:
    weights, total = x.new_zeros(FEATURES), 0.0
    for _ in range(steps):
        weights, loss = _step(x, y, weights)
        total += loss.item()
    return weights, _on_host(total)


def _read_at_end(x: Any, y: Any, steps: int) -> tuple[Any, Any]:
    weights, total = x.new_zeros(FEATURES), x.new_zeros(())
    for _ in range(steps):
        weights, loss = _step(x, y, weights)
        total += loss
    return weights, _on_host(total.item())


def _read_too_early(x: Any, y: Any, steps: int) -> tuple[Any, Any]:
    """Read the sum before the last step has added its loss."""
    weights, total = x.new_zeros(FEATURES), x.new_zeros(())
    read = 0.0
    for _ in range(steps):
        read = total.item()
        weights, loss = _step(x, y, weights)
        total += loss
    return weights, _on_host(read)


def _on_host(total: float) -> Any:
    # In fp32, as the losses are, so that the check allows for what fp32 sums differ by.
    return torch.tensor([total], dtype=torch.float32)


def _reference(x: Any, y: Any, steps: int) -> tuple[Any, Any]:
    """Descend in float64 on the normal equations, which know the samples by their products only."""
    x, y = x.cpu().double(), y.cpu().double()
    squared, crossed, offset = x.T @ x / len(x), x.T @ y / len(x), y @ y / len(x)
    weights, total = torch.zeros_like(crossed), torch.zeros_like(offset)
    for _ in range(steps):
        total += weights @ squared @ weights - 2 * crossed @ weights + offset
        weights -= 2 * RATE * (squared @ weights - crossed)
    return weights, total.reshape(1)


def _claims() -> tuple[Claim, ...]:
    return (
        Claim(
            name="read_at_end",
            case="host_sync",
            faster={"impl": "at_end"},
            than={"impl": "each_step"},
            by=1.0,
            needs=(cuda(),),
            source="PyTorch, Performance Tuning Guide: an item() makes the host wait for the GPU; "
            "it gives no ratio, so only the direction is asked for",
        ),
    )


Run = Callable[[Any, Any, int], tuple[Any, Any]]
CASES: tuple[perfsuite.Case | Claim, ...] = (host_sync, *_claims())
