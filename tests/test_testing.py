"""What check_pack refuses, on the scripted device."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from perfsuite.errors import PackError, UsageError
from perfsuite.testing import check_pack

GOOD = """
    import perfsuite
    from perfsuite import Claim, Work, Workload, case, cuda

    @case(axes={"n": [4, 8], "impl": ["plain", "gpu"]}, smoke={"n": [4]}, source="a book",
          work=lambda n, **_: Work(flops=n), needs=[cuda().when(impl="gpu")])
    def double(ctx, n, impl):
        '''Double n numbers.'''
        def fn(x, y):
            y[:] = [2 * each for each in x]

        def wrong(x, y):
            y[:] = [3 * each for each in x]

        return Workload(fn=fn, wrong=wrong, reference=lambda x, y: [each + each for each in x],
                        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)))

    fast = Claim(name="fast", case="double", faster={"impl": "gpu"}, than={"impl": "plain"}, by=2,
                 source="a paper")

    @perfsuite.hookimpl
    def perf_cases():
        return [double, fast]
"""
CONTROLLER = """@perfsuite.hookimpl
    def perf_controller():
        return "no_such_module"

    @perfsuite.hookimpl"""


def write(folder: Path, text: str = GOOD) -> Path:
    path = folder / "acme.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    return importlib.util.module_from_spec(spec)


def test_a_good_pack_passes_with_the_variants_that_ran(tmp_path: Path) -> None:
    assert check_pack(write(tmp_path), device="fake") == ("acme.double[n=4,impl=plain]",)


def test_without_a_device_nothing_runs(tmp_path: Path) -> None:
    assert check_pack(str(write(tmp_path)), device="") == ()


def test_a_module_is_known_by_its_pyproject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = '[project]\nname = "x"\n[project.entry-points.perfsuite]\nvendor = "acme"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    ran = check_pack(module_at(write(tmp_path)), device="fake")
    del sys.modules["acme"]
    assert ran == ("vendor.double[n=4,impl=plain]",)


def test_a_module_without_pyproject_is_a_file(tmp_path: Path) -> None:
    assert check_pack(module_at(write(tmp_path)), device="fake")[0].startswith("acme.")


def test_what_is_no_pack_is_refused() -> None:
    with pytest.raises(UsageError, match="'no_such_pack'"):
        check_pack("no_such_pack")
    with pytest.raises(UsageError, match="'by_hand' has no file"):
        check_pack(ModuleType("by_hand"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("flops=n", "flops=0", "work of acme.double[n=4,impl=plain] is zero"),
        ("Double n numbers.", "", "no docstring"),
        ("a book", "", "no source"),
        ("[double, fast]", "[double, double]", "two cases"),
        ('source="a book",', 'source="a book", only=lambda **_: False,', "'double' has no variant"),
        ("by=2", 'by=2, at={"n": ()}', "'fast' binds no two variants"),
        ("import perfsuite\n", "import perfsuite, numpy\n", "imports numpy"),
        ("2 * each", "2.5 * each", "[n=4,impl=plain]: output differs from the reference"),
        ("3 * each", "2 * each", "accepts the negative control"),
        ("def fn(x, y):", "def fn(x, y):\n            1 / 0", "ZeroDivisionError"),
        ("@perfsuite.hookimpl", CONTROLLER, "No module named 'no_such_module'"),
    ],
)
def test_a_bad_pack_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(PackError) as caught:
        check_pack(write(tmp_path, GOOD.replace(old, new)), device="fake")
    assert said in str(caught.value)


def test_results_are_checked_on_the_cpu(tmp_path: Path) -> None:
    text = GOOD.replace("[2 * each for each in x]", "2 * x")
    text = text.replace("[3 * each for each in x]", "3 * x")
    path = write(tmp_path, text.replace("[each + each for each in x]", "x.double() * 2"))
    code = f"from perfsuite.testing import check_pack; assert check_pack({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
