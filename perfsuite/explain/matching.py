"""Finds which kernel of before is which of now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from perfsuite.explain.parts import LEAST_SHARE, LEAST_US, KernelChange, Kind, Side
from perfsuite.model import TracedKernel

# What a library's kernel is for, by its name: the first that fits.
_ROLES = {
    "attention": r"attention|flash|fmha|sdpa",
    "convolution": r"conv|wgrad|dgrad|winograd",
    "matrix product": r"gemm|gemv|nvjet|cutlass|cublas|xmma|mm$|mma|matmul",
    "softmax": r"softmax",
    "normalisation": r"norm",
    "collective": r"nccl",
    "copy": r"copy|memcpy|memset|fill",
    "reduction": r"reduce",
    "elementwise": r"elementwise|pointwise|triton_poi",
}


def role_of(kernel: TracedKernel) -> str:
    """Return what a kernel is for, as far as its name says so."""
    name = kernel.name.lower()
    return next((role for role, words in _ROLES.items() if re.search(words, name)), "")


def matched(before: Side, now: Side) -> Iterator[KernelChange]:
    """Pair kernels by name and shape, then by name alone, then by role; the rest came or went."""
    left, right = list(before.kernels), list(now.kernels)
    for key in (_shape, lambda kernel: kernel.name):
        for old, new in list(_paired(left, right, key)):
            yield _compared(old, new)
    lone = len(left) == len(right) == 1
    for old, new in list(_paired(left, right, lambda kernel: lone or role_of(kernel))):
        yield KernelChange(Kind.REPLACED, old, new, new.total_us - old.total_us)
    yield from (KernelChange(Kind.REMOVED, old, None, -old.total_us) for old in left)
    yield from (KernelChange(Kind.ADDED, None, new, new.total_us) for new in right)


def _shape(kernel: TracedKernel) -> object:
    return (kernel.name, kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes)


def _paired(
    left: list[TracedKernel], right: list[TracedKernel], key: Callable[[TracedKernel], object]
) -> Iterator[tuple[TracedKernel, TracedKernel]]:
    """Take pairs of the same key out of both lists, the longest first."""
    for old in sorted(left, key=lambda kernel: -kernel.total_us):
        found = [new for new in right if key(old) and key(new) == key(old)]
        if found:
            new = min(found, key=lambda kernel: abs(kernel.total_us - old.total_us))
            left.remove(old)
            right.remove(new)
            yield old, new


def _compared(old: TracedKernel, new: TracedKernel) -> KernelChange:
    delta_us = new.total_us - old.total_us
    moved = abs(delta_us) > max(LEAST_US, LEAST_SHARE * old.total_us)
    is_same = not moved and new.count == old.count and _shape(new) == _shape(old)
    return KernelChange(Kind.SAME if is_same else Kind.CHANGED, old, new, delta_us)
