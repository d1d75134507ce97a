"""Plays the pack's CUDA C++ kernels and graphs in Python, to see how builders launch them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsuite_scheduling import (
    congruence,
    dynamic_parallelism,
    graph_params,
    smoothing,
    work_queue,
)


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


@dataclass
class PlayedContext:
    """A builder's context whose kernels are played on the CPU, and its driver's graph."""

    device: str = "cpu"
    place: str = "cpu"
    graph: PlayedGraph = field(default_factory=PlayedGraph)

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays the kernel; it must be in the file, and be given its macros."""
        text = path.read_text(encoding="utf-8")
        assert f"{name}(" in text
        assert ("-rdc=true" in options) == (name == "parent")
        macros = dict(option[2:].split("=") for option in options if option.startswith("-D"))
        assert all(macro in text for macro in macros)
        played: Callable[..., None] = getattr(Kernels(macros, self.graph), name)
        return played


@dataclass
class Kernels:
    """The kernels by their names, with the macros that they are compiled with."""

    macros: dict[str, str]
    graph: PlayedGraph

    def add_one(self, grid: int, block: int, source: Any, target: Any, *numbers: int) -> None:
        """Add one, by all the numbers given."""
        assert grid * block == source.numel()
        assert len(numbers) in {0, 3, 17}
        target.copy_(source + (sum(numbers) if numbers else 1))

    add_one_5 = add_one_19 = add_one

    def step(self, grid: int, block: int, x: Any, y: Any) -> None:
        """Smooth once."""
        assert (grid * block, block) == (x.numel(), int(self.macros["THREADS"]))
        assert x.data_ptr() != y.data_ptr()
        y.copy_(smoothing.smooth(x, 1))

    def steps(self, grid: int, block: int, *args: Any) -> None:
        """Smooth so often, the blocks meeting in between."""
        x, y, scratch, arrivals, count = args
        assert (grid * block, block) == (x.numel(), int(self.macros["THREADS"]))
        assert arrivals.tolist() == [0]
        assert len({x.data_ptr(), y.data_ptr(), scratch.data_ptr()}) == 3
        y.copy_(smoothing.smooth(x, count))

    steps_cluster = steps

    def advance(self, grid: int, block: int, x: Any, y: Any) -> None:
        """Take the rounds that it is compiled for."""
        assert (grid * block, block) == (x.numel(), int(self.macros["THREADS"]))
        if x is not y:  # what keeps a GPU busy in place is of no use
            y.copy_(congruence.advance(x, int(self.macros["ROUNDS"])))

    def advance_some(self, grid: int, block: int, x: Any, y: Any, count: int) -> None:
        """Take one round of some values."""
        assert grid == -(-count // block)
        assert len(x) == len(y) == count
        y.copy_(congruence.advance(x, 1))

    def static_split(self, grid: int, block: int, *args: Any) -> None:
        """Take the rounds of each item; what it is given of a queue must be ready."""
        rounds, x, y, *queue = args
        assert block == work_queue.THREADS
        assert [each.tolist() for each in queue[:1]] == [[0, 0]] * (len(queue) > 0)
        for order in queue[1:]:
            assert order.dtype.itemsize == 8
            assert order.unique().tolist() == list(range(work_queue.ITEMS))
            assert rounds[order].tolist() == sorted(rounds.tolist(), reverse=True)
        assert grid == (2 * 7 if queue else grid)
        y.copy_(congruence.advance(x, rounds[:, None]))

    block_each = atomic_queue = sorted_queue = static_split

    def measure(self, grid: int, _block: int, *args: Any) -> None:
        """Tell the sizes of items, and copy what is beyond them."""
        x, y, counts, first = args
        for item in range(first, first + grid):
            drawn = (int(x.numpy()[item, 0]) % 2**32) >> 8
            counts[item] = count = 1 + drawn % dynamic_parallelism.MOST
            y[item, count:] = x[item, count:]

    def child(self, grid: int, block: int, *args: Any) -> None:
        """Work through an item of this size."""
        x, y, item, count = args
        assert (grid - 1) * block < count <= grid * block
        y[item, :count] = congruence.advance(x[item, :count], dynamic_parallelism.ROUNDS)

    def parent(self, grid: int, block: int, x: Any, y: Any) -> None:
        """Measure all items and launch each."""
        counts = [0] * grid
        self.measure(grid, block, x, y, counts, 0)
        for item, count in enumerate(counts):
            self.child(-(-count // block), block, x, y, item, count)

    def euclid_step(self, grid: int, block: int, *args: Any) -> None:
        """Take a step of Euclid's algorithm, and say whether one is left."""
        *pairs, more, n = args
        assert grid == -(-n // block)
        left, right = (tensor.clone() for tensor in pairs[:2])
        is_left = right != 0
        pairs[2].copy_(right.where(is_left, left))
        pairs[3].copy_((left % right.clamp(min=1)).where(is_left, right))
        if pairs[3].any():
            more.fill_(1)

    def decide(self, grid: int, block: int, more: Any, condition: Any) -> None:
        """Let the loop go on if a step is left."""
        assert (grid, block, condition.value) == (1, 1, 1 << 63)
        self.graph.condition[0] = int(more)
        more.zero_()
