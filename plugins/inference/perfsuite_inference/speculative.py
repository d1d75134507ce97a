"""Drafted tokens accepted or refused by a model's own shares, and one token chosen behind them."""

from typing import Any

from perfsuite import Beats, Work, cuda, operator
from perfsuite.gpu import TRITON, Later, torch
from perfsuite_inference.sampling import VOCAB, logits_by_rank

kernels = Later("perfsuite_inference.speculative_triton")
DRAFTS = 5


def _work(batch: int, impl: str) -> Work:
    # Two rows of shares where a draft is refused, one where all are accepted.
    whole = len(range(DRAFTS, batch, DRAFTS + 1))
    return Work(4 * VOCAB * (2 * batch - whole) + 24 * DRAFTS * batch, 4 * (DRAFTS + 1) * batch)


@operator(
    smoke={"batch": 8, "impl": "one_position"},
    nightly={"batch": 32},
    full={"batch": 128, "impl": ["one_position", "triton"]},
    needs=[cuda().when(batch=32), cuda().when(batch=128)],
    work=_work,
    # Ranks of 8 bytes and their sort, logits, noise, both models' shares, sums.
    memory_bytes=lambda batch, impl: 72 * batch * (DRAFTS + 1) * VOCAB,
    tags=["speculative", "sampling", "decode"],
    source="arXiv:2211.17192 (Leviathan et al.), algorithm 1; arXiv:2302.01318; Llama-3-8B's card",
)
def speculative(rng: Any, *, batch: int) -> tuple[Any, ...]:
    """Accept five drafted tokens up to the first refused one, and choose the token in its place.

    A token x is refused where its number is no less than p(x) / q(x), of the model's share and the
    draft's. The one in its place is drawn from max(p - q, 0), or behind five accepted ones from p.
    Row i accepts i modulo 6; tokens behind the chosen one are -1. ``all_positions`` makes and sums
    the differences of all positions, as vLLM's first sampler did, ``one_position`` picks the
    position first. ``triton`` sums blocks of that position in one kernel, and finds the token in a
    second. The numbers are drawn so that sums rounded to fp32 decide alike.
    """
    order = rng.rand(batch, DRAFTS + 1, VOCAB).argsort()
    logits = logits_by_rank("fp32", order.device)[order]
    draft = logits[:, :DRAFTS].softmax(2)
    # One of the four likeliest each, which the model holds for less likely.
    aim = rng.randint(0, 4, batch, DRAFTS, 1)
    tokens = (order[:, :DRAFTS] == aim).int().argmax(2, keepdim=True)
    lowered = logits[:, :DRAFTS].gather(2, tokens) - 1 - rng.rand(batch, DRAFTS, 1)
    logits += rng.randn(batch, DRAFTS + 1, VOCAB) / 2
    logits[:, :DRAFTS].scatter_(2, tokens, lowered)
    target = logits.softmax(2)
    # Within what is accepted, or refused, away from its ends; all behind the refused one would be.
    counts = (torch.arange(batch, device=order.device) % (DRAFTS + 1))[:, None]
    ratios = (target[:, :DRAFTS].gather(2, tokens) / draft.gather(2, tokens))[..., 0]
    inside = 0.1 + 0.8 * rng.rand(batch, DRAFTS)
    is_refused = torch.arange(DRAFTS, device=order.device) == counts
    uniforms = torch.where(is_refused, ratios + (1 - ratios) * inside, ratios * inside)
    # In the middle half of what one of the four likeliest tokens has.
    left = _left(target, draft, counts[:, 0]).double()
    place = left.topk(4).indices.gather(1, rng.randint(0, 4, batch, 1).long())
    ends = left.cumsum(1)
    middle = ends.gather(1, place) - (0.25 + rng.rand(batch, 1) / 2) * left.gather(1, place)
    last = (middle / ends[:, -1:]).float()[:, 0]
    out = rng.empty(batch, DRAFTS + 1, dtype="int32")
    return target, draft, tokens[..., 0].int(), uniforms, last, out


def _left(target: Any, draft: Any, counts: Any) -> Any:
    """Return what the token behind so many accepted ones is drawn from: [rows, vocabulary]."""
    rows = torch.arange(len(target), device=target.device)
    others = draft[rows, counts.clamp_max(draft.shape[1] - 1)]
    return (target[rows, counts] - others * (counts < draft.shape[1])[:, None]).clamp_min(0)


def _accepted(target: Any, draft: Any, tokens: Any, uniforms: Any) -> Any:
    """Return 1 for each drafted token that is accepted by itself, else 0."""
    places = tokens.long()[..., None]
    ratios = target[:, : tokens.shape[1]].gather(2, places) / draft.gather(2, places)
    return (uniforms < ratios[..., 0]).int()


def _counts(*given: Any) -> Any:
    """Return how many drafted tokens each row accepts, up to the first refused one."""
    return _accepted(*given).cumprod(1).sum(1)


def _with(tokens: Any, counts: Any, chosen: Any) -> Any:
    """Return the accepted tokens, the chosen one and -1 behind it."""
    places = torch.arange(tokens.shape[1] + 1, device=tokens.device)
    found = torch.nn.functional.pad(tokens, (0, 1)).where(places < counts[:, None], -1)
    return found.scatter(1, counts[:, None], chosen[:, None].int())


@speculative.reference
def verify(target: Any, draft: Any, tokens: Any, uniforms: Any, last: Any, _out: Any = None) -> Any:
    """Return the tokens of each row, one position after the other, in float64."""
    found = torch.full(target.shape[:2], -1, dtype=torch.int32, device=target.device)
    for row, given in enumerate(tokens.tolist()):
        left, count = target[row, -1].double(), len(given)
        for at, token in enumerate(given):
            p, q = target[row, at], draft[row, at]
            if uniforms[row, at].double() * q[token].double() >= p[token].double():
                left, count = (p.double() - q.double()).clamp_min(0), at
                break
            found[row, at] = token
        ends = left.cumsum(0)
        found[row, count] = (ends <= last[row].double() * ends[-1]).sum()
    return found


@speculative.wrong
def _accepted_behind_a_refused(
    target: Any, draft: Any, tokens: Any, uniforms: Any, last: Any, _out: Any
) -> Any:
    """Refuse nothing behind the first refused token: count all that would be accepted."""
    counts = _accepted(target, draft, tokens, uniforms).sum(1)
    return _with(tokens, counts, _drawn(_left(target, draft, counts), last))


@speculative.wrong
def _drawn_from_the_model(
    target: Any, draft: Any, tokens: Any, uniforms: Any, last: Any, _out: Any
) -> Any:
    """Draw from p in place of what is left of it without q."""
    counts = _counts(target, draft, tokens, uniforms)
    return _with(tokens, counts, _drawn(_left(target, draft * 0, counts), last))


def _drawn(left: Any, last: Any) -> Any:
    ends = left.cumsum(-1)
    return torch.searchsorted(ends, last[..., None] * ends[..., -1:], right=True)[..., 0]


@speculative.impl
def _all_positions(
    target: Any, draft: Any, tokens: Any, uniforms: Any, last: Any, _out: Any
) -> Any:
    counts = _counts(target, draft, tokens, uniforms)
    left = torch.cat(((target[:, :DRAFTS] - draft).clamp_min(0), target[:, DRAFTS:]), 1)
    chosen = _drawn(left, last[:, None].expand(-1, DRAFTS + 1).contiguous())
    return _with(tokens, counts, chosen.gather(1, counts[:, None])[:, 0])


@speculative.impl
def _one_position(target: Any, draft: Any, tokens: Any, uniforms: Any, last: Any, _out: Any) -> Any:
    counts = _counts(target, draft, tokens, uniforms)
    return _with(tokens, counts, _drawn(_left(target, draft, counts), last))


@speculative.impl(
    needs=TRITON,
    beats=Beats(
        "all_positions",
        3.0,
        "counted: all positions read 11 rows of shares, write and read 5 differences, and write "
        "and read 6 of their sums, 33 moves where 2 rows are read; a fifth of that is asked for",
        at={"batch": 32},
    ),
)
def _triton(ctx: Any) -> Any:
    return kernels.verify
