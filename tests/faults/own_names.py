"""D4: files of the project that are named as modules of Python's, or as what perfsuite imports."""

from __future__ import annotations

from functools import partial

from faults.lab import CHECK, Scene, Stage
from faults.rows import Fault, exits, of

GROUP = "own name"
NAMES = (
    "array", "ast", "asyncio", "base64", "bisect", "calendar", "cmd", "code", "colorsys", "copy",
    "csv", "dataclasses", "datetime", "decimal", "email", "enum", "fractions", "functools",
    "hashlib", "html", "http", "inspect", "io", "json", "linecache", "locale", "logging", "math",
    "multiprocessing", "numbers", "operator", "pathlib", "pickle", "platform", "queue", "random",
    "re", "resource", "secrets", "select", "selectors", "shutil", "signal", "socket", "statistics",
    "string", "struct", "subprocess", "tempfile", "test", "threading", "time", "token", "tokenize",
    "traceback", "types", "typing", "uuid", "warnings", "zlib",
    "jinja2", "msgspec", "numpy", "perfsuite", "pluggy", "rich", "scipy", "sqlalchemy", "torch",
)  # fmt: skip
# Those by which the server of a run died, each looked at alone.
ALONE = ("inspect", "numbers", "numpy", "perfsuite", "platform", "queue", "random", "resource",
         "statistics", "token", "torch", "zlib")  # fmt: skip
# It notes that it was imported, and gives way to the module that was meant.
TELLTALE = """
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "imported"), "a") as file:
    file.write(__name__ + ";")
kept = list(sys.path)
sys.path[:] = [path for path in kept if os.path.abspath(path or ".") != here]
found = (finder.find_spec(__name__, None) for finder in list(sys.meta_path))
spec = next(spec for spec in found if spec)
sys.path[:] = kept
sys.modules[__name__] = module = sys.modules["_frozen_importlib"].module_from_spec(spec)
spec.loader.exec_module(module)
"""


def told(seen: str, see: str) -> None:
    """Look at the names of the files that were imported."""
    assert see.partition(" ")[0] not in seen.split(";"), "it was imported"


def shadowed(device: str, stage: Stage) -> dict[str, object]:
    """Run a project with all these files, which tell who imports them."""
    for name in NAMES:
        stage.write(f"{name}.py", TELLTALE)
    done = stage.perf(*CHECK, f"--perf-device={device}", "--perf-select=n=1")
    path = stage.project / "imported"
    return {"run": done, "imported": path.read_text(encoding="utf-8") if path.exists() else ""}


def all_of_them(stage: Stage) -> object:
    """Run a project where a module of each name is empty."""
    for name in NAMES:
        stage.write(f"{name}.py", '"""A harmless file of the project."""\n')
    return stage.perf(*CHECK)


TELLTALES = Scene("own names", partial(shadowed, "fake"))
FAULTS = (
    *(
        Fault(GROUP, f"{name}.py in the project's folder (D4)", f"{name} is not imported",
              TELLTALES, of("imported", told))
        for name in ALONE
    ),
    Fault(GROUP, f"{len(NAMES)} such files (D4)", "exit 0: 2 checked",
          Scene("empty names", all_of_them), exits, is_alone=True),
)  # fmt: skip
