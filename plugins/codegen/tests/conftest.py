"""Makes the pack and the planted kernels importable, installed or not."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

sys.path[:0] = [str(HERE.parent), str(HERE)]
