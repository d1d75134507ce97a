"""What a pack may rely on: public names stay, and the examples of hooks run as they stand."""

from __future__ import annotations

import enum
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
import report_data as data

import perfsuite
from perfsuite import hooks as hookspecs
from perfsuite import testing
from perfsuite.model import Accelerator, Case, Kernel, Section
from perfsuite.store.baselines import BASELINE_SCHEMA
from perfsuite.store.runs import RUN_SCHEMA

RUN = data.run_of()
# What each hook is given, and what its docstring's example returns.
HOOKS: dict[str, tuple[dict[str, Any], Any]] = {
    "perf_cases": ({"kernels": ()}, Case),
    "perf_implementations": ({}, dict),
    "perf_kernels": ({}, Kernel),
    "perf_device": ({}, Accelerator),
    "perf_controller": ({}, str),
    "perf_result": ({"result": RUN.results[0], "variant": RUN.variants[0]}, None),
    "perf_verdict": ({"verdict": RUN.verdicts[0], "variant": RUN.variants[0], "run": RUN}, None),
    "perf_report_section": ({"run": RUN}, Section),
}
GOLD = Path(__file__).parent / "gold" / "api.txt"


def listing() -> Iterator[str]:
    """Yield each public name with what belongs to it, one a line."""
    for name in sorted(perfsuite.__all__):
        yield from entries(f"perfsuite.{name}", getattr(perfsuite, name))
    for name in sorted(testing.__all__):
        yield from entries(f"perfsuite.testing.{name}", getattr(testing, name))
    for home in (hookspecs, hookspecs.Controller):
        for name, hook in inspect.getmembers(home, inspect.isfunction):
            if name.startswith("perf_"):
                arguments = [each for each in inspect.signature(hook).parameters if each != "self"]
                yield from (f"hook {name}({each})" for each in ("", *arguments))
    yield from (f"schema {each}" for each in (BASELINE_SCHEMA, RUN_SCHEMA))


def entries(name: str, thing: Any) -> Iterator[str]:
    yield name
    yield from (f"{name}.{field}" for field in getattr(thing, "__dataclass_fields__", ()))
    yield from (f"{name}.{field}" for field in getattr(thing, "__struct_fields__", ()))
    if isinstance(thing, type):
        yield from (f"{name}.{own}" for own, each in vars(thing).items() if type(each) is property)
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        yield from (f"{name}.{member.name}={member.value}" for member in thing)
    elif isinstance(thing, type):
        own = [
            n for n, _ in inspect.getmembers(thing, callable) if n[0] != "_" and n in vars(thing)
        ]
        for method in own:
            yield from arguments_of(f"{name}.{method}", getattr(thing, method))
    elif inspect.isfunction(thing):
        yield from arguments_of(name, thing)


def arguments_of(name: str, function: Any) -> Iterator[str]:
    arguments = [each for each in inspect.signature(function).parameters if each != "self"]
    yield from (f"{name}({each})" for each in arguments or [""])


def test_no_public_name_disappears() -> None:
    known, now = GOLD.read_text("utf-8").splitlines(), list(listing())
    assert [line for line in known if line not in now] == [], (
        "packs rely on these: bring them back, or deprecate them for a minor version and raise "
        "the version (docs/vendors.md says how)"
    )
    assert [line for line in now if line not in known] == [], (
        "new public names: python tests/test_compatibility.py > tests/gold/api.txt, and they stay"
    )


@pytest.mark.parametrize("home", [hookspecs, hookspecs.Controller])
def test_the_example_of_a_hook_runs_as_it_stands(
    home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "softmax.cu").touch()
    hooks = [each for each in inspect.getmembers(home, inspect.isfunction) if each[0] in HOOKS]
    assert hooks
    for name, hook in hooks:
        text = textwrap.dedent((inspect.getdoc(hook) or "").partition("Example::\n")[2])
        module = ModuleType("example")
        module.__file__ = str(tmp_path / "example.py")
        exec(compile(text, name, "exec"), vars(module))  # noqa: S102 - our own docstring
        manager = pluggy.PluginManager("perfsuite")
        manager.add_hookspecs(home)
        manager.register(module)
        manager.check_pending()
        given, kind = HOOKS[name]
        (found,) = getattr(manager.hook, name)(**given) or (None,)
        first = found[0] if isinstance(found, list) else found
        assert first is None if kind is None else isinstance(first, kind)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in listing())
