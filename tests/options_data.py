"""The options of a session in which nothing was asked for."""

from __future__ import annotations

from pathlib import Path

from perfsuite.run.config import Options

FAIL_ON = ("slower", "over-budget", "broken", "wrong", "crashed", "timed-out", "error")
OPTIONS = Options(
    root=Path("/project"),
    tier="smoke",
    select="",
    device="auto",
    packs=(),
    pack=(),
    processes=None,
    seed=0,
    check=False,
    profile=False,
    resume=False,
    accept=False,
    reason="",
    fail_on=FAIL_ON,
    threshold=None,
    gate=None,
    report=Path("reports"),
    baselines=(),
    command="pytest --perf",
    features={"perf_history": ""},
)
