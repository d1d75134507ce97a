"""A folder that takes long to make: made once, and copied for who else starts from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

# Fills the folder, by the function if nobody has done it yet.
Fill = Callable[[Path, Callable[[], object]], None]


def filling_once(kept: Path) -> Fill:
    """Return what keeps the first folder that it fills in ``kept``, which is not there yet."""

    def fill(folder: Path, make: Callable[[], object]) -> None:
        if kept.exists():
            shutil.copytree(kept, folder, dirs_exist_ok=True, symlinks=True)
        else:
            make()
            shutil.copytree(folder, kept, symlinks=True)

    return fill
