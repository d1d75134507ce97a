"""The pages of the reference that are made of the code."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from markup import code, docstring, escaped, prose, table
from schemas import baseline_schema, run_schema, schema_page, verdict_schema

import perfsuite
from perfsuite import hooks as hookspecs
from perfsuite.run.config import EXIT_MACHINE, INI, OPTIONS

VARIABLES = {
    "PYTHON": "set by `perfsuite nightly` for its script: the Python that has perfsuite",
    "PERFSUITE_HISTORY": "URL of the history; wins over `perf_history`, and is the place for a "
    "password",
    "PERFSUITE_LOCKS": "runs with another word here do not refuse each other a unit, for tests "
    "that measure nothing real",
    "GITHUB_ACTIONS": "where it is `true`, what fails or needs a reader is annotated",
    "GITHUB_WORKSPACE": "what the paths of annotations are relative to",
    "GITHUB_STEP_SUMMARY": "the file to which the Markdown summary is appended",
    "CUDA_VISIBLE_DEVICES": "which GPUs are used",
    "CUDA_MPS_PIPE_DIRECTORY": "where to look for a running MPS server, which is recorded",
    "PYTHONPATH": "handed on to the processes that list and measure",
    "GLOO_SOCKET_IFNAME": "set to the loopback for ranks of one node, if it is not set",
    "WORLD_SIZE": "set by torchrun: with it `perfsuite run` is one rank",
    "RANK": "set by torchrun",
    "LOCAL_RANK": "set by torchrun",
    "LOCAL_WORLD_SIZE": "set by torchrun",
    "PERFSUITE_FAKE_GPUS": "products of the GPUs that `--perf-device=fake` plays, as in `A,A,B`",
}
READERS = {"from_environment", "os.environ.get", "os.environ.setdefault", "os.environ.pop"}
EXITS = {
    "OK": "nothing fails",
    "TESTS_FAILED": "something is slower, wrong, over budget, crashed or broken",
    "INTERRUPTED": "interrupted; `--perf-resume` continues",
    "INTERNAL_ERROR": "a fault of perfsuite or of a pytest plugin",
    "USAGE_ERROR": "an option, selection or pack that cannot be",
    "NO_TESTS_COLLECTED": "nothing was selected",
}
# Of a signature on one line.
WIDTH = 80
COMMAND_EXITS = (
    ("0", "done"),
    ("1", "what the command looks for is not so: its own line says what"),
    ("2", "an option that cannot be, or a deliberate error: what, where and what to do"),
)


def reference_pages() -> dict[str, str]:
    """Return the generated pages and files by their paths in docs/."""
    schemas = {"run": run_schema(), "baseline": baseline_schema(), "verdict": verdict_schema()}
    pages = {
        "options.md": _options(),
        "commands.md": "".join(["# Commands\n\n", *_commands()]),
        "environment.md": _environment(),
        "api.md": "".join(["# What packs import\n\n", *_api()]),
        "hooks.md": "".join(["# Hooks\n\n", *_hooks()]),
        "schemas.md": schema_page(schemas),
        **{f"{name}.schema.json": json.dumps(text, indent=1) for name, text in schemas.items()},
    }
    return {f"reference/{name}": text for name, text in pages.items()}


def _options() -> str:
    rows = [
        (_signature(name, told), escaped(told["help"]), _default(told))
        for name, told in OPTIONS.items()
    ]
    own = [(code(name), escaped(told["help"]), _default(told)) for name, told in INI.items()]
    text = "# Options of pytest\n\nOn the command line, beside pytest's own:\n\n"
    text += table(("option", "what", "default"), rows)
    text += "## In the project's settings { #settings }\n\n"
    text += "In `[tool.pytest.ini_options]` of pyproject.toml; `perfsuite` reads no other file.\n\n"
    return text + table(("setting", "what", "default"), own)


def _signature(name: str, told: Any) -> str:
    value = told.get("metavar") or "|".join(told.get("choices", ()))
    return code(f"{name} {value}".strip())


def _default(told: Any) -> str:
    value = told.get("default")
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    return "" if value in {None, "", False} else code(value)


def _commands() -> Iterator[str]:
    import typer

    from perfsuite.cli import commands

    group = typer.main.get_command(commands())
    context = group.make_context("perfsuite", [], resilient_parsing=True)
    yield f"{prose(group.help or '')}\n\n"
    yield from _subcommands(group, context, "perfsuite")


def _subcommands(group: Any, context: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        yield f"## {full} {{ #{full.replace(' ', '-')} }}\n\n{prose(command.help or '')}\n\n"
        if hasattr(command, "commands"):
            yield from _subcommands(command, context, full)
            continue
        usage = command.collect_usage_pieces(context)
        yield f"```text\n{' '.join([full, *usage])}\n```\n\n"
        told = [each.get_help_record(context) for each in command.params if each.name != "help"]
        if rows := [(code(name), prose(text)) for name, text in filter(None, told)]:
            yield table(("parameter", "what"), rows)


def _environment() -> str:
    text = "# Environment and exit codes\n\n## Variables\n\n"
    text += "Read or set by perfsuite itself. Those of CUDA, NCCL, torch and Triton "
    text += "have their effect.\n\n"
    text += table(("variable", "what"), ((code(name), told) for name, told in VARIABLES.items()))
    text += "## Exit codes of pytest --perf { #exit-codes }\n\n"
    text += table(("code", "what"), _exit_rows())
    text += "## Exit codes of perfsuite { #exit-codes-of-perfsuite }\n\n"
    return text + table(("code", "what"), COMMAND_EXITS)


def _exit_rows() -> Iterator[tuple[str, str]]:
    import pytest

    for each in pytest.ExitCode:
        # Newer ones of pytest's own are known by their names.
        yield str(int(each)), EXITS.get(each.name, f"pytest's {code(each.name)}")
    yield str(EXIT_MACHINE), "the environment changed, and nothing else fails"


def variables_in(root: Path) -> set[str]:
    """Return the environment variables that the code names."""
    return {
        name for path in root.rglob("*.py") for name in _named(ast.parse(path.read_text("utf-8")))
    }


def _named(tree: ast.AST) -> Iterator[str]:
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        key: ast.AST | None = None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            key = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in READERS:
            key = node.args[0] if node.args else None
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            key = node.left
        if isinstance(key, ast.Name) and key.id in constants:
            yield str(constants[key.id])
        elif isinstance(key, ast.Constant):
            yield str(key.value)


def _api() -> Iterator[str]:
    yield f"{docstring(perfsuite)}"
    for name in sorted(perfsuite.__all__, key=str.lower):
        thing = getattr(perfsuite, name)
        yield f"## {escaped(name)} {{ #{name} }}\n\n"
        if callable(thing) and not _is_enum(thing):
            yield f"```python\n{_shown(name, thing)}\n```\n\n"
        yield docstring(thing)
        if _is_enum(thing):
            yield "Values: " + ", ".join(code(each.value) for each in thing) + ".\n\n"


def _is_enum(thing: object) -> bool:
    """Say whether a thing is an enumeration."""
    return isinstance(thing, type) and issubclass(thing, Enum)


def _shown(name: str, thing: Any) -> str:
    """Return a signature, one parameter a line where there are many."""
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return name
    words = [str(parameter) for parameter in signature.parameters.values()]
    words = [_plain(word) for word in words]
    one = f"{name}({', '.join(words)})"
    return one if len(one) <= WIDTH else "\n".join([f"{name}(", *(f"    {w}," for w in words), ")"])


def _hooks() -> Iterator[str]:
    yield docstring(hookspecs)
    spaces = (
        ("In the pack's own module", vars(hookspecs)),
        ("In the module for pytest's process", vars(hookspecs.Controller)),
    )
    for title, names in spaces:
        yield f"## {title}\n\n"
        if names is not vars(hookspecs):
            yield docstring(hookspecs.Controller)
        for name, hook in names.items():
            if hasattr(hook, "perfsuite_spec"):
                yield f"### {name} {{ #{name} }}\n\n```python\n{_hook(name, hook)}\n```\n\n"
                yield docstring(hook)


def _hook(name: str, hook: Any) -> str:
    signature = inspect.signature(hook)
    own = [each for each in signature.parameters.values() if each.name != "self"]
    return _plain(f"def {name}{signature.replace(parameters=own)}:")


def _plain(signature: str) -> str:
    """Return a signature as it is written: annotations without quotes, defaults by their names."""
    named = re.sub(r"<(?:(factory)|([\w.]+):[^>]*)>", lambda found: found[2] or "...", signature)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", named)
