"""Finding packs without importing them, and refusing what does not hold in one."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from perfsuite.boundary import PackError, UsageError
from perfsuite.packs.find import discover
from perfsuite.packs.load import load_pack

GOOD = """
    import perfsuite
    from perfsuite import Claim, Work, case

    @case(axes={"n": [1, 2], "impl": ["a", "b"]}, smoke={"n": [1]}, source="a book",
          work=lambda n, **_: Work(flops=n))
    def softmax(ctx, n, impl):
        '''Do something.'''

    fast = Claim(name="fast", case="softmax", faster={"impl": "a"}, than={"impl": "b"}, by=2,
                 source="a paper")

    @perfsuite.hookimpl
    def perf_cases():
        return [softmax, fast]
"""

KERNELS = """
    import perfsuite

    @perfsuite.hookimpl
    def perf_kernels():
        return [perfsuite.Kernel(name="copy", language="cuda", function="f", file=__file__),
                perfsuite.Kernel(name="add", language="triton", function="f", module="acme.add",
                                 targets=("sm_90a", "sm_120a"), expects={"sm_90a": "LDG"},
                                 constants={"OP": "add", "BLOCK": 128})]
"""
ASKING = """
    import perfsuite

    @perfsuite.hookimpl
    def perf_cases(kernels):
        @perfsuite.case(axes={"kernel": [each.name for each in kernels]}, source="a book")
        def compiled(ctx, kernel):
            '''Compile.'''

        return [compiled]
"""


def write_file(folder: Path, text: str, name: str = "acme") -> str:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return f"file:{path}"


def write_folder(folder: Path, entry: str = 'acme = "acme_pack"', version: str = "1.2") -> Path:
    folder.mkdir(parents=True)
    text = (
        f'[project]\nname = "x"\nversion = "{version}"\n[project.entry-points.perfsuite]\n{entry}'
    )
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of the only distribution that is installed, one per line."""
    folder = tmp_path / "site" / "x-3.4.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Name: x\nVersion: 3.4\n", encoding="utf-8")
    # Editable installs show as folders of their own, with an egg-info in them.
    others = [path for path in sys.path if "site-packages" not in path]
    paths = [path for path in others if not any(Path(path).glob("*.egg-info"))]
    monkeypatch.setattr(sys, "path", [str(folder.parent), *paths])
    return folder / "entry_points.txt"


def install(file: Path, *entries: str) -> None:
    file.write_text("\n".join(["[perfsuite]", *entries]), encoding="utf-8")


def load(folder: Path, text: str) -> None:
    load_pack("acme", write_file(folder, text))


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
    (source,) = discover(tmp_path, extra=[folder] if "named" in how else [])
    assert (source.name, source.origin) == ("acme", origin.format(tmp_path))
    assert source.version == ("3.4" if origin.endswith("@") else "1.2")


@pytest.mark.usefixtures("installed")
def test_a_file_is_a_pack_named_by_its_stem(tmp_path: Path) -> None:
    origin = write_file(tmp_path, GOOD)
    (source,) = discover(None, extra=[tmp_path / "acme.py"])
    assert (source.name, source.origin, source.error) == ("acme", origin, "")


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
@pytest.mark.parametrize("text", ["[project", "[project]\nname = 'x'", "project = 3"])
def test_a_bad_folder_is_an_error_and_not_silence(tmp_path: Path, text: str) -> None:
    write_folder(tmp_path / "plugins" / "bad")
    (tmp_path / "plugins" / "bad" / "pyproject.toml").write_text(text, encoding="utf-8")
    (source,) = discover(tmp_path)
    assert source.name == "bad"
    assert "pyproject.toml" in source.error


def test_a_path_that_is_no_pack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        discover(None, extra=[tmp_path / "nowhere"])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "said"), [("my-pack", "must match"), ("sku", "is taken")])
def test_a_name_that_no_pack_can_have_is_an_error(tmp_path: Path, name: str, said: str) -> None:
    write_file(tmp_path, GOOD, name)
    folder = write_folder(tmp_path / "folder", f'{name} = "a_pack"')
    for place in (tmp_path / f"{name}.py", folder):
        (source,) = discover(None, extra=[place])
        assert f"pack name '{name}' {said}" in source.error
        assert "rename the entry point" in source.error


def test_allow_keeps_the_named_packs(installed: Path) -> None:
    install(installed, "acme = a", "other = b")
    assert [source.name for source in discover(None, allow=["other"])] == ["other"]
    with pytest.raises(UsageError, match=r"'third'(.|\n)*acme, other"):
        discover(None, allow=["third"])


def test_a_good_pack_loads(tmp_path: Path) -> None:
    loaded = load_pack("acme", write_file(tmp_path, GOOD))
    assert list(loaded.cases) == ["softmax"]
    assert [claim.name for claim in loaded.claims] == ["fast"]


def test_a_module_is_loaded_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_file(tmp_path, GOOD, "perfsuite_test_module")
    loaded = load_pack("acme", f"module:perfsuite_test_module@{tmp_path}")
    del sys.modules["perfsuite_test_module"]
    assert list(loaded.cases) == ["softmax"]


def test_an_origin_of_another_kind_is_refused() -> None:
    with pytest.raises(PackError, match="origin"):
        load_pack("acme", "http://example.org")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("x = (", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", "implements no hook"),
        ("import perfsuite\n@perfsuite.hookimpl\ndef perf_case(): return []", "perf_case"),
        ("import perfsuite\n@perfsuite.hookimpl\ndef perf_cases(tier): return []", "tier"),
        ("def perf_cases(): return []", "not marked"),
        ("def perf_casse(): return []", "perf_casse() is no hook"),
    ],
)
def test_a_bad_module_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "returned None"),
        ("7", "returned 7"),
        ("[softmax.build]", "a function"),
        ("[1 / 0]", "ZeroDivisionError"),
        ("[softmax, softmax]", "two cases have the name 'softmax'"),
        ("[softmax, fast, fast]", "two claims"),
        ("[fast]", "unknown case 'softmax'"),
    ],
)
def test_what_the_hook_returns_is_checked(tmp_path: Path, returned: str, said: str) -> None:
    assert said in refusal(tmp_path, GOOD.replace("[softmax, fast]", returned))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Do something.", "", "no docstring"),
        ("a book", " ", "no source"),
        ("softmax(ctx, n, impl)", "softmax(ctx, n)", "build(ctx, n) cannot be called"),
        ("lambda n, **_", "lambda n", "work(n) cannot be called"),
        ('"n": [1, 2]', '"n": [1, 2], "tag": [1]', "'tag' has a reserved name"),
        ('"n": [1, 2]', '"n": [1, 2.5, float("inf")]', "inf"),
        ('"n": [1, 2]', '"n": [1, "a b"]', "'a b'"),
        ('"n": [1, 2]', '"n": [1, "1"]', "two values that read '1'"),
        ('"n": [1, 2]', '"n": [1, 1]', "a value twice"),
        ('"n": [1, 2]', '"n": [1, (2,)]', "a tuple"),
        ('source="a book"', 'source="x", needs=[perfsuite.arch("90")]', "'90'"),
        ('source="a book"', 'source="x", needs=[perfsuite.Need("os", "x")]', "'os'"),
        ('source="a book"', 'source="x", needs=[perfsuite.Need("gpus", "x")]', "gpus 'x'"),
        ('faster={"impl": "a"}', 'faster={"impl": "c"}', "no value 'c'"),
        ("by=2,", 'by=2, at={"m": (1,)},', "no axis 'm'"),
        ("by=2,", "by=0,", "by must be > 0"),
        ("by=2,", 'by=2, metric="launches",', "the claim is about the metric 'launches'"),
        ("by=2,", 'by=2, metric="time_us",', "time_us has noise"),
        ("a book", "a book " * 1000, "has 7000 characters, more than 4000"),
        ('"impl": ["a"', f'"impl": ["{"z" * 201}", "a"', "more than 200 characters"),
        ('"n": [1, 2]', '"n": [1, 10**5000]', "an integer of very many digits"),
        ('source="a book"', 'source="x", tags=["t" * 201]', "has 201 characters"),
        (
            'source="a book"',
            'source="x", budgets=[perfsuite.Budget("lanches", 2, "one")]',
            "a budget is about the metric 'lanches', which its case lacks",
        ),
    ],
)
def test_what_is_declared_is_checked(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in refusal(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize("metric", ["time_us", "cycles", "device_us", "energy_j", "peak_bytes"])
def test_a_budget_may_be_on_what_perfsuite_takes_itself(tmp_path: Path, metric: str) -> None:
    budget = f'source="x", budgets=[perfsuite.Budget("{metric}", 2, "one")]'
    load(tmp_path, GOOD.replace('source="a book"', budget))


def test_what_is_only_counted_has_a_budget_on_its_own_metrics_alone(tmp_path: Path) -> None:
    counted = 'source="x", regime="exact", metrics=[perfsuite.Metric("spills")], budgets=['
    for metric in ("spills", "time_us"):
        text = f'{counted}perfsuite.Budget("{metric}", 2, "one")]'
        text = GOOD.replace('source="a book"', text)
        if metric == "spills":
            load(tmp_path, text)
        else:
            assert "name one of spills" in refusal(tmp_path, text)


def test_an_error_tells_the_line_of_the_pack(tmp_path: Path) -> None:
    assert "acme.py:2)" in refusal(tmp_path, "x = 1\nraise RuntimeError('boom')")


def test_kernels_are_known_by_their_pack_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = write_file(tmp_path, KERNELS)
    copy, add = load_pack("acme", origin).kernels
    assert (copy.name, copy.file, copy.folder) == (
        "acme.copy",
        str(tmp_path / "acme.py"),
        str(tmp_path),
    )
    assert (add.name, add.module, add.constants["BLOCK"]) == ("acme.add", "acme.add", 128)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "acme.py").rename(tmp_path / "perfsuite_test_kernels.py")
    (installed, _) = load_pack("acme", "module:perfsuite_test_kernels@").kernels
    del sys.modules["perfsuite_test_kernels"]
    assert installed.folder == ""


def test_a_pack_that_wants_kernels_makes_its_cases_of_them(tmp_path: Path) -> None:
    kernels = load_pack("acme", write_file(tmp_path, KERNELS)).kernels
    asking = write_file(tmp_path, ASKING, "asking")
    loaded = load_pack("asking", asking, kernels)
    assert loaded.wants_kernels
    assert loaded.cases["compiled"].axes == {"kernel": ("acme.copy", "acme.add")}


def test_a_pack_is_not_asked_for_cases_before_the_kernels_are_known(tmp_path: Path) -> None:
    loaded = load_pack("asking", write_file(tmp_path, ASKING, "asking"), None)
    assert (loaded.wants_kernels, loaded.cases) == (True, {})
    good = load_pack("acme", write_file(tmp_path, GOOD), None)
    assert (good.wants_kernels, list(good.cases)) == (False, ["softmax"])


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
        ('"BLOCK": 128', '"BLOCK": [128]', "constant 'BLOCK' has the value [128], a list"),
        ('"BLOCK": 128', '"SCALE": float("nan")', "constant 'SCALE' has the value nan"),
        ('language="triton"', 'language="ptx"', "perf_kernels() raised ValueError"),
        ("return [", "return 7, [", "perf_kernels() returned a list with 7, a int"),
        ("return [", "return None and [", "perf_kernels() returned None"),
    ],
)
def test_what_is_said_of_kernels_is_checked(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in KERNELS
    assert said in refusal(tmp_path, KERNELS.replace(old, new))


@pytest.mark.parametrize("value", ["0", "-1", "'two'", "1.5", "True"])
def test_ranks_are_whole_numbers_from_one_on(tmp_path: Path, value: str) -> None:
    text = GOOD.replace('"n": [1, 2]', f'"n": [{value}]').replace(
        'smoke={"n": [1]}, ', 'ranks="n", '
    )
    with pytest.raises(PackError, match="holds ranks and has the value"):
        load_pack("acme", write_file(tmp_path, text))
