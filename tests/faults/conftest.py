"""Plays the scenes of the faults, two at a time, and prints the table at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.lab import Lab
from faults.rows import Fault

WORKERS = 2
ORDER = ("passed", "failed", "error", "skipped")


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Where scenes are played; not in pytest's own folder, which is closed to other users."""
    root = Path(tempfile.mkdtemp(prefix="faults "))
    root.chmod(0o755)
    # xdist's workers have half of the rows each: what each plays is what its rows ask for.
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    made = Lab(root, 1 if is_shared else WORKERS)
    if not is_shared:
        found = (_fault_of(item) for item in request.session.items)
        made.ahead(dict.fromkeys(fault.scene for fault in found if fault))
    yield made
    made.close()


def _fault_of(item: pytest.Item) -> Fault | None:
    found = getattr(item, "callspec", None)
    fault = found.params.get("fault") if found else None
    return fault if isinstance(fault, Fault) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let a row's words travel with its report, also from another process."""
    fault = _fault_of(item)
    if fault:
        item.user_properties.append(("fault", f"{fault.group}\t{fault.done}\t{fault.see}"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table: what was done, what must be seen, and whether it was."""
    found = {}
    for outcome in ORDER:
        for report in terminalreporter.stats.get(outcome, ()):
            told = dict(getattr(report, "user_properties", ())).get("fault")
            if told and (report.when == "call" or outcome != "passed"):
                found[report.nodeid] = (outcome, *told.split("\t"))
    if not found:
        return
    terminalreporter.section("faults")
    for outcome, group, done, see in found.values():
        terminalreporter.write_line(f"{outcome:8}{group:12}{done:66} -> {see}")
    bad = sum(row[0] not in {"passed", "skipped"} for row in found.values())
    terminalreporter.write_line(f"{len(found)} faults, {bad} not seen as they must be")
