"""The gated delta rule: a state that forgets, and unlearns a key before it learns it anew."""

from typing import Any

from perfsuite import Beats, arch, cuda, operator, package
from perfsuite.gpu import DTYPES, TRITON, Later, compiled, torch

kernels = Later("perfsuite_compute.gated_delta_triton")
# Heads of keys and of values. Qwen3-Next-80B-A3B's card: 16 heads for queries and keys, 32 for
# values, of 128 numbers each; and the share of one of four GPUs.
MODELS = {"qwen3-next-80b": (16, 32), "qwen3-next-80b-tp4": (4, 8)}
D = 128
CHUNK = 64
_PREFILL: dict[str, Any] = {"dtype": "bf16", "phase": "prefill", "state": "fp32", "b": 1}
_DECODE: dict[str, Any] = {
    "dtype": "bf16", "phase": "decode", "model": "qwen3-next-80b", "s": 1
}  # fmt: skip
_SMALL: dict[str, Any] = {"dtype": "fp32", "model": "qwen3-next-80b-tp4", "state": "fp32", "b": 1}


def _memory_bytes(dtype: str, phase: str, model: str, state: str, b: int, s: int, impl: str) -> int:
    array, states = b * s * MODELS[model][1] * D, b * MODELS[model][1] * D * D
    # The reference's copies in float64; of chunks, those in fp32 and between kernels.
    return array * (100 if impl == "eager" else 56) + 40 * states


@operator(
    nightly=[
        # Chunks in torch are some 12 launches each: of more than these the host's time is timed.
        {**_PREFILL, "model": "qwen3-next-80b", "s": 2048, "impl": ["eager", "triton", "fla"]},
        {**_PREFILL, "model": "qwen3-next-80b", "s": 8192, "impl": ["triton", "fla"]},
        # triton-lang/triton#9757 has this size.
        {**_PREFILL, "model": "qwen3-next-80b-tp4", "s": 9418, "impl": ["triton", "fla"]},
        {**_DECODE, "state": "fp32", "b": 64},
        {**_DECODE, "state": "bf16", "b": 64, "impl": "triton"},
    ],
    full=[
        {**_DECODE, "state": ["fp32", "bf16"], "b": [1, 256], "impl": "triton"},
        {**_SMALL, "phase": "prefill", "s": 200, "impl": "eager"},
        {**_SMALL, "phase": "decode", "s": 1, "impl": "eager"},
    ],
    needs=[cuda().when(dtype="bf16"), arch("sm_80+").when(dtype="bf16")],
    # For each token of a head, three products with its state: what its key holds, what is learnt,
    # and what its query reads.
    flops=lambda *, model, b, s: 6 * b * s * MODELS[model][1] * D * D,
    rate_dtype=lambda *, dtype: dtype,
    # Chunks' products are of bf16, and so are what they leave in states of fp32.
    tolerance=lambda *, dtype, phase: 1e-2 if (dtype, phase) == ("bf16", "prefill") else None,
    memory_bytes=_memory_bytes,
    tags=["scan", "fusion", "tensor-cores", "decode"],
    source="Gated Delta Networks (arXiv:2412.06464), sections 3.1 and 3.3; Qwen3-Next's model card",
)
def gated_delta(rng: Any, *, dtype: str, phase: str, model: str, state: str, b: int, s: int) -> Any:
    """Decay a head's state, let a key's value take the place of what it holds, and read a query.

    S = a S (I - b k k') + b v k' and o = S q for each token; two heads of values share one of keys.
    ``prefill`` takes s tokens from a state on. ``eager`` is what transformers falls back to:
    each chunk of 64 is a triangular system, solved row by row, and the state goes from chunk to
    chunk, in fp32. ``triton`` solves all chunks in one kernel and carries the states through a
    second, where the products of a chunk wait for the chunk before: the longer the sequence and
    the fewer the heads, the further from either ceiling. Operations are those of the
    recurrence, of which chunks do more. ``decode`` takes one token for each of b sequences,
    which reads and writes a state of 128 x 128 numbers a head: a matter of bandwidth. The state
    behind it goes to an array of its own, since a launch must find its inputs as they were; a
    server writes it in place. ``fla`` is flash-linear-attention's kernel for either; it always
    returns fp32 states. On an H100 ``triton`` takes 362 us for 8192 tokens, ``fla`` 533 us; a
    decoded token of 64 sequences takes 94 and 111 us, where the states' bytes alone take 80.
    """
    name, (key_heads, heads) = DTYPES[dtype], MODELS[model]
    # As in the model after a convolution: not centred, so that keys of a chunk have much in common.
    act, unit = torch.nn.functional.silu, torch.nn.functional.normalize
    q, k = (unit(act(rng.randn(b, s, key_heads, D, dtype=name)), dim=-1) for _ in range(2))
    v, share = rng.randn(b, s, heads, D, dtype=name), rng.rand(b, s, heads, dtype=name)
    # A state is forgotten over some 20 tokens.
    decay = rng.rand(b, s, heads).mul_(-0.1)
    out, states = rng.empty(b, s, heads, D, dtype=name), (b, heads, D, D)
    before, after = (make(*states, dtype=DTYPES[state]) for make in (rng.randn, rng.empty))
    return q, k, v, decay, share, before, out, after


@gated_delta.reference
def _reference(
    q: Any, k: Any, v: Any, decay: Any, share: Any, before: Any, *_: Any, erases: bool = True
) -> tuple[Any, Any]:
    """Return the recurrence in float64, one token after the other."""
    result = torch.empty(v.shape, dtype=torch.float64, device=v.device)
    state = before.double()
    group = v.shape[2] // k.shape[2]
    queries, keys = (each.double().repeat_interleave(group, 2)[..., None] for each in (q, k))
    # Views for each token beforehand: thousands take as long as their launches are issued.
    steps = zip(
        *(each.unbind(1) for each in (queries * D**-0.5, keys, v.double()[..., None, :])),
        *(each.double()[..., None, None].unbind(1) for each in (decay.exp(), share)),
        result.unbind(1),
        strict=True,
    )
    for query, key, value, kept, part, out in steps:
        state = state * kept
        held = (state * key).sum(-2, keepdim=True) if erases else 0
        state.addcmul_(key, (value - held) * part)
        torch.sum(state * query, dim=-2, out=out)
    return result, state


@gated_delta.wrong
def _without_erasing(*inputs: Any) -> tuple[Any, Any]:
    """Add each value to what its key holds already."""
    return _as(inputs, *_reference(*inputs, erases=False))


@gated_delta.wrong
def _of_other_keys(q: Any, k: Any, *rest: Any) -> tuple[Any, Any]:
    """Give a head of values the keys of the next."""
    return _as((q, k, *rest), *_reference(q, k.roll(1, 2), *rest))


def _as(inputs: tuple[Any, ...], out: Any, state: Any) -> tuple[Any, Any]:
    return out.to(inputs[2].dtype), state.to(inputs[5].dtype)


@gated_delta.impl
def _eager(ctx: Any, *, phase: str) -> Any:
    return _chunks if phase == "prefill" else _token


def _token(q: Any, k: Any, v: Any, decay: Any, share: Any, before: Any, *_: Any) -> tuple[Any, Any]:
    """Take one token as transformers' torch_recurrent_gated_delta_rule does."""
    group = v.shape[2] // k.shape[2]
    queries, keys = (each[:, 0].repeat_interleave(group, 1).float()[..., None] for each in (q, k))
    state = before.float() * decay[:, 0].exp()[..., None, None]
    held = (state * keys).sum(-2)
    learnt = (v[:, 0].float() - held) * share[:, 0].float()[..., None]
    state = state + keys * learnt[..., None, :]
    out = (state * (queries * D**-0.5)).sum(-2)
    return out[:, None].to(v.dtype), state.to(before.dtype)


def _chunks(q: Any, k: Any, v: Any, decay: Any, share: Any, before: Any, *_: Any) -> Any:
    """Take all tokens as transformers' torch_chunk_gated_delta_rule does."""
    s, group = v.shape[1], v.shape[2] // k.shape[2]

    def chunked(each: Any, times: int = 1) -> Any:
        """Return [batch, head, chunk, step, ...] in fp32, zeros behind the end."""
        wide = each.repeat_interleave(times, 2).transpose(1, 2).contiguous().float()
        behind = (0, 0) * (wide.dim() - 3) + (0, -s % CHUNK)
        return torch.nn.functional.pad(wide, behind).unflatten(2, (-1, CHUNK))

    queries, keys, values = chunked(q, group) * D**-0.5, chunked(k, group), chunked(v)
    logs, part = chunked(decay).cumsum(-1), chunked(share)[..., None]
    left = (logs[..., :, None] - logs[..., None, :]).tril().exp().tril()
    solved = -(((keys * part) @ keys.mT) * left).tril(-1)
    for i in range(1, CHUNK):
        row = solved[..., i, :i].clone()
        solved[..., i, :i] = row + (row[..., None] * solved[..., :i, :i].clone()).sum(-2)
    solved = solved + torch.eye(CHUNK, device=v.device)
    values, weights = solved @ (values * part), solved @ (keys * part * logs.exp()[..., None])
    state, results = before.float(), []
    for at in range(values.shape[2]):
        query, key, since = (each[:, :, at] for each in (queries, keys, logs))
        learnt = values[:, :, at] - weights[:, :, at] @ state
        scores = (query @ key.mT) * left[:, :, at]
        results.append((query * since.exp()[..., None]) @ state + scores @ learnt)
        whole = since[..., -1:]
        state = state * whole.exp()[..., None]
        state = state + (key * (whole - since).exp()[..., None]).mT @ learnt
    out = torch.stack(results, 2).flatten(2, 3)[:, :, :s].transpose(1, 2).contiguous()
    return out.to(v.dtype), state.to(before.dtype)


gated_delta.impl(lambda ctx: compiled(_token), name="compile", needs=TRITON, tier="full")


@gated_delta.impl(
    needs=[*TRITON, arch("sm_90+")],
    beats=Beats(
        "eager",
        3.0,
        "counted: the fallback of transformers moves a decoded token's states 12 times (decayed, "
        "times keys, summed, the outer product, added, times queries, summed), two are needed",
        at={"phase": "decode", "state": "fp32", "b": 64},
    ),
)
def _triton(ctx: Any, *, phase: str) -> Any:
    return kernels.prefill if phase == "prefill" else kernels.decode


@gated_delta.impl(needs=[*TRITON, package("fla")])
def _fla(ctx: Any, *, phase: str) -> Any:
    kind = {"prefill": "chunk", "decode": "fused_recurrent"}[phase]
    launch = getattr(Later("fla.ops.gated_delta_rule"), f"{kind}_gated_delta_rule")

    def run(q: Any, k: Any, v: Any, decay: Any, share: Any, before: Any, *_: Any) -> Any:
        how = {"g": decay, "beta": share, "initial_state": before, "output_final_state": True}
        return launch(q, k, v, **how)

    return run
