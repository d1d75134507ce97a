"""Checks a workload's output against its reference, and the reference against a planted mistake."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from perfsuite.boundary import CaseError, WrongResultError
from perfsuite.devices.load import waited_ns
from perfsuite.devices.protocol import Comparison, Device, Group
from perfsuite.model import Scenario, Workload

# Seeds of one worker are this far apart, so that its input sets and checks never share data.
SEEDS = 1000
CHECK_SEEDS = (SEEDS - 2, SEEDS - 1)
RECHECK_SEED = SEEDS - 3
# So many launches of a process are compared after it was timed, in no more than this time or share
# of what its samples took.
# A result that is wrong once in twenty is among the 60 of three processes with 95 %.
RECHECKS, RECHECK_S, RECHECK_SHARE = 20, 0.01, 0.02


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of one launch, those that it writes, and what tells the data of the others."""

    arguments: tuple[Any, ...]
    outputs: Sequence[Any]
    seed: int
    digest: object = None


def given(device: Device, workload: Workload, seed: int, *, is_kept: bool = False) -> Given:
    """Make the arguments of one launch; what ``is_kept`` is looked at again later."""
    rng = device.rng(seed)
    arguments = workload.make_inputs(rng)
    digest = device.digest(arguments, rng.outputs) if is_kept and not workload.in_place else None
    return Given(arguments, rng.outputs, seed, digest)


def check(
    device: Device, workload: Workload, *, where: str, seed: int, is_thorough: bool = True
) -> float | None:
    """Return the relative error on fresh data, as ``checked`` finds it."""
    found = checked(device, workload, where=where, seed=seed, is_thorough=is_thorough)
    return found.error if math.isfinite(found.error) else None


def checked(
    device: Device, workload: Workload, *, where: str, seed: int, is_thorough: bool = True
) -> Comparison:
    """Compare on fresh data; raise WrongResultError or CaseError.

    Two sets of data: the second is checked after the first call has compiled and autotuned, and a
    function that hands back a stored output fails there. Then the negative control must fail. Not
    ``is_thorough``, it is one set of data alone.
    """
    for offset in CHECK_SEEDS if is_thorough else CHECK_SEEDS[:1]:
        data = given(device, workload, seed * SEEDS + offset)
        expected = workload.reference(*data.arguments)
        returned = _launch(device, workload.fn, data)
        comparison = _compare(device, workload, returned, data, expected)
        _refuse_wrong(comparison, "output differs from the reference", where)
    if is_thorough:
        _refuse_control(device, workload, data, expected, where)
    return comparison


@dataclass(frozen=True, slots=True)
class Timed:
    """A workload that was timed: the group that was, over these input sets, so many launches.

    Its samples took ``spent_s``. The check allowed an error of ``limit``.
    """

    workload: Workload
    group: Group
    sets: Sequence[Given]
    launches: int
    spent_s: float
    limit: float
    where: str


class Recheck:
    """Compares what launches return once they were timed; raises WrongResultError, CaseError.

    What was right three times may be wrong from the fourth launch on. First, the inputs must be as
    they were made. Then each input set gets other data where it lies, which what a function kept of
    earlier launches does not answer; outputs are poisoned; the timed group is issued once more; and
    single launches follow. Inputs that cannot be refilled are compared as they were timed, and a
    launch on other ones follows; ``is_fresh`` says whether all were. What a launch returns is not
    poisoned: it may be a part of its inputs, or of what the function holds. Ranks of a gang take
    the same steps.
    """

    def __init__(self, device: Device, timed: Timed, seed: int) -> None:
        self.is_fresh = False
        self._device = device
        self._timed = timed
        self._last = timed.sets[last_of(timed.group.launches, len(timed.sets))]
        others = [each for each in timed.sets if each is not self._last]
        random.Random(seed).shuffle(others)  # noqa: S311 - an order, not a secret
        self._others = others[:RECHECKS]
        self._fresh_seed = seed * SEEDS + RECHECK_SEED
        self._expected: Any = None
        self._accepted: Any = None
        self._started_ns = 0

    def run(self) -> None:
        """Do so."""
        device, timed = self._device, self._timed
        self._refuse_changed()
        fresh, expected = self._made(self._fresh_seed)
        self.is_fresh = self._refilled([self._last, *self._others], fresh)
        if not self.is_fresh:
            self._refuse_unknown()
        self._expected = expected if self.is_fresh else self._made(self._last.seed)[1]
        self._started_ns = time.monotonic_ns() - waited_ns()
        sets = [*self._others, self._last]
        self._clear(sets, fresh)
        returned = device.again(timed.group, timed.workload.fn, self._last.arguments)
        self._compare(returned, self._last)
        if returned is None and timed.group.backend == "graph":
            for each in self._while_time_is_left(self._others):
                self._compare(None, each)
        if not self.is_fresh:
            fresh, self._expected = self._made(self._fresh_seed)
            self._launch_on(fresh, fresh)
            return
        first = [] if timed.workload.in_place else [fresh]
        for each in self._while_time_is_left([*first, *islice(cycle(sets), RECHECKS)]):
            returned = self._launch_on(each, fresh)
            if each is fresh:
                self._accepted = _written(returned, each)

    def _made(self, seed: int) -> tuple[Given, Any]:
        """Make arguments and their reference at once: it may know the last arguments alone."""
        made = given(self._device, self._timed.workload, seed)
        return made, self._timed.workload.reference(*made.arguments)

    def _refuse_changed(self) -> None:
        """Refuse launches that had other inputs than the first one."""
        device, timed, last = self._device, self._timed, self._last
        if timed.workload.in_place:
            returned = device.again(timed.group, timed.workload.fn, last.arguments)
            self._expected = self._made(last.seed)[1]
            self._compare(returned, last)
        elif device.digest(last.arguments, last.outputs) != last.digest:
            raise self._wrong("launches changed their input")

    def _refuse_unknown(self) -> None:
        """Go on without other data in the same places, where no launch needs them."""
        self._others.clear()
        if self._timed.workload.in_place:
            raise CaseError(
                "in_place=True, and the arguments cannot be given other data",
                where=self._timed.where,
                remedy="hand over tensors that rng made, alone or in tuples, lists and mappings",
            )

    def _refilled(self, sets: Sequence[Given], fresh: Given) -> bool:
        refill = self._device.refill
        done = all(refill(each.arguments, fresh.arguments, each.outputs) for each in sets)
        return not self._device.agree(float(not done))

    def _clear(self, sets: Sequence[Given], fresh: Given) -> None:
        """Let no output of an earlier launch pass for the next one's."""
        self._device.poison([output for each in sets for output in each.outputs])
        if self._timed.workload.in_place and self.is_fresh:
            self._refilled(sets, fresh)

    def _launch_on(self, data: Given, fresh: Given) -> Any:
        self._clear([data], fresh)
        returned = self._timed.workload.fn(*data.arguments)
        self._compare(returned, data)
        return returned

    def _compare(self, returned: Any, data: Given) -> None:
        device, actual, accepted = self._device, _written(returned, data), self._accepted
        if self._timed.group.backend == "host":  # as it was timed
            device.synchronize()  # else what the measuring stream did not wait for is not there
        # That all bits are those of a result that was right is seen in a fifth of the time.
        is_other = accepted is not None and not _share(device, actual, accepted)
        if is_other and device.compare(actual, accepted, 0.0).is_right:
            return
        comparison = _compare(device, self._timed.workload, returned, data, self._expected)
        if comparison.is_right and comparison.limit > self._timed.limit:
            raise self._wrong("output is less precise than it was when it was checked")
        if comparison.is_right:
            return
        if self.is_fresh and not self._timed.workload.in_place:
            made = given(device, self._timed.workload, self._fresh_seed, is_kept=True)
            if device.digest(data.arguments, data.outputs) != made.digest:
                raise self._wrong("launches changed their input")
        raise self._wrong("output differs from the reference", comparison.reason)

    def _while_time_is_left(self, sets: Iterable[Given]) -> Iterator[Given]:
        limit_s = max(RECHECK_S, self._device.agree(RECHECK_SHARE * self._timed.spent_s))
        for each in sets:
            # That others take this core is no cost of ours.
            spent_ns = time.monotonic_ns() - waited_ns() - self._started_ns
            if self._device.agree(spent_ns / 1e9) > limit_s:
                return
            yield each

    def _wrong(self, what: str, why: str = "") -> WrongResultError:
        return WrongResultError(
            f"{what} after {self._timed.launches} launches{': ' if why else ''}{why}",
            where=self._timed.where,
            remedy="let each launch do all its work on the inputs that it is handed; what it "
            "writes comes from rng.empty or is returned, or say in_place=True",
        )


def last_of(launches: int, sets: int) -> int:
    """Return which of the input sets the last launch of a group has."""
    return (launches - 1) % sets


def _written(returned: Any, data: Given) -> Any:
    """Return what a launch has as its result: what it returns, or else its outputs."""
    return tuple(data.outputs) if returned is None else returned


def _share(device: Device, one: Any, other: Any) -> bool:
    """Say whether two results lie in the same memory."""
    if one is other:
        return True
    return device.bytes_of([one, other]) < device.bytes_of([one]) + device.bytes_of([other])


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
    _refuse_wrong(comparison, "what was served differs from the reference", where)
    return comparison.error if math.isfinite(comparison.error) else None


def _refuse_control(
    device: Device, workload: Workload, data: Given, expected: Any, where: str
) -> None:
    returned = _launch(device, workload.wrong, data)
    _refuse(_compare(device, workload, returned, data, expected), where)


def _refuse(control: Comparison, where: str) -> None:
    if control.is_right:
        raise CaseError(
            f"the reference accepts the negative control (error {control.error:.3g} within "
            f"{control.limit:.3g})",
            where=where,
            remedy="make the reference or the tolerance strict enough to see the mistake",
        )


def _refuse_wrong(comparison: Comparison, what: str, where: str) -> None:
    if not comparison.is_right:
        raise WrongResultError(
            f"{what}: {comparison.reason}",
            where=where,
            remedy="fix the implementation, or its tolerance if the reference is right",
        )


def _launch(device: Device, fn: Callable[..., Any], data: Given) -> Any:
    device.poison(data.outputs)
    returned = fn(*data.arguments)
    device.synchronize()
    return returned


def _compare(
    device: Device, workload: Workload, returned: Any, data: Given, expected: Any
) -> Comparison:
    if returned is None and not data.outputs:
        return Comparison(math.inf, 0.0, "the function returned nothing and has no output to write")
    return device.compare(_written(returned, data), expected, workload.tolerance)
