"""What a training step need not keep on the GPU, kept on the host: states and activations."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import torch
from perfsuite_memory import copy_overlap

# Adam's states of this many parameters: 128 MiB that go in and come back.
PARAMETERS = 2**24
BETA_1, BETA_2, RATE, EPSILON, STEP = 0.9, 0.999, 1e-3, 1e-8, 10
STREAMS, CHUNKS = 3, 8
# A chain of matrix products in bf16, whose inputs are 16 MiB each.
TOKENS, WIDTH, LAYERS = 4096, 2048, 8


def _work(*, what: str, impl: str) -> perfsuite.Work:
    # What lives on the host crosses the link both ways, and that takes longest. Adam's states do so
    # at once, as in copy_overlap. Activations go out before any comes back: the forward pass is
    # over (0.5 ms) long before the last of them is there (2.4 ms), and that one is wanted first.
    if what == "optimizer":
        if impl != "device":
            return perfsuite.Work(read_bytes=8 * PARAMETERS, link="pcie")
        # Parameters, gradients and two states in, all but the gradients out.
        return perfsuite.Work(read_bytes=16 * PARAMETERS, write_bytes=12 * PARAMETERS)
    outputs, weights = 2 * LAYERS * TOKENS * WIDTH, 2 * LAYERS * WIDTH**2
    if impl != "device":
        return perfsuite.Work(read_bytes=outputs, write_bytes=outputs, link="pcie")
    return perfsuite.Work(
        read_bytes=2 * TOKENS * WIDTH + weights,
        write_bytes=weights,
        # Forward, weights, inputs; the chain's own input needs no gradient.
        flops=(3 * LAYERS - 1) * 2 * TOKENS * WIDTH**2,
        rate_dtype="bf16",
    )


@perfsuite.operator(
    smoke={"what": "optimizer"},
    nightly={"what": "activations"},
    needs=[perfsuite.cuda()],
    work=_work,
    regime=perfsuite.Regime.END_TO_END,
    cold=False,
    # A bf16 value is off by up to 2^-9; each layer adds two roundings forward and two backward.
    tolerance=lambda *, what: 2e-2 if what == "activations" else None,
    tags=["training", "overlap"],
    source="Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, 2021; PyTorch, "
    "torch.autograd.graph.save_on_cpu",
)
def offload(rng: Any, *, what: str, impl: str) -> Any:
    """Step Adam for 2^24 parameters, or take the gradients of 8 products with tanh between them.

    device keeps everything on the GPU; pinned keeps the states, or what autograd saves, in
    page-locked host memory and copies it when it is wanted (activations: torch's save_on_cpu);
    overlapped copies in pieces on streams, and ahead of when it is wanted. On an H200 its
    activations move at 91 % of what the link gives one way, its optimizer's states, in and out at
    once, at 74 %: of eight pieces the first on its way in and the last on its way out meet none.
    """
    if what == "activations":
        weights = [rng.randn(WIDTH, WIDTH) * WIDTH**-0.5 for _ in range(LAYERS)]
        x = rng.randn(TOKENS, WIDTH, dtype="bfloat16")
        return x, *(weight.bfloat16().requires_grad_() for weight in weights)
    n, place = PARAMETERS, "device" if impl == "device" else "pinned"
    states = rng.randn(n, place=place), rng.rand(n, place=place)
    # Results are compared in the order in which they are made here.
    outs = rng.empty(n), *(rng.empty(n, place=place) for _ in states)
    return rng.randn(n), rng.randn(n), *states, *outs


@offload.reference
def reference(*arrays: Any, what: str) -> tuple[Any, ...]:
    """Return what is right in float64, by Kingma and Ba's formulas or the chain rule."""
    if what == "activations":
        return _chain_rule(*arrays)
    p, g, m, v = (array.to(arrays[0].device).double() for array in arrays[:4])
    m = BETA_1 * m + (1 - BETA_1) * g
    v = BETA_2 * v + (1 - BETA_2) * g**2
    ratio = (m / (1 - BETA_1**STEP)) / ((v / (1 - BETA_2**STEP)) ** 0.5 + EPSILON)
    return p - RATE * ratio, m, v


def _chain_rule(x: Any, *weights: Any) -> tuple[Any, ...]:
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


@offload.wrong
def _too_early(*arrays: Any, what: str) -> tuple[Any, ...]:
    """Copy the second moment back before it was updated; read another activation's memory."""
    if what == "activations":
        first, _, *others = gradients(nullcontext, *arrays)
        return (first, others[-1], *others)
    p_out, m_out, _ = reference(*arrays, what=what)
    return p_out.float(), m_out.float(), arrays[3]


@offload.impl
def _device(ctx: Any, *, what: str) -> Any:
    return _step if what == "optimizer" else partial(gradients, nullcontext)


@offload.impl
def _pinned(ctx: Any, *, what: str) -> Any:
    if what == "optimizer":
        return _in_turn
    return partial(gradients, partial(torch.autograd.graph.save_on_cpu, pin_memory=True))


@offload.impl
def _overlapped(ctx: Any, *, what: str) -> Any:
    return _in_pieces(ctx.place) if what == "optimizer" else partial(gradients, Mover().keep)


def _step(p: Any, g: Any, m: Any, v: Any, *outs: Any) -> None:
    """Write the step to outs, which may be the states themselves."""
    p_out, m_out, v_out = outs
    torch.lerp(m, g, 1 - BETA_1, out=m_out)
    torch.mul(v, BETA_2, out=v_out).addcmul_(g, g, value=1 - BETA_2)
    root = (v_out / (1 - BETA_2**STEP)).sqrt_().add_(EPSILON)
    torch.addcdiv(p, m_out, root, value=-RATE / (1 - BETA_1**STEP), out=p_out)


def _moved(arrays: Any, near: Any) -> None:
    """Copy the states into buffers near the parameters, step there, and copy them back."""
    p, g, m, v, p_out, m_out, v_out = arrays
    for buffer, state in zip(near, (m, v), strict=True):
        buffer.copy_(state, non_blocking=True)
    _step(p, g, *near, p_out, *near)
    for far, buffer in zip((m_out, v_out), near, strict=True):
        far.copy_(buffer, non_blocking=True)


def _in_turn(*arrays: Any) -> None:
    _moved(arrays, [torch.empty_like(arrays[0]) for _ in "mv"])


def _in_pieces(place: str) -> Any:
    size = -(-PARAMETERS // CHUNKS)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    buffers = [torch.empty(2, size, device=place) for _ in streams]

    def launch(*arrays: Any) -> None:
        pieces = list(zip(*(array.split(size) for array in arrays), strict=True))

        def job(index: int, where: int) -> None:
            piece = pieces[index]
            _moved(piece, [buffer[: len(piece[0])] for buffer in buffers[where]])

        copy_overlap.fork(streams, len(pieces), job)

    return launch


def gradients(keep: Any, x: Any, *weights: Any) -> tuple[Any, ...]:
    """Return the weights' gradients of the mean square of what the chain ends in."""
    with keep():
        for weight in weights:
            x = torch.tanh(x @ weight)
    loss = (x if x.dtype == torch.float64 else x.float()).square().mean()
    return tuple(torch.autograd.grad(loss, weights))


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
        self.saved: list[Saved] = []
        self._stream = torch.cuda.Stream()
        self._hosts: list[Any] = []

    def keep(self) -> Any:
        """Return the context in which autograd saves what it needs here."""
        self.saved.clear()
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: Any) -> Any:
        """Return what stands for a tensor in autograd's graph: itself, or its place here."""
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
        if saved.arrived is None:
            with torch.cuda.stream(self._stream):
                saved.near = saved.host.to("cuda", non_blocking=True)
                saved.arrived = self._stream.record_event()
