"""What a case's builder returns: something to launch, to inspect or to play."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One built variant: what to launch, on what, and how to know that it is right.

    ``make_inputs(rng)`` returns the arguments of one launch; tensors from ``rng.empty`` are
    outputs and are poisoned before each check. ``fn(*inputs)`` is one launch; what it returns, or
    else its outputs, is compared with ``reference(*inputs)``, which is independent and of higher
    precision. ``wrong(*inputs)`` is the negative control: it has the signature of ``fn``, makes
    the mistake a real bug would make, and the reference must refuse it.

    ``tolerance`` is the relative L2 error allowed (None: by the output's dtype; 0: equal to the
    bit). ``captures=False`` keeps ``fn`` out of CUDA graphs. ``rotates=False`` says that the inputs
    are too large or too stateful to copy, so that coldness comes from a flush. Arguments that are
    no outputs must stay as they are, or each launch would have others; ``in_place=True`` says that
    launches write to them, and that the result is the same however often. ``exact()`` returns
    metrics without noise (launches, bytes), read once per process after the check; the case
    declares them.
    """

    fn: Callable[..., Any]
    make_inputs: Callable[[Any], tuple[Any, ...]]
    reference: Callable[..., Any]
    wrong: Callable[..., Any]
    tolerance: float | None = None
    captures: bool = True
    rotates: bool = True
    in_place: bool = False
    exact: Callable[[], Mapping[str, float]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One built variant with nothing to time: its metrics are read once and judged exactly.

    ``reference()`` returns what some of the metrics must be, found independently; ``wrong()`` is
    the negative control, metrics that the reference must refuse. Both may be left out together
    where every number is its own evidence, such as a compiler's report.
    """

    read: Callable[[], Mapping[str, float]]
    reference: Callable[[], Mapping[str, float]] | None = None
    wrong: Callable[[], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if (self.reference is None) != (self.wrong is None):
            raise ValueError("an Inspection has a reference and a wrong, or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One built variant that serves: ``play(seed)`` returns its output and its service metrics.

    The engine plays it with seeds of its own and times each play; metrics (declared by the case)
    are judged as times are. ``reference(seed)`` is the output of the same seed found independently,
    ``wrong(seed)`` the negative control; ``tolerance`` is that of a ``Workload``.
    """

    play: Callable[[int], tuple[Any, Mapping[str, float]]]
    reference: Callable[[int], Any]
    wrong: Callable[[int], Any]
    tolerance: float | None = None


Buildable = Workload | Inspection | Scenario
