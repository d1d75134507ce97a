"""Mamba-2's state space scan: token by token, in chunks of matrix products, and fused."""

from typing import Any

from perfsuite import Beats, arch, cuda, operator, package
from perfsuite.gpu import DTYPES, Later, torch

# Mamba-2's width of a head and of a state; one b and c for all heads.
P, N = 64, 128
CHUNK = 128


@operator(
    nightly=[
        # The loop's launches of that many tokens are all queued before the first begins: the GPU's
        # queue holds about 1,000, and of more the host's time is timed.
        {"dtype": "bf16", "b": 4, "h": 32, "s": 256},
        {"dtype": "bf16", "b": 4, "h": 32, "s": 8191, "impl": "triton"},
        {"dtype": "bf16", "b": 4, "h": 32, "s": 8192, "impl": ["chunked", "triton"]},
    ],
    full={"dtype": "fp32", "b": 1, "h": 2, "s": 256, "impl": "chunked"},
    needs=[cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")],
    # Each token of a head adds a product of P and N numbers to the state, and reads it once.
    flops=lambda *, b, h, s: 4 * b * s * h * P * N,
    rate_dtype=lambda *, dtype: dtype,
    # x and y again in float64; of chunks their decays, thrice, and their states.
    memory_bytes=lambda b, h, s, **_: b * h * s * (32 * P + 10 * CHUNK + 14 * P * N // CHUNK),
    tags=["scan", "fusion", "tensor-cores"],
    source="Mamba-2 (arXiv:2405.21060), section 6 and listing 1",
)
def ssm_scan(rng: Any, *, dtype: str, b: int, h: int, s: int) -> Any:
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
    torch.backends.cuda.matmul.allow_tf32 = False
    name = DTYPES[dtype]
    # A state is forgotten over some 20 tokens, as at the middle of Mamba's range.
    decay = rng.rand(b, s, h).mul_(-0.1)
    pair = (rng.randn(b, s, N, dtype=name) for _ in range(2))
    return rng.randn(b, s, h, P, dtype=name), decay, *pair, rng.empty(b, s, h, P, dtype=name)


@ssm_scan.reference
def _reference(x: Any, decay: Any, b: Any, c: Any, y: Any) -> Any:
    """Return the recurrence in float64, one token after the other."""
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


@ssm_scan.impl
def _loop(x: Any, decay: Any, b: Any, c: Any, y: Any) -> Any:
    wide, keys, queries, kept = x.float(), b.float(), c.float(), decay.exp()
    state = wide.new_zeros(*x.shape[:1], *x.shape[2:], b.shape[2])
    results = []
    for t in range(x.shape[1]):
        state = torch.addcmul(
            state * kept[:, t, :, None, None], wide[:, t, :, :, None], keys[:, t, None, None, :]
        )
        results.append((state @ queries[:, t, None, :, None])[..., 0])
    return torch.stack(results, dim=1).to(x.dtype)


@ssm_scan.impl
def _chunked(x: Any, decay: Any, b: Any, c: Any, y: Any, *, carries: bool = True) -> Any:
    """Scan as Mamba-2's listing 1 does; unless it ``carries``, each chunk starts from nothing."""
    pad = torch.nn.functional.pad
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


ssm_scan.wrong(lambda *inputs: _chunked(*inputs, carries=False))


def _decays(since: Any) -> Any:
    """Return what is left at each step (row) of each other (column), nothing of later ones."""
    gap = since[..., :, None] - since[..., None, :]
    later = torch.ones(gap.shape[-2:], dtype=torch.bool, device=gap.device).triu(1)
    return gap.masked_fill_(later, float("-inf")).exp_()


def _carried(states: Any, logs: Any) -> Any:
    """Return the state before each chunk, given what each adds and by how much it decays."""
    # [batch, head, after, before]: the decay over the chunks between, by one product for all.
    between = _decays(torch.nn.functional.pad(logs.transpose(1, 2).cumsum(-1), (1, 0)))[
        :, :, :-1, 1:
    ]
    flat = states.transpose(1, 2).flatten(3)
    return (between @ flat).unflatten(3, states.shape[3:]).transpose(1, 2)


ssm_scan.impl(
    lambda ctx: Later("perfsuite_compute.ssm_scan_triton").scan,
    name="triton",
    needs=[cuda(), arch("sm_90+"), package("triton")],
    beats=Beats(
        "chunked",
        5.0,
        "Mamba (arXiv:2312.00752), section 4.5: its fused scan is 20-40 times as fast as a "
        "standard scan in PyTorch; over chunks measured 11 to 24 on an H100 and an H200",
        at={"s": (256, 8192)},
    ),
)
