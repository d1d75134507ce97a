"""Mamba-2's state space scan: token by token, in chunks of matrix products, and fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

_DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}
# Mamba-2's width of a head and of a state; one b and c for all heads.
P, N = 64, 128
CHUNK = 128
# The loop's launches of that many tokens are all queued before the first begins: the GPU's queue
# holds about 1,000, and of more the host's time is timed.
SHORT, ODD_S, LONG = 256, 8191, 8192
_IMPLS = {LONG: ("chunked", "triton"), ODD_S: ("triton",)}


def _is_asked(dtype: str, b: int, h: int, s: int, impl: str) -> bool:
    return impl in _IMPLS.get(s, ("loop", "chunked", "triton"))


def _work(dtype: str, b: int, h: int, s: int, impl: str) -> Work:
    size, tokens = _DTYPES[dtype][1], b * s
    array = tokens * h * P * size
    return Work(
        read_bytes=array + tokens * (2 * N * size + 4 * h),
        write_bytes=array,
        # Each token of a head adds a product of P and N numbers to the state, and reads it once.
        flops=4 * tokens * h * P * N,
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, b: int, h: int, s: int, impl: str) -> int:
    array = b * s * h * P
    # The chunked one's decays within chunks, thrice, and its states; the reference's and loop's
    # copies in more precision.
    chunked = b * s * h * CHUNK * 10 + 3 * 4 * b * h * P * N * (s // CHUNK + 2)
    return 4 * array * _DTYPES[dtype][1] + 3 * 8 * array + (chunked if impl == "chunked" else 0)


@perfsuite.case(
    axes={
        "dtype": ["bf16"],
        "b": [4],
        "h": [32],
        "s": [SHORT, ODD_S, LONG],
        "impl": ["loop", "chunked", "triton"],
    },
    smoke={"dtype": ["fp32"], "b": [1], "h": [2], "s": [256], "impl": ["chunked"]},
    only=_is_asked,
    full_only=[{"dtype": ["fp32"]}],
    needs=(
        package("torch"),
        package("triton").when(impl="triton"),
        cuda().when(impl="triton"),
        cuda().when(dtype="bf16"),
        arch("sm_80+").when(dtype="bf16"),
        arch("sm_90+").when(impl="triton"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["scan", "fusion", "tensor-cores"],
    source="Mamba-2 (arXiv:2405.21060), section 6 and listing 1",
)
def ssm_scan(ctx: Any, dtype: str, b: int, h: int, s: int, impl: str) -> Workload:
    """Decay a state of 64 x 128 numbers, add x b' to it and read y = state c, for each token.

    ``loop`` does that token by token, in three kernels each. ``chunked`` is the paper's listing:
    within chunks of 128 the scan is attention with decays, and only chunks' states are carried
    on, all of it matrix products with the decays in memory. ``triton`` has the decays, scores and
    states of chunks in registers: its programs take a quarter of a head's tokens each, once to
    know the state that they come to, two heads at a time, then again from the state before them.
    Bytes count x once, and operations those of the recurrence: 8192 tokens take about 238 us on an
    H200, 28 % of a copy's rate (144 TFLOP/s). Chunks do about twice as many operations, each
    product of a chunk waits for the one before, x is read twice, and b and c, four times as wide as
    a head's x, come out of L2 once for each head or two, which is why this stays below the limit of
    either. 8191 tokens end within a chunk.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    name = _DTYPES[dtype][0]

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        # A state is forgotten over some 20 tokens, as at the middle of Mamba's range.
        decay = rng.rand(b, s, h).mul_(-0.1)
        pair = (rng.randn(b, s, N, dtype=name) for _ in range(2))
        return rng.randn(b, s, h, P, dtype=name), decay, *pair, rng.empty(b, s, h, P, dtype=name)

    return Workload(
        fn=_launch_of(impl),
        make_inputs=make_inputs,
        reference=_reference,
        wrong=lambda *inputs: _chunked(*inputs, carries=False),
    )


def _launch_of(impl: str) -> Callable[..., Any]:
    if impl == "triton":
        from perfsuite_compute.ssm_scan_triton import scan

        return scan
    return {"loop": _loop, "chunked": _chunked}[impl]


def _loop(x: Any, decay: Any, b: Any, c: Any, y: Any) -> Any:
    import torch

    wide, keys, queries, kept = x.float(), b.float(), c.float(), decay.exp()
    state = wide.new_zeros(*x.shape[:1], *x.shape[2:], b.shape[2])
    results = []
    for t in range(x.shape[1]):
        state = torch.addcmul(
            state * kept[:, t, :, None, None], wide[:, t, :, :, None], keys[:, t, None, None, :]
        )
        results.append((state @ queries[:, t, None, :, None])[..., 0])
    return torch.stack(results, dim=1).to(x.dtype)


def _chunked(x: Any, decay: Any, b: Any, c: Any, y: Any, *, carries: bool = True) -> Any:
    """Scan as Mamba-2's listing 1 does; unless it ``carries``, each chunk starts from nothing."""
    from torch.nn.functional import pad

    s = x.shape[1]
    behind = -s % CHUNK
    # [batch, chunk, head, step, ...] of each, zeros behind the end.
    values = pad(x, (0, 0, 0, 0, 0, behind)).unflatten(1, (-1, CHUNK)).transpose(2, 3)
    logs = pad(decay, (0, 0, 0, behind)).unflatten(1, (-1, CHUNK)).transpose(2, 3)
    keys, queries = (
        pad(e, (0, 0, 0, behind)).unflatten(1, (-1, CHUNK))[:, :, None] for e in (b, c)
    )
    since = logs.cumsum(-1)
    scores = (queries @ keys.mT) * _decays(since)
    result = scores.to(x.dtype) @ values
    if carries:
        left = values * (since[..., -1:] - since).exp()[..., None].to(x.dtype)
        states = _carried((left.mT @ keys).float(), since[..., -1])
        result = result + (queries @ states.to(x.dtype).mT) * since.exp()[..., None].to(x.dtype)
    return result.transpose(2, 3).flatten(1, 2)[:, :s]


def _decays(since: Any) -> Any:
    """Return what is left at each step (row) of each other (column), nothing of later ones."""
    import torch

    gap = since[..., :, None] - since[..., None, :]
    later = torch.ones(gap.shape[-2:], dtype=torch.bool, device=gap.device).triu(1)
    return gap.masked_fill_(later, float("-inf")).exp_()


def _carried(states: Any, logs: Any) -> Any:
    """Return the state before each chunk, given what each adds and by how much it decays."""
    from torch.nn.functional import pad

    # [batch, head, after, before]: the decay over the chunks between, by one product for all.
    between = _decays(pad(logs.transpose(1, 2).cumsum(-1), (1, 0)))[:, :, :-1, 1:]
    flat = states.transpose(1, 2).flatten(3)
    return (between @ flat).unflatten(3, states.shape[3:]).transpose(1, 2)


def _reference(x: Any, decay: Any, b: Any, c: Any, y: Any) -> Any:
    """Return the recurrence in float64, one token after the other."""
    import torch

    result = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    state = result.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[2])
    # Views for each token beforehand: 8192 of them take as long as their launches are issued.
    steps = zip(
        decay.double().exp()[..., None, None].unbind(1),
        x.double()[..., None].unbind(1),
        b.double()[:, :, None, None].unbind(1),
        c.double()[:, :, None, None].unbind(1),
        result.unbind(1),
        strict=True,
    )
    for kept, value, key, query, out in steps:
        state.mul_(kept).addcmul_(value, key)
        torch.sum(state * query, dim=-1, out=out)
    return result


CASES: tuple[perfsuite.Case | Claim, ...] = (
    ssm_scan,
    Claim(
        name="ssm_scan_fused",
        case="ssm_scan",
        faster={"impl": "triton"},
        than={"impl": "loop"},
        by=10.0,
        at={"s": (SHORT,)},
        needs=(cuda(),),
        source=(
            "Mamba (arXiv:2312.00752), section 4.5: its fused scan is 20-40 times as fast as a "
            "standard scan in PyTorch; half of the lower end is asked for"
        ),
    ),
)
