"""What a training step need not keep on the GPU, kept on the host: states and activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite_memory import copy_overlap

Launch = Callable[..., Any]

# Adam's states of this many parameters: 128 MiB that go in and come back.
PARAMETERS = 2**24
BETA_1, BETA_2, RATE, EPSILON, STEP = 0.9, 0.999, 1e-3, 1e-8, 10
STREAMS, CHUNKS = 3, 8
# A chain of matrix products in bf16, whose inputs are 16 MiB each.
TOKENS, WIDTH, LAYERS = 4096, 2048, 8


def _work(*, what: str, impl: str) -> perfsuite.Work:
    if impl != "device":
        return _link_work(what)
    if what == "optimizer":
        # Parameters, gradients and two states in, all but the gradients out.
        return perfsuite.Work(read_bytes=16 * PARAMETERS, write_bytes=12 * PARAMETERS)
    product = 2 * TOKENS * WIDTH**2
    return perfsuite.Work(
        read_bytes=2 * (TOKENS * WIDTH + LAYERS * WIDTH**2),
        write_bytes=2 * LAYERS * WIDTH**2,
        # Forward, weights, inputs; the chain's own input needs no gradient.
        flops=(3 * LAYERS - 1) * product,
        rate_dtype="bf16",
    )


def _link_work(what: str) -> perfsuite.Work:
    # What lives on the host crosses the link both ways, and that takes longest. Adam's states do so
    # at once, as in copy_overlap. Activations go out before any comes back: the forward pass is
    # over (0.5 ms) long before the last of them is there (2.4 ms), and that one is wanted first.
    if what == "optimizer":
        return perfsuite.Work(read_bytes=8 * PARAMETERS, link="pcie")
    outputs = 2 * LAYERS * TOKENS * WIDTH
    return perfsuite.Work(read_bytes=outputs, write_bytes=outputs, link="pcie")


def _memory_bytes(*, what: str, impl: str) -> int:
    return 28 * PARAMETERS + 16 * TOKENS * WIDTH * LAYERS


@perfsuite.case(
    axes={"what": ["optimizer", "activations"], "impl": ["device", "pinned", "overlapped"]},
    smoke={"what": ["optimizer"]},
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=_memory_bytes,
    regime=perfsuite.Regime.END_TO_END,
    cold=False,
    tags=["training", "overlap"],
    source="Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, 2021; PyTorch, "
    "torch.autograd.graph.save_on_cpu",
)
def offload(ctx: Any, *, what: str, impl: str) -> perfsuite.Workload:
    """Step Adam for 2^24 parameters, or take the gradients of 8 products with tanh between them.

    device keeps everything on the GPU; pinned keeps the states, or what autograd saves, in
    page-locked host memory and copies it when it is wanted (activations: torch's save_on_cpu);
    overlapped copies in pieces on streams, and ahead of when it is wanted. On an H200 its
    activations move at 91 % of what the link gives one way, its optimizer's states, in and out at
    once, at 74 %: of eight pieces the first on its way in and the last on its way out meet none.
    """
    if what == "optimizer":
        return _optimizer(ctx, impl)
    from perfsuite_memory import offload_activations

    shape = (TOKENS, WIDTH, LAYERS)
    return offload_activations.workload(ctx, impl, shape)


def _optimizer(ctx: Any, impl: str) -> perfsuite.Workload:
    place = "device" if impl == "device" else "pinned"
    launch: Launch = {"device": _step, "pinned": _in_turn}.get(impl) or _in_pieces(ctx.place)

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        shape = (PARAMETERS,)
        states = rng.randn(*shape, place=place), rng.rand(*shape, place=place)
        outs = (rng.empty(*shape, place=place) for _ in states)
        return rng.randn(*shape), rng.randn(*shape), *states, rng.empty(*shape), *outs

    return perfsuite.Workload(
        fn=launch,
        make_inputs=make_inputs,
        reference=reference,
        wrong=_too_early,
        captures=False,
    )


def reference(*arrays: Any) -> tuple[Any, ...]:
    """Return parameters and states after the step, in float64 by Kingma and Ba's formulas."""
    p, g, m, v = (array.to(arrays[0].device).double() for array in arrays[:4])
    m = BETA_1 * m + (1 - BETA_1) * g
    v = BETA_2 * v + (1 - BETA_2) * g**2
    ratio = (m / (1 - BETA_1**STEP)) / ((v / (1 - BETA_2**STEP)) ** 0.5 + EPSILON)
    return p - RATE * ratio, m, v


def _step(p: Any, g: Any, m: Any, v: Any, *outs: Any) -> None:
    """Write the step to outs, which may be the states themselves."""
    import torch

    p_out, m_out, v_out = outs
    torch.lerp(m, g, 1 - BETA_1, out=m_out)
    torch.mul(v, BETA_2, out=v_out).addcmul_(g, g, value=1 - BETA_2)
    root = (v_out / (1 - BETA_2**STEP)).sqrt_().add_(EPSILON)
    torch.addcdiv(p, m_out, root, value=-RATE / (1 - BETA_1**STEP), out=p_out)


def _in_turn(*arrays: Any) -> None:
    p, g, m, v, p_out, m_out, v_out = arrays
    near = [state.to(p.device, non_blocking=True, copy=True) for state in (m, v)]
    _step(p, g, *near, p_out, *near)
    for far, state in zip((m_out, v_out), near, strict=True):
        far.copy_(state, non_blocking=True)


def _in_pieces(place: str) -> Launch:
    import torch

    size = -(-PARAMETERS // CHUNKS)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    buffers = [torch.empty(2, size, device=place) for _ in streams]

    def launch(*arrays: Any) -> None:
        pieces = list(zip(*(array.split(size) for array in arrays), strict=True))

        def job(index: int, where: int) -> None:
            p, g, m, v, p_out, m_out, v_out = pieces[index]
            near = [buffer[: len(p)] for buffer in buffers[where]]
            for buffer, state in zip(near, (m, v), strict=True):
                buffer.copy_(state, non_blocking=True)
            _step(p, g, *near, p_out, *near)
            for far, buffer in zip((m_out, v_out), near, strict=True):
                far.copy_(buffer, non_blocking=True)

        copy_overlap.fork(streams, len(pieces), job)

    return launch


def _too_early(*arrays: Any) -> tuple[Any, ...]:
    """Copy the second moment back before it was updated."""
    p_out, m_out, _ = reference(*arrays)
    return p_out.float(), m_out.float(), arrays[3]
