"""The kernels about barriers, graphs and priorities, as plain data."""

from __future__ import annotations

from pathlib import Path

from perfsuite import Kernel
from perfsuite_scheduling import (
    graph_conditional,
    graph_params,
    grid_sync,
    smoothing,
    stream_priority,
    streams,
)


def _cuda(file: Path, function: str, name: str, options: tuple[str, ...] = ()) -> Kernel:
    return Kernel(name=name, language="cuda", function=function, file=str(file), options=options)


KERNELS: tuple[Kernel, ...] = (
    *(
        _cuda(
            smoothing.SOURCE,
            function,
            f"grid_sync.{function}_{blocks}",
            smoothing.cuda_options(blocks),
        )
        for function in grid_sync.FUNCTIONS.values()
        for blocks in (8, 128)
    ),
    *(
        _cuda(
            graph_conditional.SOURCE,
            function,
            f"graph_conditional.{function}",
            graph_conditional.OPTIONS,
        )
        for function in ("euclid_step", "decide")
    ),
    _cuda(
        graph_params.SOURCE,
        "advance_some",
        "graph_params.advance_some",
        graph_params.OPTIONS,
    ),
    *(
        _cuda(
            streams.SOURCE,
            "advance",
            f"stream_priority.advance_{rounds}",
            stream_priority.cuda_options(rounds),
        )
        for rounds in (stream_priority.SHORT_ROUNDS, stream_priority.LONG_ROUNDS)
    ),
)
