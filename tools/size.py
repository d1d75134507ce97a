"""Count what perfsuite is made of, and fail where it outgrows its limits: python tools/size.py.

A code line holds code: no blank, no comment, no docstring. A package is a file or a folder at the
top of perfsuite/; a limit is raised by a commit of its own, with its reason.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Code lines of each package: its names at the top of perfsuite/, without ".py".
CORE = {
    "__init__ hooks": 150,
    "model boundary": 450,
    "packs": 680,
    "devices": 1_050,
    "engine": 560,
    "workers": 980,
    "judge stats": 600,
    "store": 730,
    "run": 810,
    "report": 1_500,
    "plugin session items cli": 670,
    "testing": 340,
}
FEATURES = {
    "explain": 700,
    "history": 500,
    "nightly": 750,
    "prove": 900,
    "interop": 150,
    "gpu": 250,
}
LIMITS = {
    "core": 8_800,
    "features": 3_000,
    "core path": 3_800,
    "tools": 800,
    "tests": 8_000,
    "templates, js, css": 1_800,
    "modules": 60,
    "names": 22,
    "layers": 7,
    # Numbers in judge/ other than 0, 1 and 2: each is measured, or named as a choice.
    "numbers": 20,
}
# What a stranger reads first, in this order.
CORE_PATH = (
    "plugin.py run/config.py run/run.py workers/panel.py workers/server.py "
    "engine/calibrate.py engine/measure.py model.py judge/compare.py judge/verdict.py "
    "store/runs.py store/baselines.py"
)
# What fails where it is more than the limit. The core may be a tenth over its own; what was over
# when this was written may not grow: each step lowers its number, and drops it at the limit.
CORE_ALARM = 9_700
TODAY = {
    "core": 13_983,
    "features": 3_792,
    "core path": 4_987,
    "tests": 14_241,
    "modules": 77,
}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_CODE |= {tokenize.ENCODING, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Size(NamedTuple):
    """What some files hold."""

    lines: int = 0
    statements: int = 0


def size_of(source: str) -> Size:
    """Count the code lines and the statements of one file."""
    nodes = list(ast.walk(ast.parse(source)))
    found = (node for node in nodes if isinstance(node, DOCUMENTED) and ast.get_docstring(node))
    docs = [node.body[0] for node in found]
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for doc in docs:
        lines.difference_update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    return Size(len(lines), sum(isinstance(node, ast.stmt) for node in nodes) - len(docs))


def numbers_in(source: str) -> int:
    """Count the numbers of one file that are not 0, 1 or 2."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    values = (node.value for node in nodes if not isinstance(node.value, bool))
    return sum(isinstance(value, int | float) and value not in {0, 1, 2} for value in values)


def total(sizes: Iterable[Size]) -> Size:
    """Add up."""
    return Size(*map(sum, zip(Size(), *sizes, strict=True)))


def counted() -> dict[str, Size]:
    """Return the size of each package, and of what has a limit of its own."""
    files = {
        path.relative_to(ROOT): size_of(path.read_text(encoding="utf-8"))
        for folder in ("perfsuite", "tools", "tests")
        for path in ROOT.glob(f"{folder}/**/*.py")
    }
    owners = {name: owner for owner in (*CORE, *FEATURES) for name in owner.split()}
    held: dict[str, list[Size]] = {name: [] for name in (*CORE, "elsewhere", *FEATURES)}
    held |= {"core path": [], "tools": [], "tests": []}
    for path, size in files.items():
        top, name, *_ = path.parts
        owner = owners.get(Path(name).stem, "elsewhere") if top == "perfsuite" else top
        held[owner].append(size)
        if path.as_posix().removeprefix("perfsuite/") in CORE_PATH.split():
            held["core path"].append(size)
    found = {name: total(sizes) for name, sizes in held.items()}
    found["core"] = total(found[name] for name in (*CORE, "elsewhere"))
    found["features"] = total(found[name] for name in FEATURES)
    shown = (p for end in ("j2", "js", "css") for p in ROOT.glob(f"perfsuite/**/*.{end}"))
    written = (path.read_bytes() for path in shown if "vendor" not in path.parts)
    found["templates, js, css"] = Size(sum(len(text.splitlines()) for text in written))
    found["modules"] = Size(sum(path.parts[0] == "perfsuite" for path in files))
    # A folder that was moved may leave what Python compiled.
    inside = (path.relative_to(ROOT) for path in ROOT.glob("perfsuite/**/*") if path.is_file())
    names = {path.parts[1] for path in inside if "__pycache__" not in path.parts}
    found["names"] = Size(len(names - {"py.typed"}))
    judges = (p.read_text(encoding="utf-8") for p in ROOT.glob("perfsuite/judge/*.py"))
    found["numbers"] = Size(sum(map(numbers_in, judges)))
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    found["layers"] = Size(sum(len(each.get("layers", ())) for each in contracts))
    return found


def main() -> int:
    """Print the sizes; return 1 where one is over what it may be today."""
    alarms = {**LIMITS, "core": CORE_ALARM, **TODAY}
    found = counted()
    if found["core"].lines <= CORE_ALARM:  # until then code moves from package to package
        alarms |= {**CORE, "elsewhere": 0, **FEATURES}
    print(f"{'':20}{'lines':>8}{'limit':>8}{'alarm':>8}{'statements':>12}")
    for name, (lines, statements) in found.items():
        limit = {"elsewhere": 0, **CORE, **FEATURES, **LIMITS}[name]
        shown = f"{name:20}{lines:8,}{limit:8,}{alarms.get(name, ''):8}{statements or '':12}"
        print(shown + "  OVER" * (lines > limit) + " ITS ALARM" * (lines > alarms.get(name, lines)))
    return int(any(found[name].lines > alarm for name, alarm in alarms.items()))


if __name__ == "__main__":
    raise SystemExit(main())
