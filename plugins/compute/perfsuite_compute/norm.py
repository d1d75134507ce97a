"""A residual added and normalised, as every transformer block begins, and its gradient."""

from functools import partial
from typing import Any

from perfsuite import KERNELS, Beats, Work, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, sm_count, torch

EPS = 1e-6
_SMALL: dict[str, Any] = {
    "dtype": "fp32", "op": "rms", "direction": "fwd", "rows": 256, "cols": 1000
}  # fmt: skip
_USUAL: dict[str, Any] = {"dtype": "bf16", "rows": 8192, "cols": 4096}
kernels = Later("perfsuite_compute.norm_triton")


def _work(dtype: str, direction: str, rows: int, cols: int, **_: Any) -> Work:
    array = rows * cols * (2 if dtype == "bf16" else 4)
    # Forward: x and residual in, their sum and its norm out. Backward: the two gradients and the
    # sum in, one gradient out. Weights are thousands of times smaller and left out.
    both = direction == "fwd_bwd"
    return Work((5 if both else 2) * array, (3 if both else 2) * array)


@operator(
    smoke={**_SMALL, "impl": "torch"},
    # The odd width is asked of one kernel only.
    nightly=[
        {**_USUAL, "op": "rms", "direction": "fwd", "impl": ["eager", "torch", "triton", "liger"]},
        {**_USUAL, "op": "rms", "direction": "fwd_bwd", "impl": ["torch", "triton", "liger"]},
        {**_USUAL, "op": "layer", "direction": "fwd", "impl": ["torch", "triton", "liger"]},
        {**_USUAL, "op": "rms", "direction": "fwd", "cols": 4095, "impl": "triton"},
    ],
    full=[
        {**_USUAL, "op": ["rms", "layer"], "direction": ["fwd", "fwd_bwd"], "cols": 16384},
        {**_USUAL, "op": ["rms", "layer"], "direction": ["fwd", "fwd_bwd"], "impl": "compile"},
        {**_SMALL, "impl": "eager"},
    ],
    needs=[cuda().when(dtype="bf16")],
    work=_work,
    # Inputs, outputs and temporaries, some of them fp32, and the float64 reference with what
    # autograd keeps.
    memory_bytes=lambda dtype, rows, cols, **_: rows * cols * (136 if dtype == "bf16" else 152),
    metrics=[KERNELS],
    tags=["fusion", "reduction"],
    source="kernel fusion: chapter 8 of the book; Liger Kernel (arXiv:2410.10989), section 3.2",
)
def norm(rng: Any, *, dtype: str, op: str, direction: str, rows: int, cols: int) -> Any:
    """Add a residual, normalise each row, and (``fwd_bwd``) take the gradient of both results.

    ``eager`` is the formula as models write it, in fp32 between two casts, and autograd's walk back
    over it, ``compile`` the same through torch.compile. ``torch`` adds, then calls ``rms_norm`` or
    ``layer_norm``. ``liger`` is that package's, where it is installed. ``triton`` does all in one
    kernel forward and one backward, which also adds the residual's own gradient; the weight's
    gradient is a partial sum for each program, then added up in a fixed order. Rows of 4095
    elements start at no multiple of 16 bytes: the kernel takes the whole vectors that lie in a row,
    then its two ends, for a mask that ends anywhere makes every access one element wide. On an H200
    ``triton`` reached 88 % of the memory's ceiling in ``fwd_bwd``, which is the rate of an addition
    of two arrays into a third, and 91 % of the rate of a copy.
    """
    name = DTYPES[dtype]
    # Not centred at 0 and of another size in each row: a mean or a scale left out is seen.
    size = 0.5 + rng.rand(rows, 1, dtype=name)
    x = (rng.randn(rows, cols, dtype=name) + 0.5) * size
    residual, weight = rng.randn(rows, cols, dtype=name) * size, 1 + rng.rand(cols, dtype=name)
    grads = [rng.randn(rows, cols, dtype=name) for _ in range(2 if direction == "fwd_bwd" else 0)]
    return x, residual, weight, rng.randn(cols, dtype=name), *grads


def _forward(normed: Any, x: Any, residual: Any, weight: Any, bias: Any = None) -> Any:
    total = x + residual
    return normed(total, weight, bias), total


def _walked(both: Any, x: Any, residual: Any, weight: Any, bias: Any, *grads: Any, op: str) -> Any:
    """Add, normalise and, given gradients, walk back by autograd."""
    given = (x, weight, bias) if op == "layer" else (x, weight)
    leaves = [each.detach().requires_grad_(bool(grads)) for each in given]
    with torch.set_grad_enabled(bool(grads)):
        y, total = both(leaves[0], residual, *leaves[1:])
    found = torch.autograd.grad((y, total), leaves, grads) if grads else ()
    return y.detach(), total.detach(), *found


@norm.reference
def _reference(*inputs: Any, op: str) -> Any:
    """Return the definition in float64: what is left of the mean, over its root mean square."""

    def normed(h: Any, weight: Any, bias: Any | None) -> Any:
        rest = h if bias is None else h - h.mean(1, keepdim=True)
        scale = ((rest * rest).sum(1, keepdim=True) / rest.shape[1] + EPS).sqrt()
        return rest / scale * weight + (0 if bias is None else bias)

    return _walked(partial(_forward, normed), *(each.double() for each in inputs), op=op)


@norm.wrong
def _without_residual(x: Any, residual: Any, weight: Any, bias: Any, *grads: Any, op: str) -> Any:
    """Normalise x without its residual; going back, forget what arrives beside the norm."""
    if grads:
        return _torch(x, residual, weight, bias, grads[0], grads[1] * 0, op=op)
    return _by_library(x, weight, bias if op == "layer" else None), x + residual


def _as_written(h: Any, weight: Any, bias: Any | None) -> Any:
    """Normalise as transformers' LlamaRMSNorm does, or likewise with the mean taken off."""
    values = h.float()
    if bias is not None:
        values = values - values.mean(-1, keepdim=True)
    values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + EPS)
    out = weight * values.to(h.dtype)
    return out if bias is None else out + bias


def _by_library(h: Any, weight: Any, bias: Any | None) -> Any:
    functional = torch.nn.functional
    if bias is None:
        return functional.rms_norm(h, weight.shape, weight, EPS)
    return functional.layer_norm(h, weight.shape, weight, bias, EPS)


_torch = partial(_walked, partial(_forward, _by_library))
norm.impl(partial(_walked, partial(_forward, _as_written)), name="eager")
norm.impl(_torch, name="torch")


@norm.impl(
    needs=TRITON,
    beats=Beats(
        "eager",
        2.0,
        "Liger Kernel (arXiv:2410.10989), RMSNorm against Hugging Face's: about 7 times less time "
        "at 16,384 columns; its published runs at 4096 columns have 0.288 against 1.011 ms, 3.5, "
        "without a residual; 2 is asked for",
        at={"op": "rms", "direction": "fwd", "cols": (4096, 16384), "rows": 8192},
    ),
)
def _triton(ctx: Any, *, op: str, direction: str) -> Any:
    how: dict[str, Any] = {"eps": EPS, "centred": op == "layer"}
    programs = kernels.PROGRAMS_PER_SM * sm_count(ctx.place)
    if direction == "fwd":
        return partial(kernels.forward, **how)
    train: Any = partial(kernels.train, **how, programs=programs)
    return lambda x, residual, weight, bias, *grads: train(x, residual, weight, bias, grads)


@norm.impl(needs=TRITON, tier="full")
def _compile(ctx: Any, *, op: str) -> Any:
    return partial(_walked, compiled(lambda *given: _forward(_as_written, *given)), op=op)


@norm.impl(needs=[*TRITON, package("liger_kernel")])
def _liger(ctx: Any, *, op: str) -> Any:
    functional = Later("liger_kernel.transformers.functional")

    def both(x: Any, residual: Any, weight: Any, bias: Any = None) -> Any:
        if bias is None:
            return functional.liger_fused_add_rms_norm(x, residual, weight, EPS, in_place=False)
        total = x + residual
        return functional.liger_layer_norm(total, weight, bias, EPS), total

    return partial(_walked, both, op=op)
