"""The float64 references: a model over whole sequences without any cache, and plain attention."""

from collections.abc import Sequence
from typing import Any

from perfsuite.gpu import torch
from perfsuite_inference.model import Layer, Llama, Shape

# Scores held at once: 1 GiB of float64.
_SCORES_MOST = 1 << 27
# Bytes for one row of what attends and its scores; fp32 is that of the smoke tier.
SPARE = {"bf16": 2 << 30, "fp32": 64 << 20}


def logits_after(model: Llama, prompt: Any, tails: Any) -> Any:
    """Return the logits [n, vocab] after each of ``tails`` [n], every one put behind ``prompt``.

    One pass over the prompt [c] and all tails: each tail stands at position c and sees the prompt
    and itself, no other tail. No keys or values are kept from call to call.
    """
    length, count = prompt.numel(), tails.numel()
    positions = torch.arange(length + count, device=prompt.device).clamp(max=length)
    seen = torch.ones(length + count, length + count, dtype=torch.bool, device=prompt.device)
    seen = seen.tril_()
    seen[length:, length:] = torch.eye(count, dtype=torch.bool, device=prompt.device)
    found = _run(model, torch.cat((prompt, tails)), positions, seen)[length:]
    return found @ model.head.double().T


def logits_last(model: Llama, prompts: Sequence[Any]) -> Any:
    """Return the logits [n, vocab] after the last token of each prompt [s], of any lengths."""
    return torch.stack([logits_after(model, prompt[:-1], prompt[-1:])[0] for prompt in prompts])


def attend(q: Any, k: Any, v: Any, seen: Any = None) -> Any:
    """Return softmax(q k' / sqrt(d)) v in float64: q [heads, n, d], k and v [kv_heads, s, d].

    Query head h reads key head h // (heads / kv_heads), some heads at a time. ``seen`` [n, s]
    says which keys a query sees.
    """
    group = q.shape[0] // k.shape[0]
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    step = max(1, _SCORES_MOST // (q.shape[1] * k.shape[1]))
    for part in torch.arange(q.shape[0], device=q.device).split(step):
        shared = part // group
        scores = torch.bmm(q[part].double(), k[shared].double().mT).div_(q.shape[-1] ** 0.5)
        if seen is not None:
            scores.masked_fill_(~seen, -torch.inf)
        weights = scores.sub_(scores.logsumexp(-1, keepdim=True)).exp_()
        out[part] = torch.bmm(weights, v[shared].double())
    return out


def attend_one(q: Any, k: Any, v: Any) -> Any:
    """Attend from one token: q [heads, d], returned as q."""
    return attend(q[:, None], k, v)[:, 0]


def _run(model: Llama, tokens: Any, positions: Any, seen: Any) -> Any:
    """Return the normed output [s, hidden] of one sequence; a layer's weights are cast in turn."""
    s = model.shape
    exponents = torch.arange(0, s.head, 2, dtype=torch.float64, device=tokens.device) / s.head
    angles = torch.outer(positions.double(), s.theta**-exponents)
    turns = torch.polar(torch.ones_like(angles), angles)
    x = model.embedding[tokens].double()
    for layer in model.layers:
        x = x + _attention(s, layer, _normed(s, x, layer.attention_norm), turns, seen)
        gate, up = (_normed(s, x, layer.mlp_norm) @ layer.gate_up.double().T).tensor_split(2, 1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer.down.double().T
    return _normed(s, x, model.norm)


def _attention(s: Shape, layer: Layer, x: Any, turns: Any, seen: Any) -> Any:
    heads = (x @ layer.qkv.double().T).view(x.shape[0], -1, s.head).transpose(0, 1)
    # The pairs (i, i + d/2) are turned as complex numbers.
    real, imaginary = heads[: s.heads + s.kv_heads].chunk(2, dim=-1)
    turned = torch.complex(real.contiguous(), imaginary.contiguous()) * turns
    q, k = torch.cat((turned.real, turned.imag), dim=-1).split((s.heads, s.kv_heads))
    found = attend(q, k, heads[s.heads + s.kv_heads :], seen)
    return found.transpose(0, 1).flatten(1) @ layer.out.double().T


def _normed(s: Shape, x: Any, scales: Any) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + s.epsilon).sqrt() * scales.double()
