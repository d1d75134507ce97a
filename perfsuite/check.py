"""Checks a workload's output against its reference, and the reference against a planted mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfsuite.device import Comparison, Device
from perfsuite.errors import CaseError, WrongResultError
from perfsuite.model import Scenario, Workload

# Seeds of one worker are this far apart, so that its input sets and checks never share data.
SEEDS = 1000
CHECK_SEEDS = (SEEDS - 2, SEEDS - 1)


def check(
    device: Device, workload: Workload, *, where: str, seed: int, is_thorough: bool = True
) -> float | None:
    """Return the relative error on fresh data; raise WrongResultError or CaseError.

    Two sets of data: the second is checked after the first call has compiled and autotuned, and a
    function that hands back a stored output fails there. Then the negative control must fail. Not
    ``is_thorough``, it is one set of data alone.
    """
    previous: Any = None
    for offset in CHECK_SEEDS if is_thorough else CHECK_SEEDS[:1]:
        rng = device.rng(seed * SEEDS + offset)
        inputs = workload.make_inputs(rng)
        expected = workload.reference(*inputs)
        # The allocator hands a freed output out again: without poison an unwritten output would
        # hold what the last launch wrote there.
        device.poison([previous])
        previous = None
        previous = _launch(device, workload.fn, inputs, rng.outputs)
        comparison = _compare(device, workload, previous, rng.outputs, expected)
        if not comparison.is_right:
            raise WrongResultError(
                f"output differs from the reference: {comparison.reason}",
                where=where,
                remedy="fix the implementation, or its tolerance if the reference is right",
            )
    if is_thorough:
        _refuse_control(device, workload, (inputs, rng.outputs, expected), where)
    return comparison.error if math.isfinite(comparison.error) else None


def check_scenario(
    device: Device, scenario: Scenario, *, where: str, seed: int, is_thorough: bool = True
) -> float | None:
    """Return the relative error of one play's output; raise WrongResultError or CaseError.

    The negative control is refused if the check ``is_thorough``.
    """
    output, _ = played(scenario, seed, where)
    device.synchronize()
    expected = scenario.reference(seed)
    error = check_play(device, scenario, (output, expected), where=where)
    if is_thorough:
        _refuse(device.compare(scenario.wrong(seed), expected, scenario.tolerance), where)
    return error


def played(scenario: Scenario, seed: int, where: str) -> tuple[Any, Mapping[str, float]]:
    """Play once; raises CaseError if it does not return output and metrics."""
    found = scenario.play(seed)
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):  # noqa: PLR2004 - output and metrics
        return found
    raise CaseError(
        f"play() returned {type(found).__name__}, not its output and a mapping of metrics",
        where=where,
        remedy='return output, {"ttft_ms": 12.5}',
    )


def check_play(
    device: Device, scenario: Scenario, pair: tuple[Any, Any], *, where: str
) -> float | None:
    """Return the relative error of an output against what is expected; raise WrongResultError."""
    comparison = device.compare(*pair, scenario.tolerance)
    if not comparison.is_right:
        raise WrongResultError(
            f"what was served differs from the reference: {comparison.reason}",
            where=where,
            remedy="fix the implementation, or its tolerance if the reference is right",
        )
    return comparison.error if math.isfinite(comparison.error) else None


def _refuse_control(device: Device, workload: Workload, data: tuple[Any, ...], where: str) -> None:
    inputs, outputs, expected = data
    returned = _launch(device, workload.wrong, inputs, outputs)
    _refuse(_compare(device, workload, returned, outputs, expected), where)


def _refuse(control: Comparison, where: str) -> None:
    if control.is_right:
        raise CaseError(
            f"the reference accepts the negative control (error {control.error:.3g} within "
            f"{control.limit:.3g})",
            where=where,
            remedy="make the reference or the tolerance strict enough to see the mistake",
        )


def _launch(
    device: Device, fn: Callable[..., Any], inputs: tuple[Any, ...], outputs: Sequence[Any]
) -> Any:
    device.poison(outputs)
    returned = fn(*inputs)
    device.synchronize()
    return returned


def _compare(
    device: Device, workload: Workload, returned: Any, outputs: Sequence[Any], expected: Any
) -> Comparison:
    if returned is None and not outputs:
        return Comparison(math.inf, 0.0, "the function returned nothing and has no output to write")
    actual = tuple(outputs) if returned is None else returned
    return device.compare(actual, expected, workload.tolerance)
