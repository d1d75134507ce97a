"""Reads a variant's metrics without noise, and has them refused when they are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfsuite.engine.bench import Bench
from perfsuite.errors import CaseError, WrongResultError
from perfsuite.model import Evidence, Inspection, Sampling


class Inspecting:
    """The measuring of an inspection: there is nothing to time."""

    def __init__(self, bench: Bench, inspection: Inspection) -> None:
        self._bench = bench
        self._inspection = inspection

    @property
    def has_enough(self) -> bool:
        """Say yes: it was read when it was checked."""
        return True

    def check(self, announce: Callable[[str], None], *, is_thorough: bool) -> None:
        """Read and check; raises WrongResultError or CaseError."""
        del is_thorough  # there is one process only
        self._bench.phase("check", announce, self._read)

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None) -> None:
        """Do nothing more."""

    def block(self) -> None:
        """Take no samples."""

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Do nothing more."""

    def evidence(self) -> Evidence:
        """Return an evidence that was counted, not timed."""
        return Evidence(slot=0, seed=0, backend="counted")

    def _read(self) -> None:
        bench, inspection = self._bench, self._inspection
        found = bench.declared(inspection.read())
        if not found:
            raise CaseError("the inspection read no metric", where=bench.case.name)
        if inspection.reference is not None and inspection.wrong is not None:
            expected = bench.declared(inspection.reference())
            if not expected:
                raise CaseError("the reference holds no metric", where=bench.case.name)
            difference = _difference(found, expected)
            if difference:
                raise WrongResultError(
                    f"metrics differ from the reference: {difference}",
                    where=bench.case.name,
                    remedy="fix the implementation, or the reference if it is at fault",
                )
            if not _difference({**found, **bench.declared(inspection.wrong())}, expected):
                raise CaseError(
                    "the reference accepts the negative control",
                    where=bench.case.name,
                    remedy="let the reference hold a metric that the mistake changes",
                )
        bench.log.exact.update(found)


def _difference(found: Mapping[str, float], expected: Mapping[str, float]) -> str:
    for name, value in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != value:
            return f"{name} is {found[name]:.9g} instead of {value:.9g}"
    return ""
