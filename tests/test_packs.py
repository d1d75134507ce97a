"""Finding packs without importing them, and refusing what does not hold in one."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import packaging.requirements
import pytest
from test_testing import GOOD

import perfsuite
from perfsuite.boundary import PackError, UsageError
from perfsuite.packs.find import discover
from perfsuite.packs.load import LoadedPack, load_pack

KERNELS = """
    import perfsuite

    @perfsuite.hookimpl
    def perf_kernels():
        return [perfsuite.Kernel(name="copy", language="cuda", function="f", file=__file__),
                perfsuite.Kernel(name="add", language="triton", function="f", module="acme.add",
                                 targets=("sm_90a", "sm_120a"), expects={"sm_90a": "LDG"},
                                 constants={"OP": "add", "BLOCK": 128})]
"""


def write_file(folder: Path, text: str, name: str = "acme") -> str:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return f"file:{path}"


def write_folder(folder: Path, entry: str = 'acme = "acme_pack"', requires: str = "") -> Path:
    folder.mkdir(parents=True)
    text = f'[project]\nname = "x"\nversion = "1.2"\ndependencies = [{requires}]\n'
    text += f"[project.entry-points.perfsuite]\n{entry}"
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of the only distribution that is installed, one per line."""
    folder = tmp_path / "site" / "x-3.4.dist-info"
    folder.mkdir(parents=True)
    told = "Name: x\nVersion: 3.4\nRequires-Dist: perfsuite>=0.1,<99\n"
    (folder / "METADATA").write_text(told, encoding="utf-8")
    assert packaging.requirements.__name__ in sys.modules  # which is not found from now on
    # Editable installs show as folders of their own, with an egg-info in them.
    others = [path for path in sys.path if "site-packages" not in path]
    paths = [path for path in others if not any(Path(path).glob("*.egg-info"))]
    monkeypatch.setattr(sys, "path", [str(folder.parent), *paths])
    return folder / "entry_points.txt"


def install(file: Path, *entries: str) -> None:
    file.write_text("\n".join(["[perfsuite]", *entries]), encoding="utf-8")


def load(folder: Path, text: str) -> LoadedPack:
    return load_pack("acme", write_file(folder, text))


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(PackError) as caught:
        load(folder, text)
    assert "acme" in caught.value.where
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize(
    ("how", "place", "origin"),
    [
        ("installed", "", "module:acme_pack@"),
        ("", "plugins/acme", "module:acme_pack@{}/plugins/acme"),
        ("installed", "plugins/acme", "module:acme_pack@"),
        ("installed, named", "mine", "module:acme_pack@{}/mine"),
        ("named", "plugins/acme", "module:acme_pack@{}/plugins/acme"),
    ],
)
def test_a_pack_is_taken_once_as_named_as_installed_or_from_its_folder(
    tmp_path: Path, installed: Path, how: str, place: str, origin: str
) -> None:
    if "installed" in how:
        install(installed, "acme = acme_pack")
    folder = write_folder(tmp_path / place) if place else tmp_path
    (source,) = discover(tmp_path, allow=[str(folder)] if "named" in how else [])
    assert (source.name, source.origin) == ("acme", origin.format(tmp_path))
    assert (source.error, source.version) == ("", "3.4" if origin.endswith("@") else "1.2")


def test_two_packs_of_one_name_are_both_named_in_the_second_s_error(
    tmp_path: Path, installed: Path
) -> None:
    install(installed, "acme = other_module")
    write_folder(tmp_path / "plugins" / "acme")
    first, second = discover(tmp_path)
    assert first.error == ""
    assert "other_module" in second.error
    assert "acme_pack" in second.error


@pytest.mark.usefixtures("installed")
def test_what_is_no_pack_is_an_error_and_not_silence(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "plugins" / "bad")
    fields = ("name = 'x'", "dependencies = 3", "entry-points.perfsuite = 3")
    for text in ("[project", "project = 3", *(f"[project]\n{each}" for each in fields)):
        (folder / "pyproject.toml").write_text(text, encoding="utf-8")
        (source,) = discover(tmp_path)
        assert source.name == "bad"
        assert "pyproject.toml" in source.error
    for name, said in (("my-pack", "must match"), ("sku", "is taken")):
        write_file(tmp_path, GOOD, name)
        folder = write_folder(tmp_path / name, f'{name} = "a_pack"')
        for place in (tmp_path / f"{name}.py", folder):
            (source,) = discover(None, allow=[str(place)])
            assert f"pack name '{name}' {said}" in source.error
            assert "rename the entry point" in source.error
    with pytest.raises(UsageError, match="nowhere"):
        discover(None, allow=[str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        *((each, f"and this is {perfsuite.__version__}")
          for each in ("perfsuite>=99", "Perfsuite [torch] < 0.1", "perfsuite!=0.1.0")),
        *((each, "that is none")
          for each in ("perfsuite ~~ 1", "perfsuite; 'x' in extras", "perfsuite>=9; extra ~= 'x'")),
        *((each, "")
          for each in ("perfsuite", "perfsuite>=0.1,<99", "perfsuite-memory>=99",
                       "perfsuite>=99; python_version < '3'", "perfsuite>=99; extra == 'future'")),
    ],
)  # fmt: skip
def test_a_pack_for_another_perfsuite_is_named(
    tmp_path: Path, installed: Path, requirement: str, said: str
) -> None:
    write_folder(tmp_path / "plugins" / "needy", 'needy = "x"', f'"numpy", "{requirement}"')
    install(installed, "other = no_module")
    meta = installed.with_name("METADATA")
    meta.write_text(f"{meta.read_text()}Requires-Dist: {requirement}\n")
    for source in discover(tmp_path):
        assert said in source.error
        assert (source.error == "") == (said == "")
        assert not said or f"the pack {source.name!r} {source.version} " in source.error


def test_an_error_tells_the_line_of_the_pack(tmp_path: Path) -> None:
    assert "acme.py:2)" in refusal(tmp_path, "x = 1\nraise RuntimeError('boom')")
    with pytest.raises(PackError, match="origin"):
        load_pack("acme", "http://example.org")


RETURNED = "return [double, fast]"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (GOOD, "import no_such_module", "No module named 'no_such_module'"),
        (GOOD, "x = (", "SyntaxError"),
        (GOOD, "raise SystemExit(3)", "SystemExit: 3"),
        (GOOD, "x = 1", "implements no hook"),
        ("perf_cases", "perf_case", "perf_case"),
        ("perf_cases()", "perf_cases(tier)", "tier"),
        (GOOD, "def perf_cases(): return []", "not marked"),
        (GOOD, "def perf_casse(): return []", "perf_casse() is no hook"),
        (RETURNED, "return None", "returned None"),
        (RETURNED, "return 7", "returned 7"),
        (RETURNED, "return [double.build]", "a function"),
        (RETURNED, "return [1 / 0]", "ZeroDivisionError"),
        (RETURNED, "return [double, double]", "two cases have the name 'double'"),
        (RETURNED, "return [double, fast, fast]", "two claims"),
        (RETURNED, "return [fast]", "unknown case 'double'"),
        ("Double n numbers.", "", "no docstring"),
        ("Double n numbers.", r"\x1b[2Jx", "has control characters"),
        ("Double n numbers.", "Do so. " * 1000, "more than 4000"),
        ("a book", " ", "no source"),
        (GOOD, GOOD.replace("impl", "tag").replace("hooktag", "hookimpl"), "a reserved name"),
        ('"n": [4, 8]', '"n": [1, 2.5, float("inf")]', "inf"),
        ('"n": [4, 8]', '"n": [1, "a b"]', "'a b'"),
        ('"n": [4, 8]', '"n": [1, 1e300]', "1e+300"),
        ('"n": [4, 8]', '"n": [1, "1"]', "two values that read '1'"),
        ('"n": [4, 8]', '"n": [1, (2,)]', "a tuple"),
        ('"n": [4, 8]', '"n": [1, 10**5000]', "an integer of very many digits"),
        ('"impl": ["plain"', f'"impl": ["{"z" * 201}", "plain"', "has 201 characters, more"),
        *(('smoke={"n": 4', f'ranks="n", smoke={{"n": [{odd}]', "holds ranks and has the")
          for odd in ("0", "-1", "'two'", "1.5", "True")),
        ('source="a book"', 'name="../up", source="x"', "'../up'"),
        *(('source="a book"', f'source="x", metrics=[perfsuite.Metric({odd})]', said)
          for odd, said in ((r'"a\x1b"', "ValueError"), ('"a", threshold=1e999', "ValueError"))),
        ('cuda().when(impl="gpu")', 'perfsuite.arch("90")', "'90'"),
        ('cuda().when(impl="gpu")', 'perfsuite.Need("os", "x")', "'os'"),
        ('cuda().when(impl="gpu")', 'perfsuite.Need("gpus", "x")', "gpus 'x'"),
        ('source="a book"', 'source="x", tags=["t" * 201]', "has 201 characters"),
        ('source="a book"', 'source="x", budgets=[perfsuite.Budget("lanches", 2, "one")]',
         "a budget is about the metric 'lanches', which its case lacks"),
        ("a book", "a book " * 1000, "has 7000 characters, more than 4000"),
        ("a book", "a \\x1b book", "has control characters"),
        ('faster={"impl": "gpu"}', 'faster={"impl": "c"}', "no value 'c'"),
        ("by=2,", 'by=2, at={"m": (1,)},', "no axis 'm'"),
        ("by=2,", "by=0,", "by must be a number > 0, not 0"),
        ("by=2,", "by=1e300,", "by must be a number > 0, not 1e+300"),
        ("by=2,", 'by=2, metric="launches",', "the claim is about the metric 'launches'"),
        ("by=2,", 'by=2, metric="time_us",', "time_us has noise"),
    ],
)  # fmt: skip
def test_what_is_declared_is_checked(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in refusal(tmp_path, GOOD.replace(old, new))


def test_a_budget_is_on_what_the_case_or_perfsuite_takes(tmp_path: Path) -> None:
    for metric in ("time_us", "cycles", "device_us", "energy_j", "peak_bytes"):
        budget = f'source="x", budgets=[perfsuite.Budget("{metric}", 2, "one")]'
        load(tmp_path, GOOD.replace('source="a book"', budget))
    counted = 'source="x", regime="exact", metrics=[perfsuite.Metric("spills")], budgets=['
    texts = [
        GOOD.replace('source="a book"', f'{counted}perfsuite.Budget("{metric}", 2, "one")]')
        for metric in ("spills", "time_us")
    ]
    load(tmp_path, texts[0])
    assert "name one of spills" in refusal(tmp_path, texts[1])


def test_kernels_are_known_by_their_pack_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, add = load(tmp_path, KERNELS).pack.kernels
    assert (copy.name, copy.folder) == ("acme.copy", str(tmp_path))
    assert copy.file == str(tmp_path / "acme.py")
    assert (add.name, add.module, add.constants["BLOCK"]) == ("acme.add", "acme.add", 128)
    monkeypatch.syspath_prepend(tmp_path)
    write_file(tmp_path, KERNELS, "perfsuite_test_kernels")
    (installed, _) = load_pack("acme", "module:perfsuite_test_kernels@").pack.kernels
    del sys.modules["perfsuite_test_kernels"]
    assert installed.folder == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name="add"', 'name="copy"', "two kernels have the name 'copy'"),
        ('function="f", file', 'function="", file', "names no function"),
        ("__file__", '"acme.cu"', "'acme.cu' is no file with an absolute path"),
        ("__file__", '"/nowhere/acme.cu"', "'/nowhere/acme.cu' is no file"),
        ("acme.add", "acme/add.py", "'acme/add.py' is no module's name"),
        ('"sm_120a")', '"gfx942")', "target 'gfx942' is no architecture"),
        ('"sm_120a")', '"sm_90a")', "one twice"),
        ('{"sm_90a": "LDG"}', '{"sm_100a": "LDG"}', "expects names 'sm_100a'"),
        ('language="triton"', 'language="ptx"', "perf_kernels() raised ValueError"),
        ("return [", "return 7, [", "perf_kernels() returned 7, a int"),
        ("return [", "return None and [", "perf_kernels() returned None"),
    ],
)
def test_what_is_said_of_kernels_is_checked(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in KERNELS
    assert said in refusal(tmp_path, KERNELS.replace(old, new))


RECORDED = """{"schema": "perfsuite.codegen/1", "kernels": [
 {"name": "copy", "language": "cuda", "file": "__init__.py", "function": "f"}]}"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("__init__.py", "g.cu", "g.cu' is no file"),
        ('"file', '"path', "unknown field `path` - at `$.kernels[0]`"),
        ('"cuda"', '"ptx"', "cuda, triton or gluon, not 'ptx' - at `$.kernels[0]`"),
        ("gen/1", "gen/9", "unknown schema 'perfsuite.codegen/9'"),
        ("]}", "}", "not valid JSON"),
    ],
)
def test_file_of_kernels_that_does_not_hold_is_named_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_file(tmp_path, GOOD, "__init__")
    (tmp_path / "codegen.json").write_text(RECORDED.replace(old, new), encoding="utf-8")
    with pytest.raises(PackError, match=re.escape(said)) as caught:
        load_pack("acme", f"module:{tmp_path.name}@{tmp_path.parent}")
    assert new == "g.cu" or str(tmp_path / "codegen.json") in caught.value.what
