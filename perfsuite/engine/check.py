"""Checks a workload's output against its reference, before it is timed and once it was."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from perfsuite.boundary import CaseError, WrongResultError
from perfsuite.devices.protocol import Comparison, Device, count_flops, waited_ns
from perfsuite.model import Scenario, Workload

if TYPE_CHECKING:
    from perfsuite.engine.calibrate import Plan
    from perfsuite.engine.measure import Session

# Seeds of one worker are this far apart, so that its input sets and checks never share data.
SEEDS = 1000
CHECK_SEEDS = (SEEDS - 2, SEEDS - 1)
RECHECK_SEED = SEEDS - 3
# So many launches of a process are compared after it was timed, in no more than this time or share
# of what its samples took.
# A result that is wrong once in twenty is among the 60 of two processes with 95 %.
RECHECKS, RECHECK_S, RECHECK_SHARE = 30, 0.015, 0.02
NOT_REFILLED = (
    "its inputs cannot be given other data: the timed launches were compared on their own"
)
DIFFERS = "output differs from the reference"


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
    inputs = workload.make_inputs
    made: Any = inputs(rng)
    if not isinstance(made, (tuple, list)):
        name = getattr(getattr(inputs, "func", inputs), "__name__", "make_inputs")
        what = f"{name}() must return a tuple of inputs, not {type(made).__name__}"
        raise CaseError(what, remedy="return (x,) where there is one input alone")
    arguments = tuple(made)
    digest = device.digest(arguments, rng.outputs) if is_kept and not workload.in_place else None
    return Given(arguments, rng.outputs, seed, digest)


class Checked(NamedTuple):
    """A result that was right: its error, what was allowed, and what tells it from any other.

    Nothing does where the mark is empty. ``written`` are its bytes, ``flops`` the operations of the
    launch where they are known.
    """

    known_error: float | None = None
    limit: float = 0.0
    mark: str = ""
    written: int = 0
    flops: float | None = None


def check(
    device: Device, built: Workload | Scenario, *, seed: int, is_thorough: bool = True
) -> Checked:
    """Compare on fresh data; raise WrongResultError or CaseError.

    Two sets of data: the second is checked after the first call has compiled and autotuned, and a
    function that hands back a stored output fails there. Of a scenario it is one play. Then the
    negative controls must fail: the case's, and the device's own. Not ``is_thorough``, it is the
    last set of data alone.
    """
    if isinstance(built, Scenario):
        _, _, comparison, expected = play(device, built, seed)
        if is_thorough:
            _refuse_control(device.compare(built.wrong(seed), expected, built.tolerance))
        return Checked(comparison.known_error, comparison.limit)

    earlier: Any = ()
    for offset in CHECK_SEEDS if is_thorough else CHECK_SEEDS[-1:]:
        data = given(device, built, seed * SEEDS + offset)
        refer = partial(built.reference, *data.arguments)
        is_counted = built.flops is None and built.rate_dtype
        expected, flops = count_flops(refer) if is_counted else (refer(), built.flops)
        if is_counted and not flops:
            raise CaseError("torch counts no operation of the reference; state flops or work")
        returned = _launched(device, built.fn, data)
        _refuse_coarse(returned, data, expected)
        comparison = _compared(device, built, returned, data, expected)
        _refuse_wrong(comparison, DIFFERS)
        if is_thorough and offset != CHECK_SEEDS[-1]:
            earlier = device.ends(_written(returned, data))
    found = _mark(device, returned, data)._replace(
        known_error=comparison.known_error, limit=comparison.limit, flops=flops
    )
    if is_thorough:
        made = [*device.mistakes(_written(returned, data), expected, earlier, built.tolerance)]
        for mistake, control in made:
            _refuse_control(control, f": {mistake}")
        controls = built.wrong if isinstance(built.wrong, tuple) else (built.wrong,)
        for wrong in controls:
            # A control that does nothing would find what was done in place.
            fresh = given(device, built, data.seed) if built.in_place else data
            returned = _launched(device, wrong, fresh)
            _refuse_control(_compared(device, built, returned, fresh, expected))
        if not made and not controls:
            raise CaseError(
                "nothing shows that the reference refuses a mistake",
                remedy="hand over wrong=..., a function that makes a mistake which a bug would",
            )
    return found


def marked(device: Device, workload: Workload, *, seed: int) -> Checked:
    """Launch on the last data of a check; return what tells the result from any other."""
    data = given(device, workload, seed * SEEDS + CHECK_SEEDS[-1])
    return _mark(device, _launched(device, workload.fn, data), data)._replace(flops=workload.flops)


def _launched(device: Device, fn: Callable[..., Any], data: Given) -> Any:
    device.poison(data.outputs)
    returned = fn(*data.arguments)
    device.synchronize()
    return returned


def _mark(device: Device, returned: Any, data: Given) -> Checked:
    """Return a hash of all bits of a result, nothing where some of it cannot be read."""
    result = _written(returned, data)
    found: Any = device.digest((result,), ())
    is_known = found and None not in found
    mark = hashlib.blake2b(repr(found).encode(), digest_size=16).hexdigest() if is_known else ""
    return Checked(mark=mark, written=device.bytes_of([result]))


def play(
    device: Device, scenario: Scenario, seed: int, expected: Any = None
) -> tuple[float, Mapping[str, float], Comparison, Any]:
    """Play once, and compare with what is expected, found here if it is not given.

    Returns how many microseconds it took, what it reported, how it compares, what was expected.
    """
    device.synchronize()
    begun = time.perf_counter()
    found: Any = scenario.play(seed)
    device.synchronize()
    time_us = 1e6 * (time.perf_counter() - begun)
    match found:
        case (output, Mapping() as metrics):
            expected = scenario.reference(seed) if expected is None else expected
            comparison = device.compare(output, expected, scenario.tolerance)
            _refuse_wrong(comparison, "what was served differs from the reference")
            return time_us, metrics, comparison, expected
    raise CaseError(
        f"play() returned {type(found).__name__}, not its output and a mapping of metrics",
        remedy='return output, {"ttft_ms": 12.5}',
    )


@dataclass(slots=True)
class Recheck:
    """Compares what launches return once they were timed; raises WrongResultError, CaseError.

    What was right three times may be wrong from the fourth launch on. First, the inputs must be as
    they were made. Then each input set gets other data where it lies, which what a function kept of
    earlier launches does not answer; outputs are poisoned; the timed group is issued once more; and
    single launches follow. Inputs that cannot be refilled are compared as they were timed, and a
    launch on other ones follows, which is noted. What a launch returns is not
    poisoned: it may be a part of its inputs, or of what the function holds. Ranks of a gang take
    the same steps.
    """

    session: Session
    workload: Workload
    plan: Plan
    is_fresh: bool = False
    _fresh: tuple[Any, ...] = ()
    _expected: Any = None
    _accepted: Any = None

    def run(self) -> None:
        """Do so."""
        workload, group, seed = self.workload, self.plan.group, self.session.seed
        again = partial(self.session.device.again, group, workload.fn)
        digest = self.session.device.digest
        last = self.plan.last
        others = [each for each in self.plan.sets if each is not last]
        random.Random(seed).shuffle(others)  # noqa: S311 - an order, not a secret
        others = others[:RECHECKS]

        if workload.in_place:
            returned = again(last.arguments)
            self._made(last.seed)
            self._compare(returned, last)
        elif digest(last.arguments, last.outputs) != last.digest:
            raise self._wrong("launches changed their input")

        fresh = self._made(seed * SEEDS + RECHECK_SEED)
        self._fresh = fresh.arguments
        self.is_fresh = self._refill([last, *others])
        if not self.is_fresh:
            if workload.in_place:
                raise CaseError(
                    "in_place=True, and the arguments cannot be given other data",
                    remedy="hand over tensors of rng, alone or in tuples, lists and mappings",
                )
            self.session.notes.append(NOT_REFILLED)
            others = []
            self._made(last.seed)

        started_ns = time.monotonic_ns() - waited_ns()
        sets = [*others, last]
        self._clear(sets)
        returned = again(last.arguments)
        self._compare(returned, last)
        if returned is None and group.backend == "graph":
            for each in self._while_time_is_left(others, started_ns):
                self._compare(None, each)
        if not self.is_fresh:
            self._launch(self._made(fresh.seed))
            return
        first = [] if workload.in_place else [fresh]
        singles = [*first, *islice(cycle(sets), RECHECKS)]
        for each in self._while_time_is_left(singles, started_ns):
            returned = self._launch(each)
            if each is fresh:
                self._accepted = _written(returned, each)

    def _made(self, seed: int) -> Given:
        """Make arguments and, at once, their reference: it may know the last arguments alone."""
        made = given(self.session.device, self.workload, seed)
        self._expected = self.workload.reference(*made.arguments)
        return made

    def _refill(self, sets: Sequence[Given]) -> bool:
        device = self.session.device
        done = all(device.refill(each.arguments, self._fresh, each.outputs) for each in sets)
        return not device.agree(float(not done))

    def _clear(self, sets: Sequence[Given]) -> None:
        """Let no output of an earlier launch pass for the next one's."""
        self.session.device.poison([output for each in sets for output in each.outputs])
        if self.workload.in_place and self.is_fresh:
            self._refill(sets)

    def _launch(self, data: Given) -> Any:
        self._clear([data])
        returned = self.workload.fn(*data.arguments)
        self._compare(returned, data)
        return returned

    def _compare(self, returned: Any, data: Given) -> None:
        device, actual, accepted = self.session.device, _written(returned, data), self._accepted
        if self.plan.group.backend == "host":  # as it was timed
            device.synchronize()  # else what the measuring stream did not wait for is not there
        # That all bits are those of a result that was right is seen in a fifth of the time.
        is_other = accepted is not None and not _share(device, actual, accepted)
        if is_other and device.compare(actual, accepted, 0.0).is_right:
            return
        comparison = _compared(device, self.workload, returned, data, self._expected)
        if not comparison.is_right:
            if self.is_fresh and not self.workload.in_place:
                seed = self.session.seed * SEEDS + RECHECK_SEED
                made = given(device, self.workload, seed, is_kept=True)
                if device.digest(data.arguments, data.outputs) != made.digest:
                    raise self._wrong("launches changed their input")
            raise self._wrong(DIFFERS, f": {comparison.reason}")
        if comparison.limit > self.session.checked.limit:
            raise self._wrong("output is less precise than it was when it was checked")

    def _while_time_is_left(self, sets: Iterable[Given], started_ns: int) -> Iterator[Given]:
        agree, phases_s = self.session.device.agree, self.session.phases_s
        sampled_s = sum(phases_s.get(name, 0.0) for name in ("settle", "measure", "spin"))
        limit_s = max(RECHECK_S, agree(RECHECK_SHARE * sampled_s))
        for each in sets:
            # That others take this core is no cost of ours.
            spent_ns = time.monotonic_ns() - waited_ns() - started_ns
            if agree(spent_ns / 1e9) > limit_s:
                return
            yield each

    def _wrong(self, what: str, why: str = "") -> WrongResultError:
        return WrongResultError(
            f"{what} after {self.plan.launched} launches{why}",
            remedy="let each launch do all its work on the inputs that it is handed. Write to what "
            "rng.empty made, return the result, or say in_place=True",
        )


def _refuse_wrong(comparison: Comparison, what: str) -> None:
    if not comparison.is_right:
        remedy = "fix the implementation, or the reference if none agrees with it, or the tolerance"
        raise WrongResultError(f"{what}: {comparison.reason}", remedy=remedy)


def _refuse_coarse(returned: Any, data: Given, expected: Any) -> None:
    """Refuse floats of less precision than all that is given: they would allow their own error.

    What ``rng.empty`` made says it before other arguments. A reference may return less.
    """
    given = _floats(data.outputs) or _floats(data.arguments)
    least = min((each.itemsize for each in (*given, *_floats(expected))), default=0)
    for kind in (each for each in _floats(returned) if given and each.itemsize < least):
        got, due = (str(each).removeprefix("torch.") for each in (kind, given[0]))
        raise WrongResultError(
            f"returns {got}, and is given {due}",
            remedy=f"return {due}; if {got} is meant, let the reference or rng.empty() make that",
        )


def _floats(value: Any) -> list[Any]:
    """Return the dtypes of the tensors and arrays of floats, tuples and lists opened."""
    if isinstance(value, (tuple, list)):
        return [kind for part in value for kind in _floats(part)]
    kind = getattr(value, "dtype", None)
    return [kind] if getattr(kind, "is_floating_point", getattr(kind, "kind", "") == "f") else []


def _refuse_control(control: Comparison, mistake: str = "") -> None:
    if control.is_right:
        raise CaseError(
            f"the reference accepts the negative control{mistake} (error {control.error:.3g} "
            f"within {control.limit:.3g})",
            remedy="make the reference or the tolerance strict enough to see the mistake",
        )


def _compared(
    device: Device, workload: Workload, returned: Any, data: Given, expected: Any
) -> Comparison:
    if returned is None and not data.outputs:
        return Comparison(math.inf, 0.0, "the function returned nothing and has no output to write")
    return device.compare(_written(returned, data), expected, workload.tolerance)


def _written(returned: Any, data: Given) -> Any:
    """Return what a launch has as its result: what it returns, or else its outputs."""
    return tuple(data.outputs) if returned is None else returned


def _share(device: Device, one: Any, other: Any) -> bool:
    """Say whether two results lie in the same memory."""
    if one is other:
        return True
    return device.bytes_of([one, other]) < device.bytes_of([one]) + device.bytes_of([other])
