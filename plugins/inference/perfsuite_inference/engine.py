"""Clocks and backends of the mini server: a cost model in virtual time, a model in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite_inference.scheduler import Piece, Step


@dataclass(slots=True)
class VirtualClock:
    """A clock that goes on only when it is told to."""

    time_us: int = 0

    def now_us(self) -> int:
        """Return the time."""
        return self.time_us

    def wait_until(self, time_us: int) -> None:
        """Jump to this time, unless it has passed."""
        self.time_us = max(self.time_us, time_us)


class RealClock:
    """The host's clock, from its making on."""

    def __init__(self) -> None:
        self._begun_ns = time.perf_counter_ns()

    def now_us(self) -> int:
        """Return the time."""
        return (time.perf_counter_ns() - self._begun_ns) // 1000

    def wait_until(self, time_us: int) -> None:
        """Sleep until this time, unless it has passed."""
        while (left_us := time_us - self.now_us()) > 0:
            time.sleep(left_us / 1e6)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step takes: a fixed part, and something for each token and row, in microseconds.

    The fixed part stands for reading the weights. A step that reads prompts and decodes as well
    pays the larger one once.
    """

    prefill_us: int
    token_us: int
    decode_us: int
    row_us: int

    def __post_init__(self) -> None:
        if min(self.prefill_us, self.token_us, self.decode_us, self.row_us) < 0:
            raise ValueError(f"{self!r}: no cost is below 0")
        if not (self.prefill_us + self.token_us and self.decode_us + self.row_us):
            raise ValueError(f"{self!r}: a step must take some time")


@dataclass(frozen=True, slots=True)
class CostModel:
    """A backend that takes as long as the costs say."""

    costs: Costs
    clock: VirtualClock

    def run(self, step: Step) -> None:
        """Let the step's time pass."""
        tokens = sum(piece.tokens for piece in step.prefill)
        fixed_us = self.costs.prefill_us if step.prefill else 0
        if step.decode:
            fixed_us = max(fixed_us, self.costs.decode_us)
        passed_us = fixed_us + self.costs.token_us * tokens + self.costs.row_us * step.rows
        self.clock.wait_until(self.clock.now_us() + passed_us)


class Desk:
    """A model with a cache of ``slots`` rows, and the two launches that a step consists of.

    Both always have the same shapes: a prompt is filled up to ``most_prompt`` tokens, and a decode
    computes every row, taken or not. So one CUDA graph serves each of them, and a row's result is
    the same to the bit whatever the other rows hold; in a batch of another size a kernel may be
    chosen that rounds otherwise. ``length`` is how many positions a row has.
    """

    def __init__(self, model: Any, *, slots: int, most_prompt: int, length: int) -> None:
        import torch

        from perfsuite_inference.cache import StaticCache

        self.slots = slots
        self.length = length
        self.most_prompt = most_prompt
        self._cache = StaticCache(model.shape, slots, length, model.device, model.dtype)
        whole: dict[str, Any] = {"dtype": torch.int64, "device": model.device}
        self._prompt = torch.zeros(1, most_prompt, **whole)
        self._prompt_length = torch.ones(1, **whole)
        self._row = torch.zeros(1, **whole)
        self._live = torch.zeros(slots, **whole)
        self.tokens = torch.zeros(slots, **whole)
        self.positions = torch.zeros(slots, **whole)
        self._model = model
        self._launch_prefill = _captured(self._prefill, model.device)
        self._launch_decode = _captured(self._decode, model.device)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        for tensor in (self._cache.k, self._cache.v, self._live, self.tokens, self.positions):
            tensor.zero_()

    def upload(self, prompts: Sequence[Sequence[int]]) -> Any:
        """Return prompts as a tensor [count, most_prompt] on the device, filled up with zeros."""
        filled = [[*prompt, *[0] * (self.most_prompt - len(prompt))] for prompt in prompts]
        return self.tokens.new_tensor(filled).reshape(-1, self.most_prompt)

    def read(self, row: int, prompt: Any, length: int, *, position: int | None = None) -> None:
        """Read an uploaded prompt into a row; its first token stands in ``tokens[row]``.

        The row goes on at ``position``, which is the prompt's length unless someone errs.
        """
        self._row.fill_(row)
        self._prompt.copy_(prompt[None])
        self._prompt_length.fill_(length)
        self._launch_prefill()
        self.positions[row] = length if position is None else position

    def let_live(self, rows: Sequence[int]) -> None:
        """Let these rows go on at each decode; the others stay where they are."""
        self._live.copy_(self._live.new_tensor([row in rows for row in range(self.slots)]))

    def decode(self) -> None:
        """Take each row's token and put the next one in its place."""
        self._launch_decode()

    def _prefill(self) -> None:
        logits = self._model.prefill(
            self._prompt, self._cache, lengths=self._prompt_length, rows=self._row
        )
        self.tokens[self._row] = logits.argmax(dim=-1)

    def _decode(self) -> None:
        logits = self._model.decode(self.tokens, self.positions, self._cache)
        self.tokens.copy_(logits.argmax(dim=-1))
        self.positions.add_(self._live).clamp_(max=self.length - 1)


class ModelBackend:
    """Carries out steps at a desk, and keeps each request's tokens by its number.

    ``resets=False`` forgets that a slot's next request starts from position 0 again.
    """

    def __init__(
        self, desk: Desk, prompts: Sequence[Sequence[int]], *, resets: bool = True
    ) -> None:
        self._desk = desk
        self._resets = resets
        self._prompts = desk.upload(prompts)
        self._live: tuple[int, ...] = ()
        self._ends = [0] * desk.slots
        self.outputs: list[list[int]] = [[] for _ in prompts]
        desk.clear()

    def run(self, step: Step) -> None:
        """Launch a step, and wait for its tokens as a server does that streams them."""
        for piece in step.prefill:
            self._read(piece)
        if step.decode:
            live = tuple(seat.slot for seat in step.decode)
            if live != self._live:
                self._desk.let_live(live)
                self._live = live
            self._desk.decode()
        tokens = self._desk.tokens.tolist()
        for seat in (*(piece.seat for piece in step.prefill), *step.decode):
            self.outputs[seat.request.index].append(tokens[seat.slot])

    def _read(self, piece: Piece) -> None:
        request, slot = piece.seat.request, piece.seat.slot
        if piece.tokens != request.prompt_tokens:
            raise ValueError(
                f"request {request.index} is to be read from {piece.start} to "
                f"{piece.start + piece.tokens} of {request.prompt_tokens}, but a model reads "
                "prompts whole: choose a policy that does not cut them"
            )
        position = request.prompt_tokens
        if not self._resets:
            position = min(self._ends[slot] + position, self._desk.length - 1)
            self._ends[slot] = position + request.output_tokens - 1
        self._desk.read(
            slot, self._prompts[request.index], request.prompt_tokens, position=position
        )


def _captured(launch: Callable[[], None], device: Any) -> Callable[[], None]:
    """Return the launch as a CUDA graph's replay; as it is where there is no CUDA."""
    if device.type != "cuda":
        return launch
    import torch

    from perfsuite_inference.graphs import warm_up

    warm_up(launch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    replay: Callable[[], None] = graph.replay
    return replay
