"""Listens to a run, adds a section of hostile text, and fails where a test asks for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import perfsuite

HOSTILE = '<script>alert(1)</script> | `x` [click](javascript:alert(1)) @octocat "><img src=x>'


def _listen(hook: str, text: str) -> None:
    if os.environ.get("LISTENING_FAILS") == hook:
        raise ValueError(f"{hook} was told to fail")
    if log := os.environ.get("LISTENING_LOG"):
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{hook} {text}\n")


@perfsuite.hookimpl
def perf_result(result: Any, variant: Any) -> None:
    """Write down how a variant ended."""
    _listen("result", f"{variant.id} {result.status.value}")


@perfsuite.hookimpl
def perf_verdict(verdict: Any, variant: Any, run: Any) -> None:
    """Write down a verdict."""
    _listen("verdict", f"{variant.id} {verdict.word.value} of {len(run.variants)}")


@perfsuite.hookimpl
def perf_report_section(run: Any) -> perfsuite.Section:
    """Return a table of wall times."""
    _listen("section", run.id)
    return perfsuite.Section(
        title="Wall time by Acme",
        text=f"As measured. {HOSTILE}",
        columns=("variant", HOSTILE),
        rows=[(result.variant, HOSTILE) for result in run.asked],
    )
