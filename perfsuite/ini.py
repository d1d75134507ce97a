"""What a project's pytest settings say, for commands that run without pytest."""

from __future__ import annotations

import configparser
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsuite.errors import UsageError

# In pytest's own order. A file of pytest's alone holds even without a section.
FILES = {
    "pytest.toml": "pytest",
    ".pytest.toml": "pytest",
    "pytest.ini": "pytest",
    ".pytest.ini": "pytest",
    "pyproject.toml": "",
    "tox.ini": "pytest",
    "setup.cfg": "tool:pytest",
}


def text_of(root: Path, name: str, default: str) -> str:
    """Return a setting of one line; ``UsageError`` for a file that pytest could not read."""
    return str(_settings(root).get(name, default))


def paths_of(root: Path, name: str, default: Sequence[str]) -> tuple[Path, ...]:
    """Return a setting of type "paths", relative ones below ``root``; errors as ``text_of``."""
    found = _settings(root).get(name, list(default))
    words = shlex.split(found) if isinstance(found, str) else found
    return tuple(root / str(word) for word in words)


def _settings(root: Path) -> Mapping[str, Any]:
    """Return what pytest would read: the first file that has a section for it holds."""
    for name, section in FILES.items():
        path = root / name
        if not path.is_file():
            continue
        try:
            found = _of_toml(path) if path.suffix == ".toml" else _of_ini(path, section)
        except (configparser.Error, ValueError, RecursionError) as error:
            kind = "TOML" if path.suffix == ".toml" else "ini file"
            raise UsageError(f"not valid {kind}: {error}", where=str(path)) from error
        if found is not None or "pytest" in name:
            return found or {}
    return {}


def _of_toml(path: Path) -> Mapping[str, Any] | None:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    if "pytest" in path.name:
        return document.get("pytest")
    tables = document.get("tool", {}).get("pytest", {})
    own = {name: value for name, value in tables.items() if name != "ini_options"}
    older = tables.get("ini_options")
    if own and older:
        raise UsageError(
            "[tool.pytest] and [tool.pytest.ini_options] both have settings",
            where=str(path),
            remedy="move them to one of the two; pytest refuses both",
        )
    return own or older


def _of_ini(path: Path, section: str) -> Mapping[str, Any] | None:
    # As iniconfig, which pytest has read it: no section's values are others' too.
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path, encoding="utf-8-sig")
    if not parser.has_section(section):
        return None
    lines = {name: value.split("\n") for name, value in parser[section].items()}
    return {name: "\n".join(filter(None, value)) for name, value in lines.items()}
