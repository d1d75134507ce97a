"""Each hook's docstring holds an example that runs as it stands, and is what the hook takes."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
import report_data as data

from perfsuite import hooks as hookspecs
from perfsuite.model import Accelerator, Case, Kernel, Section

HOOKS = {
    name: hook
    for home in (hookspecs, hookspecs.Controller)
    for name, hook in inspect.getmembers(home, inspect.isfunction)
    if name.startswith("perf_")
}
RUN = data.run_of()
GIVEN: dict[str, dict[str, Any]] = {
    "perf_cases": {"kernels": ()},
    "perf_result": {"result": RUN.results[0], "variant": RUN.variants[0]},
    "perf_verdict": {"verdict": RUN.verdicts[0], "variant": RUN.variants[0], "run": RUN},
    "perf_report_section": {"run": RUN},
}
RETURNED: dict[str, object] = {
    "perf_cases": [Case],
    "perf_kernels": [Kernel],
    "perf_device": Accelerator,
    "perf_controller": str,
    "perf_result": None,
    "perf_verdict": None,
    "perf_report_section": Section,
}


def example(name: str) -> str:
    return textwrap.dedent(inspect.getdoc(HOOKS[name]).partition("Example::\n")[2])  # type: ignore[union-attr]


@pytest.mark.parametrize("name", HOOKS)
def test_the_example_of_a_hook_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "softmax.cu").touch()
    module = ModuleType("example")
    module.__file__ = str(tmp_path / "example.py")
    exec(compile(example(name), name, "exec"), vars(module))  # noqa: S102 - our own docstring
    manager = pluggy.PluginManager("perfsuite")
    manager.add_hookspecs(hookspecs)
    manager.add_hookspecs(hookspecs.Controller)
    manager.register(module)
    manager.check_pending()
    returned = getattr(manager.hook, name)(**GIVEN.get(name, {}))
    kind = RETURNED[name]
    found = returned[0] if returned else None
    if isinstance(kind, list):
        assert found
        assert all(isinstance(each, kind[0]) for each in found)
    else:
        assert found is None if kind is None else isinstance(found, kind)  # type: ignore[arg-type]
