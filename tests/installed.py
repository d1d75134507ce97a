"""Packages as pip installs them: a fresh environment, without a network."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(place: Path) -> Path:
    """Return the Python of a fresh environment with perfsuite installed; the rest is this one's."""
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    (packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    lines = [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    (packages / "outside.pth").write_text("\n".join(lines), encoding="utf-8")
    # A copy: building leaves its traces beside the sources.
    copy = place / "perfsuite"
    shutil.copytree(
        ROOT / "perfsuite", copy / "perfsuite", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    install(python, copy)
    return python


def install(python: Path, what: Path) -> None:
    """Install a wheel or a folder, without a network: the tools to build it are here."""
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    call(*pip, *offline, str(what), cwd=what if what.is_dir() else what.parent)


def wheel_of(folder: Path, place: Path) -> Path:
    """Build the wheel of a copy of what lies in a folder, and return it."""
    copy = place / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", "build"))
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    call(sys.executable, "-m", "pip", "wheel", *offline, "-w", "wheels", str(copy), cwd=place)
    (wheel,) = (place / "wheels").glob("*.whl")
    return wheel


def call(*command: str, cwd: Path, status: int = 0, **given: str) -> str:
    """Run a command as somebody else would; return what it said."""
    mine = ("PYTEST", "PYTHON", "PERFSUITE", "COV_", "COVERAGE", "PIP_CONSTRAINT")
    env = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**env, "TMPDIR": str(cwd), "PERFSUITE_LOCKS": str(cwd), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr
