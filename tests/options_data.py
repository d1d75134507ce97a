"""The options of a session in which nothing was asked for."""

from __future__ import annotations

from pathlib import Path

from perfsuite.run.config import Config

OPTIONS = Config(root=Path("/project"), command="pytest --perf", features={"perf_history": ""})
