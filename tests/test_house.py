"""House rules that no linter knows: sizes, words, and what library code leaves alone."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [file.parent for file in ROOT.glob("plugins/*/perfsuite_*/__init__.py")]
EXAMPLES = [file.parent for file in ROOT.glob("examples/*/*_perf/__init__.py")]
LIBRARY = sorted(
    path for folder in (ROOT / "perfsuite", *PACKAGES, *EXAMPLES) for path in folder.rglob("*.py")
)
TESTS = sorted(
    path
    for pattern in ("conftest.py", "cases/*.py", "tests/**/*.py", "plugins/*/tests/**/*.py")
    for path in ROOT.glob(pattern)
)

MOST_FUNCTION_LINES = 50
MOST_FILE_LINES = 400
# Each has a word of ours: baseline, accept, change, warm-up, calibration, noise, history...
FOREIGN_WORDS = re.compile(
    r"(^|_)(golden|snapshot|bless|speedup|burn_?in|autorange|jitter|kpi|mfu|testcase)(_|$|s$)"
)
VAGUE_MODULES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
VAGUE_VERBS = ("handle_", "process_", "do_")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Return the modules that one names, where it stands and for its types."""
    found = {node for node in nodes(path) if isinstance(node, ast.ImportFrom) and node.module}
    modules = {module(each) for each in LIBRARY}
    named = {(f"{node.module}.{alias.name}", node.module) for node in found for alias in node.names}
    return {whole if whole in modules else str(home) for whole, home in named}


@pytest.mark.parametrize("path", LIBRARY, ids=label)
def test_library_files_stay_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_FILE_LINES


def test_no_modules_need_each_other() -> None:
    """Also for their types: a circle is read as one module, whatever lies in which file."""
    files = {name: path for path in LIBRARY if (name := module(path)).startswith("perfsuite.")}
    TopologicalSorter(
        {name: imported(path) & files.keys() for name, path in files.items()}
    ).prepare()


@pytest.mark.parametrize("path", [*LIBRARY, *TESTS], ids=label)
def test_functions_stay_short(path: Path) -> None:
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in nodes(path)
        if isinstance(node, Function) and node.end_lineno
    }
    assert {name: lines for name, lines in long.items() if lines > MOST_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", LIBRARY, ids=label)
def test_names_use_the_project_s_words(path: Path) -> None:
    names = {node.arg for node in nodes(path) if isinstance(node, ast.arg)}
    for node in nodes(path):
        if isinstance(node, Function):
            names.add(node.name)
            assert not node.name.lstrip("_").startswith(VAGUE_VERBS), node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    assert {name for name in names if FOREIGN_WORDS.search(name.lower())} == set()
    assert path.stem not in VAGUE_MODULES


@pytest.mark.parametrize("path", LIBRARY, ids=label)
def test_library_code_neither_prints_nor_exits(path: Path) -> None:
    calls = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
    assert calls & {"print", "exit", "quit", "sys.exit"} == set()


def test_linted_packages_are_those_of_the_plugins_folder() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    packages = {path.name for path in PACKAGES}
    assert set(config["importlinter"]["root_packages"]) == {"perfsuite", *packages}


def test_every_pack_folder_is_an_extra_and_a_distribution() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra = set(config["project"]["optional-dependencies"]["packs"])
    for folder in ROOT.glob("plugins/*/pyproject.toml"):
        pack = tomllib.loads(folder.read_text(encoding="utf-8"))["project"]
        assert pack["name"] in extra
        assert pack["name"] == f"perfsuite-{folder.parent.name}"
        assert len(pack["entry-points"]["perfsuite"]) == 1
