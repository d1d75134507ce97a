"""A project's pytest settings, for commands that run without pytest: pyproject.toml alone."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfsuite.errors import UsageError

# Pytest reads settings from these as well.
OTHERS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg")


def text_of(root: Path, name: str, default: str) -> str:
    """Return a setting of one line; ``UsageError`` where commands cannot read it."""
    return str(_setting(root, name, default))


def paths_of(root: Path, name: str, default: Sequence[str]) -> tuple[Path, ...]:
    """Return a setting of type "paths", relative ones below ``root``; errors as ``text_of``."""
    found = _setting(root, name, list(default))
    words = shlex.split(found) if isinstance(found, str) else found
    return tuple(root / str(word) for word in words)


def _setting(root: Path, name: str, default: object) -> Any:
    # A command that went by the default where the tests do not would write to the wrong place.
    for other in filter(Path.is_file, map(root.joinpath, OTHERS)):
        if re.search(rf"^\s*{name}\b", other.read_text("utf-8", errors="replace"), re.MULTILINE):
            raise UsageError(
                f"the setting {name} stands where commands do not read it",
                where=str(other),
                remedy="move pytest's settings to [tool.pytest.ini_options] of pyproject.toml",
            )
    path = root / "pyproject.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not valid TOML: {error}", where=str(path)) from error
    tables = document.get("tool", {}).get("pytest", {})
    return tables.get("ini_options", tables).get(name, default)
