"""Makes the pack and perfsuite importable when not installed, here and in child processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import perfsuite

FOLDERS = [str(Path(__file__).parents[1]), str(Path(perfsuite.__file__).parents[1])]

sys.path[:0] = [folder for folder in FOLDERS if folder not in sys.path]
os.environ["PYTHONPATH"] = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
