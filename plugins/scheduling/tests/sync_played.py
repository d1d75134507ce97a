"""Plays the kernels and graphs of the cases about barriers, graphs and priorities."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsuite_scheduling import congruence, graph_params, smoothing


@dataclass
class PlayedGraph:
    """A graph that runs what was put into it, as a driver's would; its loop ends by `condition`."""

    nodes: list[Any] = field(default_factory=list)
    condition: list[int] = field(default_factory=lambda: [0])
    ready: bool = False

    def add(self, launch: Callable[[], Any]) -> None:
        """Put one kernel last."""
        self.nodes.append(launch)

    def add_while(self, fill: Callable[[Any, int], None]) -> None:
        """Put a loop last."""
        body = PlayedGraph()
        fill(body, 1 << 63)

        def loop() -> None:
            self.condition[0] = 1
            while self.condition[0]:
                for launch in body.nodes:
                    launch()

        self.nodes.append(loop)

    def instantiate(self) -> None:
        """Let it be replayed."""
        self.ready = True

    def replay(self) -> None:
        """Run all in order."""
        assert self.ready
        for launch in self.nodes:
            launch()

    def set_kernel(self, index: int, blocks: int, values: Any, types: Any) -> None:
        """Replace a node by a kernel with these arguments."""
        assert len(values) == len(types) == 3
        source, target, count = values
        assert blocks == -(-count // graph_params.THREADS)
        self.nodes[index] = lambda: _advance_at(source, target, count)


def _advance_at(source: int, target: int, count: int) -> None:
    import torch

    raw = [(ctypes.c_int32 * count).from_address(where) for where in (source, target)]
    x, y = (torch.frombuffer(each, dtype=torch.int32) for each in raw)
    y.copy_(congruence.advance(x, 1))


class PlayedContext:
    """A builder's context whose CUDA C++ kernels are played by Python on the CPU."""

    device = place = "cpu"
    graph: Any = None

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays the kernel; it must be in the file, and be given its macros."""
        text = path.read_text(encoding="utf-8")
        assert f"{name}(" in text
        macros = dict(option[2:].split("=") for option in options)
        assert all(macro in text for macro in macros)

        def steps(grid: int, block: int, *args: Any) -> None:
            x, y, scratch, arrivals, count = args
            assert (grid * block, block) == (smoothing.N, int(macros["THREADS"]))
            assert arrivals.tolist() == [0]
            assert scratch.data_ptr() not in {x.data_ptr(), y.data_ptr()}
            y.copy_(smoothing.smooth(x, count))

        def step(grid: int, block: int, x: Any, y: Any) -> None:
            assert (grid * block, block) == (smoothing.N, int(macros["THREADS"]))
            y.copy_(smoothing.smooth(x, 1))

        played = {"steps": steps, "steps_cluster": steps, "step": step}
        return {**played, **self._others(macros)}[name]

    def _others(self, macros: dict[str, str]) -> dict[str, Callable[..., None]]:
        def euclid_step(grid: int, block: int, *args: Any) -> None:
            *pairs, more, n = args
            assert grid == -(-n // block)
            left, right = (tensor.clone() for tensor in pairs[:2])
            is_left = right != 0
            pairs[2].copy_(right.where(is_left, left))
            pairs[3].copy_((left % right.clamp(min=1)).where(is_left, right))
            if pairs[3].any():
                more.fill_(1)

        def decide(grid: int, block: int, more: Any, condition: Any) -> None:
            assert (grid, block, condition.value) == (1, 1, 1 << 63)
            self.graph.condition[0] = int(more)
            more.zero_()

        def advance_some(grid: int, block: int, x: Any, y: Any, count: int) -> None:
            assert grid == -(-count // block)
            assert len(x) == len(y) == count
            y.copy_(congruence.advance(x, 1))

        def advance(grid: int, block: int, x: Any, y: Any) -> None:
            assert grid * block == x.numel()
            y.copy_(congruence.advance(x, int(macros["ROUNDS"])) if grid == 1 else y)

        each = (euclid_step, decide, advance_some, advance)
        return {function.__name__: function for function in each}
