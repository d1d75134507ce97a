"""Activations of a chain of matrix products, kept on the host between forward and backward."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import perfsuite

Shape = tuple[int, int, int]


def workload(ctx: Any, impl: str, shape: Shape) -> perfsuite.Workload:
    """Return the gradients of a chain of (tokens, width, layers) as a workload."""
    tokens, width, layers = shape
    keepers = {"device": _kept_here, "pinned": _kept_by_torch, "overlapped": _kept_beside}
    keep = keepers[impl]()

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        weights = [rng.randn(width, width) * (1 / width) ** 0.5 for _ in range(layers)]
        x = rng.randn(tokens, width, dtype="bfloat16")
        return x, *(weight.bfloat16().requires_grad_() for weight in weights)

    return perfsuite.Workload(
        fn=partial(gradients, keep),
        make_inputs=make_inputs,
        reference=_reference,
        wrong=_overwritten,
        # A bf16 value is off by up to 2^-9; each layer adds two roundings forward and two backward.
        tolerance=2e-2,
        captures=False,
    )


def gradients(keep: Any, x: Any, *weights: Any) -> tuple[Any, ...]:
    """Return the weights' gradients of the mean square of what the chain ends in."""
    import torch

    with keep():
        for weight in weights:
            x = torch.tanh(x @ weight)
    loss = (x if x.dtype == torch.float64 else x.float()).square().mean()
    return tuple(torch.autograd.grad(loss, weights))


def _kept_here() -> Any:
    return nullcontext


def _kept_by_torch() -> Any:
    import torch

    return partial(torch.autograd.graph.save_on_cpu, pin_memory=True)


def _kept_beside() -> Any:
    import torch

    mover = Mover()

    def keep() -> Any:
        mover.saved.clear()
        return torch.autograd.graph.saved_tensors_hooks(mover.pack, mover.unpack)

    return keep


@dataclass(slots=True)
class Saved:
    """One activation on the host: where it was, how often it is still wanted, and back here."""

    index: int
    address: int
    host: Any
    uses: int = 1
    near: Any = None
    arrived: Any = None


class Mover:
    """Copies activations out on a stream of its own, and back one ahead of the backward pass.

    Unlike save_on_cpu it leaves weights where they are, keeps what two operators save once, and
    takes its host memory once.
    """

    def __init__(self) -> None:
        import torch

        self.saved: list[Saved] = []
        self._stream = torch.cuda.Stream()
        self._hosts: list[Any] = []

    def pack(self, tensor: Any) -> Any:
        """Return what stands for a tensor in autograd's graph: itself, or its place here."""
        import torch

        if tensor.is_leaf:
            return tensor
        # A result that is the next product's input is saved twice in a row, while it lives.
        if self.saved and self.saved[-1].address == tensor.data_ptr():
            self.saved[-1].uses += 1
            return self.saved[-1]
        index = len(self.saved)
        if index == len(self._hosts):
            self._hosts.append(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True))
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._hosts[index].copy_(tensor.detach(), non_blocking=True)
        tensor.record_stream(self._stream)
        self.saved.append(Saved(index, tensor.data_ptr(), self._hosts[index]))
        return self.saved[-1]

    def unpack(self, saved: Any) -> Any:
        """Return the tensor, and fetch the one that is wanted next."""
        import torch

        if not isinstance(saved, Saved):
            return saved
        for each in self.saved[max(0, saved.index - 1) : saved.index + 1][::-1]:
            self._fetch(each)
        here = torch.cuda.current_stream()
        here.wait_event(saved.arrived)
        near = saved.near
        near.record_stream(here)
        saved.uses -= 1
        if not saved.uses:
            saved.near = None
        return near

    def _fetch(self, saved: Saved) -> None:
        import torch

        if saved.arrived is None:
            with torch.cuda.stream(self._stream):
                saved.near = saved.host.to("cuda", non_blocking=True)
                saved.arrived = self._stream.record_event()


def _reference(x: Any, *weights: Any) -> tuple[Any, ...]:
    """Return the gradients in float64 by the chain rule written out."""
    inputs = [x.double()]
    wide = [weight.detach().double() for weight in weights]
    for weight in wide:
        inputs.append((inputs[-1] @ weight).tanh())
    backward = 2 * inputs[-1] / inputs[-1].numel()
    found = []
    for index in reversed(range(len(wide))):
        backward = backward * (1 - inputs[index + 1] ** 2)
        found.append(inputs[index].T @ backward)
        backward = backward @ wide[index].T
    return tuple(reversed(found))


def _overwritten(x: Any, *weights: Any) -> tuple[Any, ...]:
    """Read the first activation back from memory that had been given to another."""
    found = list(gradients(nullcontext, x, *weights))
    found[1] = found[-1]
    return tuple(found)
