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
        except (tomllib.TOMLDecodeError, configparser.Error, UnicodeDecodeError) as error:
            kind = "TOML" if path.suffix == ".toml" else "ini file"
            raise UsageError(f"not valid {kind}: {error}", where=str(path)) from error
        if found is not None or "pytest" in name:
            return found or {}
    return {}


def _of_toml(path: Path) -> Mapping[str, Any] | None:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    if "pytest" in path.name:
        return document.get("pytest")
    own = document.get("tool", {}).get("pytest")
    return None if own is None else own.get("ini_options", own)


def _of_ini(path: Path, section: str) -> Mapping[str, Any] | None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(path, encoding="utf-8")
    return dict(parser[section]) if parser.has_section(section) else None
