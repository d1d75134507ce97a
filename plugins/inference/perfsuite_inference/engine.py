"""The mini server's backend in real time: a model at a desk of slots."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from perfsuite.gpu import torch
from perfsuite_inference.cache import StaticCache
from perfsuite_inference.model import Llama, captured
from perfsuite_inference.scheduler import Step


class Desk:
    """A model with a cache of ``slots`` rows, and the two launches that a step consists of.

    Both always have the same shapes: a prompt is filled up to ``most_prompt`` tokens, and a decode
    computes every row, taken or not. So one CUDA graph serves each of them, and a row's result is
    the same to the bit whatever the other rows hold; in a batch of another size a kernel may be
    chosen that rounds otherwise. ``length`` is how many positions a row has.
    """

    def __init__(self, model: Llama, *, slots: int, most_prompt: int, length: int) -> None:
        self.slots, self.length, self.most_prompt = slots, length, most_prompt
        self._model, self._cache = model, StaticCache(model.shape, slots, length, model.device)
        zeros = partial(torch.zeros, dtype=torch.int64, device=model.device)
        self._prompt, self._prompt_length, self._row = zeros(1, most_prompt), zeros(1) + 1, zeros(1)
        self._live, self.tokens, self.positions = zeros(slots), zeros(slots), zeros(slots)
        # CUDA graphs where there is CUDA.
        is_on_gpu = model.device.type == "cuda"
        self._launch_prefill = captured(self._prefill)[0] if is_on_gpu else self._prefill
        # Takes each row's token and puts the next one in its place.
        self.decode = captured(self._decode)[0] if is_on_gpu else self._decode
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        for tensor in (self._cache.k, self._cache.v, self._live, self.tokens, self.positions):
            tensor.zero_()

    def upload(self, prompts: Sequence[Sequence[int]]) -> Any:
        """Return prompts as a tensor [count, most_prompt] on the device, filled up with zeros."""
        filled = [[*prompt, *[0] * (self.most_prompt - len(prompt))] for prompt in prompts]
        return self.tokens.new_tensor(filled).reshape(-1, self.most_prompt)

    def read(self, row: int, prompt: Any, length: int, position: int) -> None:
        """Read an uploaded prompt into a row; its first token stands in ``tokens[row]``.

        The row goes on at ``position``, which is the prompt's length unless someone errs.
        """
        self._row.fill_(row)
        self._prompt.copy_(prompt[None])
        self._prompt_length.fill_(length)
        self._launch_prefill()
        self.positions[row] = position

    def let_live(self, rows: Sequence[int]) -> None:
        """Let these rows go on at each decode; the others stay where they are."""
        self._live.copy_(self._live.new_tensor([row in rows for row in range(self.slots)]))

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

    Prompts are read whole. Its clock is the host's, from its making on. ``resets=False`` forgets
    that a slot's next request starts from position 0 again.
    """

    def __init__(
        self, desk: Desk, prompts: Sequence[Sequence[int]], *, resets: bool = True
    ) -> None:
        self._desk, self._resets = desk, resets
        self._prompts = desk.upload(prompts)
        self._live: list[int] = []
        self._ends = [0] * desk.slots
        self.outputs: list[list[int]] = [[] for _ in prompts]
        desk.clear()
        self._begun_ns = time.perf_counter_ns()

    def now_us(self) -> int:
        """Return the time."""
        return (time.perf_counter_ns() - self._begun_ns) // 1000

    def wait_until(self, time_us: int) -> None:
        """Sleep until this time, unless it has passed."""
        while (left_us := time_us - self.now_us()) > 0:
            time.sleep(left_us / 1e6)

    def run(self, step: Step) -> None:
        """Launch a step, and wait for its tokens as a server does that streams them."""
        for seat, length in step.prefill:
            position = length
            if not self._resets:
                position = min(self._ends[seat.slot] + length, self._desk.length - 1)
                self._ends[seat.slot] = position + seat.request.output_tokens - 1
            self._desk.read(seat.slot, self._prompts[seat.request.index], length, position)
        if step.decode:
            live = [seat.slot for seat in step.decode]
            if live != self._live:
                self._desk.let_live(live)
                self._live = live
            self._desk.decode()
        tokens = self._desk.tokens.tolist()
        for seat in (*(seat for seat, _ in step.prefill), *step.decode):
            self.outputs[seat.request.index].append(tokens[seat.slot])
