"""Plays the kernels of ilp_unroll, occupancy, divergence and redundancy, to see them launched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfsuite_compute import divergence, ilp_unroll, redundancy


class PlayedContext:
    """A builder's context whose CUDA C++ kernels are played by Python on the CPU."""

    device = place = "cpu"
    arch = "sm_90a"
    seed = 3

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays the kernel; it must be in the file."""
        assert f"{name}(" in path.read_text(encoding="utf-8")
        macros = dict(option[2:].split("=") for option in options)
        kernel = Played(name, {key: float(value.strip("fu")) for key, value in macros.items()})
        assert kernel.macros["THREADS"] > 0
        return kernel


class Played:
    """One kernel; it fails where its grid leaves elements out, or has a block to spare."""

    def __init__(self, name: str, macros: dict[str, float]) -> None:
        self.name = name
        self.macros = macros

    def active_blocks(self, threads: int, shared_bytes: int = 0) -> int:
        """As an H200 would: of 2048 threads, 32 blocks and 228 KiB."""
        shared = (228 << 10) // (shared_bytes + 1024)
        return min(32, 2048 // threads, shared)

    def __call__(self, grid: int, block: int, *args: Any, shared_bytes: int = 0) -> None:
        """Write what the kernel would."""
        assert block == self.macros["THREADS"]
        assert shared_bytes <= 227 << 10
        *tensors, _ = args
        played: dict[str, Callable[..., Any]] = {
            "fma": self._fma,
            "scale": self._scale,
            "take": self._take,
            "rotate": self._rotate,
        }
        tensors[-1].copy_(played[self.name.partition("_")[0]](grid, *args))

    def _fma(self, grid: int, x: Any, *rest: Any) -> Any:
        assert (grid, rest[-1]) == (132, len(x))
        now = x.double()
        for _ in range(ilp_unroll.STEPS):
            now = now * self.macros["SCALE"] + self.macros["SHIFT"]
        return now

    def _scale(self, grid: int, x: Any, *rest: Any) -> Any:
        values = 32 if self.name == "scale_wide" else 2
        self._covers(grid, rest[-1], values)
        return 2 * x

    def _take(self, grid: int, kinds: Any, x: Any, *rest: Any) -> Any:
        self._covers(grid, rest[-1], divergence.ITEMS if self.name == "take_compacted" else 1)
        now = x.long()
        rules = ((1, 0), *divergence.SEQUENCES)
        factor, shift = (
            x.new_tensor(part).long()[kinds.long()] for part in zip(*rules, strict=True)
        )
        for _ in range(divergence.ROUNDS):
            now = (now * factor + shift) % 2**32
        return (now + 2**31) % 2**32 - 2**31

    def _rotate(self, grid: int, x: Any, *rest: Any) -> Any:
        tokens, heads = rest[-1], int(self.macros["HEADS"])
        assert x.shape == (tokens, heads, 2 * redundancy.PAIRS)
        shares = -(-heads // redundancy.EACH) if self.name == "rotate_hoisted" else heads
        self._covers(grid, tokens * shares * redundancy.PAIRS // 2, 1)
        turned = x.clone()
        launched = {"tokens": tokens, "heads": heads, "impl": "torch_hoisted"}
        redundancy.launch_torch(PlayedContext(), **launched)(x, turned)
        return turned

    def _covers(self, grid: int, items: int, each: int) -> None:
        assert grid == -(-items // (int(self.macros["THREADS"]) * each))
