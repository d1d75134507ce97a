"""A training loop that reads its loss at every step, or once at the end."""

from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import torch
from perfsuite_scheduling import counting

FEATURES = 64
# Stable: the largest eigenvalue of x'x / samples is about (1 + sqrt(64 / 512))**2 = 1.8 at most.
RATE = 0.1
_GUIDE = "PyTorch, Performance Tuning Guide:"


@perfsuite.operator(
    smoke={"samples": 512, "steps": 64},
    # 128 MiB on a GPU, so that a step takes it about as long as the host takes to issue one.
    nightly={"samples": 524288, "steps": 64},
    full={"samples": 524288, "steps": [16, 256]},
    # A step multiplies the matrix by the weights, and its transpose by the residuals.
    work=lambda samples, steps, impl: perfsuite.Work(
        read_bytes=4 * steps * 2 * samples * FEATURES,
        write_bytes=4 * steps * FEATURES,
        flops=4 * steps * samples * FEATURES,
        rate_dtype="fp32",
    ),
    metrics=[counting.READS],
    regime=perfsuite.Regime.END_TO_END,
    cold=False,
    tags=["synchronisation"],
    source=f"{_GUIDE} avoid unnecessary CPU-GPU synchronization; "
    "AI Systems Performance Engineering, chapter 7",
)
def host_sync(rng: Any, *, samples: int, steps: int) -> tuple[Any, ...]:
    """Fit 64 weights to the samples by gradient descent, fp32, and add up the losses.

    ``each_step`` adds ``loss.item()`` to a Python number, as loops that print their loss do: the
    host waits for the GPU at every step and the GPU then waits for the host. ``at_end`` adds up on
    the device and reads once, so that the host issues a step while the GPU works on another; with
    512 samples the GPU's part is too short to tell. Each returns the weights and the sum of
    losses, both on the host.
    """
    x = rng.randn(samples, FEATURES)
    return x, x @ rng.randn(FEATURES) + 0.1 * rng.randn(samples)


host_sync.exact(counting.reads)


def _fit(x: Any, y: Any, *, steps: int, reads: bool = False) -> tuple[Any, Any]:
    weights = x.new_zeros(FEATURES)
    total: Any = 0.0 if reads else x.new_zeros(())
    for _ in range(steps):
        residual = x @ weights - y
        weights = weights - (2 * RATE / len(x)) * (x.T @ residual)
        loss = residual.square().mean()
        total += loss.item() if reads else loss
    # In fp32, as the losses are, so that the check allows for what fp32 sums differ by.
    return weights, torch.tensor([total if reads else total.item()], dtype=torch.float32)


host_sync.impl(partial(_fit, reads=True), name="each_step")
host_sync.impl(
    _fit,
    name="at_end",
    beats=perfsuite.Beats(
        "each_step",
        1.0,
        f"{_GUIDE} an item() makes the host wait for the GPU; it gives no ratio, so only the "
        "direction is asked for",
        needs=(perfsuite.cuda(),),
        name="read",
    ),
)


@host_sync.wrong
def _too_early(x: Any, y: Any, *, steps: int) -> tuple[Any, Any]:
    """Read the sum before the last step has added its loss."""
    return _fit(x, y, steps=steps)[0], _fit(x, y, steps=steps - 1)[1]


@host_sync.reference
def _reference(x: Any, y: Any, *, steps: int) -> tuple[Any, Any]:
    """Descend in float64 on the normal equations, which know the samples by their products only."""
    x, y = x.cpu().double(), y.cpu().double()
    squared, crossed, offset = x.T @ x / len(x), x.T @ y / len(x), y @ y / len(x)
    weights, total = torch.zeros_like(crossed), torch.zeros_like(offset)
    for _ in range(steps):
        total += weights @ squared @ weights - 2 * crossed @ weights + offset
        weights -= 2 * RATE * (squared @ weights - crossed)
    return weights, total.reshape(1)
