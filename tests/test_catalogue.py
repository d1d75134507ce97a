"""The catalogue child: what it lists, and that a bad pack ends alone and named."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfsuite.boundary import UsageError
from perfsuite.model import Pack, Tier, Work
from perfsuite.packs.find import PackSource
from perfsuite.workers.catalogue import load_catalogue

ROOT = Path(__file__).parents[1]

HEAD = """
import perfsuite
from perfsuite import Claim, Work, case, cuda
"""
HOOK = """
@perfsuite.hookimpl
def perf_cases():
    return [each for each in (globals().get("copy"), globals().get("fast")) if each]
"""
COPY = """
@case(axes={"n": [10, 20], "impl": ["a", "b"]}, smoke={"n": [1]}, full={"n": [10, 30]},
      source="a book", work=lambda n, **_: Work(read_bytes=4 * n), tags=["quick"],
      only=lambda n, impl: (n, impl) != (20, "b"),
      memory_bytes=lambda n, **_: 8 * n, needs=[cuda().when(impl="a")])
def copy(ctx, n, impl):
    '''Copy n floats.

    Twice.
    '''
"""
FAST = """
fast = Claim(name="fast", case="copy", faster={"impl": "a"}, than={"impl": "b"}, by=2.5,
             source="a paper")
"""

KERNELS = """
@perfsuite.hookimpl
def perf_kernels():
    return [perfsuite.Kernel(name="f", language="cuda", function="f", file=__file__)]
"""
ASKING = """
@perfsuite.hookimpl
def perf_cases(kernels):
    @case(axes={"kernel": [each.name for each in kernels]}, source="a book")
    def compiled(ctx, kernel):
        '''Compile.'''

    return [compiled]
"""


def source(folder: Path, name: str, text: str) -> PackSource:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return PackSource(name=name, origin=f"file:{path}", version="1")


def listed(folder: Path, text: str, tier: Tier = Tier.NIGHTLY) -> Pack:
    (pack,) = load_catalogue([source(folder, "acme", HEAD + text + HOOK)], tier=tier)
    return pack


def ids(pack: Pack) -> list[str]:
    return [variant.id.removeprefix("acme.copy") for variant in pack.variants]


def test_a_tier_contains_those_before_it(tmp_path: Path) -> None:
    smoke = ["[n=1,impl=a]", "[n=1,impl=b]"]
    nightly = [*smoke, "[n=10,impl=a]", "[n=10,impl=b]", "[n=20,impl=a]"]
    full = [*nightly, "[n=30,impl=a]", "[n=30,impl=b]"]
    assert ids(listed(tmp_path, COPY, Tier.SMOKE)) == smoke
    assert ids(listed(tmp_path, COPY, Tier.NIGHTLY)) == nightly
    pack = listed(tmp_path, COPY, Tier.FULL)
    assert ids(pack) == full
    tiers = [str(variant.tier) for variant in pack.variants]
    assert tiers == ["smoke"] * 2 + ["nightly"] * 3 + ["full"] * 2


def test_what_waits_is_left_to_nightly(tmp_path: Path) -> None:
    text = COPY.replace("only=lambda", "waits=lambda n, impl: impl == 'b', only=lambda")
    assert ids(listed(tmp_path, text, Tier.SMOKE)) == ["[n=1,impl=a]"]
    pack = listed(tmp_path, text, Tier.NIGHTLY)
    assert ids(pack) == ids(listed(tmp_path, COPY, Tier.NIGHTLY))
    assert [str(variant.tier) for variant in pack.variants] == ["smoke"] + ["nightly"] * 4


def test_what_is_for_the_full_tier_only_is_in_no_other(tmp_path: Path) -> None:
    text = COPY.replace("only=lambda", "full_only=[{'n': [1, 20]}], only=lambda", 1)
    assert ids(listed(tmp_path, text, Tier.SMOKE)) == []
    assert ids(listed(tmp_path, text, Tier.NIGHTLY)) == ["[n=10,impl=a]", "[n=10,impl=b]"]
    pack = listed(tmp_path, text, Tier.FULL)
    assert ids(pack) == ids(listed(tmp_path, COPY, Tier.FULL))
    tiers = [str(variant.tier) for variant in pack.variants]
    assert sorted(tiers) == ["full"] * 5 + ["nightly"] * 2


@pytest.mark.parametrize("value", ["21", "True", "1.0"])
def test_full_only_names_values_of_the_tiers(value: str, tmp_path: Path) -> None:
    text = COPY.replace("only=lambda", f"full_only=[{{'n': [1, {value}]}}], only=lambda", 1)
    error = listed(tmp_path, text).error
    assert f"full_only names {value} of axis 'n', which no tier has" in error


@pytest.mark.parametrize(
    "value",
    ["{}", "{'n': [10]}", "[{}]", "[{'impl': 'ab'}]", "['n']", "'n'", "[{'n': 10}]", "None"],
)
def test_full_only_is_a_list_of_bindings(value: str, tmp_path: Path) -> None:
    text = COPY.replace("only=lambda", f"full_only={value}, only=lambda", 1)
    error = listed(tmp_path, text).error
    assert f'full_only={value} is no list such as [{{"n": [64]}}]' in error


def test_a_variant_carries_its_case(tmp_path: Path) -> None:
    variant = listed(tmp_path, COPY).variants[0]
    assert variant.axes == {"n": 1, "impl": "a"}
    assert (variant.work, variant.memory_bytes) == (Work(read_bytes=4), 8)
    assert variant.case.doc == "Copy n floats.\n\nTwice."
    assert Path(variant.case.file).name == "acme.py"
    assert variant.case.line == HEAD.count("\n") + COPY.count("\n", 0, COPY.index("@case")) + 1
    assert variant.case.tags == ("quick",)
    assert [need.kind for need in variant.needs] == ["device"]


def test_values_keep_their_types(tmp_path: Path) -> None:
    text = COPY.replace("[10, 20]", "[3, 2.5, True, 'x']").replace("4 * n", "4")
    pack = listed(tmp_path, text.replace("8 * n", "8").replace('smoke={"n": [1]}, ', ""))
    values = [variant.axes["n"] for variant in pack.variants if variant.axes["impl"] == "a"]
    assert list(map(repr, values)) == ["3", "2.5", "True", "'x'"], pack.error


def test_a_claim_is_bound_where_both_variants_exist(tmp_path: Path) -> None:
    claims = listed(tmp_path, COPY + FAST).claims
    assert [claim.id for claim in claims] == ["acme.copy:fast[n=1]", "acme.copy:fast[n=10]"]
    assert claims[1].faster == "acme.copy[n=10,impl=a]"
    assert claims[1].than == "acme.copy[n=10,impl=b]"
    assert (claims[1].by, claims[1].source) == (2.5, "a paper")


def test_at_narrows_a_claim(tmp_path: Path) -> None:
    claims = listed(tmp_path, COPY + FAST.replace("by=2.5", "by=2.5, at={'n': (10,)}")).claims
    assert [claim.id for claim in claims] == ["acme.copy:fast[n=10]"]


def test_python_may_drop_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    assert listed(tmp_path, COPY).error == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (COPY.replace("4 * n", "1 / 0"), "work(n=1, impl='a') raised ZeroDivisionError"),
        (COPY.replace("Work(read_bytes=4 * n)", "n"), "work(n=1, impl='a') returned 1"),
        (COPY.replace("4 * n", "float('inf')"), "returned Work(read_bytes=inf"),
        (COPY.replace("8 * n", "'x'"), "memory_bytes(n=1, impl='a') returned 'x'"),
        (COPY.replace("8 * n", "10**400"), "memory_bytes(n=1, impl='a') returned 1000"),
        (COPY.replace("8 * n", "10**5000"), "returned an integer of very many digits"),
        (COPY.replace("4 * n", "10**400"), "returned Work(read_bytes=1000"),
        (COPY.replace("4 * n", "1e-300"), "returned Work(read_bytes=1e-300"),
        (COPY.replace("(n, impl) !=", "n.x !="), "only(n=1, impl='a') raised AttributeError"),
        (COPY.replace("Copy n floats.\n\n    Twice.\n", ""), "no docstring"),
    ],
)
def test_an_error_in_a_formula_names_case_and_axes(tmp_path: Path, text: str, said: str) -> None:
    pack = listed(tmp_path, text)
    assert said in pack.error
    assert "'copy'" in pack.error
    assert pack.variants == ()


def test_bad_packs_end_alone_and_the_others_are_listed(tmp_path: Path) -> None:
    texts = {
        "crash": "import ctypes\nprint('my last words', flush=True)\nctypes.string_at(0)",
        "leave": "import os\nos._exit(0)",
        "stop": "raise KeyboardInterrupt",
        "raises": "raise RuntimeError('boom')",
        "good": HEAD + COPY + HOOK,
    }
    sources = [source(tmp_path, name, text) for name, text in texts.items()]
    crash, leave, stop, raises, good = load_catalogue(sources, tier=Tier.SMOKE)
    assert "SIGSEGV" in crash.error
    assert "my last words" in crash.error
    assert "exit status 0" in leave.error
    assert "KeyboardInterrupt" in stop.error
    assert "RuntimeError: boom" in raises.error
    assert (len(good.variants), good.error) == (2, "")


def test_a_pack_that_hangs_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = "3600.25"
    hang = f"import subprocess\nsubprocess.run(['sleep', '{mark}'])"
    sources = [source(tmp_path, "hang", hang), source(tmp_path, "good", HEAD + COPY + HOOK)]
    hung, good = load_catalogue(sources, tier=Tier.SMOKE, time_limit_s=0.7)
    assert "longer than its limit of 0.7 s" in hung.error
    assert len(good.variants) == 2
    assert not [path for path in Path("/proc").glob("[0-9]*") if mark in command_of(path)]


def command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(encoding="utf-8")
    except OSError:  # it ended meanwhile
        return ""


def test_nothing_outlives_a_killed_controller(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "life")
    text = f"import signal\nlife = open({str(tmp_path / 'life')!r}, 'w')\n"
    text += "print('here', file=life, flush=True)\nsignal.pause()"
    code = (
        "from perfsuite.workers.catalogue import load_catalogue;"
        "from perfsuite.packs.find import PackSource;"
        f"load_catalogue([PackSource(name='a', origin={source(tmp_path, 'a', text).origin!r})], "
        "tier='smoke', time_limit_s=600)"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    with controller, (tmp_path / "life").open(encoding="utf-8") as life:
        assert life.readline() == "here\n"
        controller.kill()
        # Ends only when the pack's process, the last one that can write, is gone.
        assert life.read() == ""


def test_a_pack_that_kills_the_catalogue_costs_no_exception(tmp_path: Path) -> None:
    text = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nsignal.pause()"
    (pack,) = load_catalogue([source(tmp_path, "rude", text)], tier=Tier.SMOKE)
    assert "'rude'" in pack.error


def test_output_of_packs_does_not_mix_with_the_answer(tmp_path: Path) -> None:
    text = "import os\nfor fd in (1, 2): os.write(fd, b'{}\\n')\n" + HEAD + COPY + HOOK
    (pack,) = load_catalogue([source(tmp_path, "loud", text)], tier=Tier.SMOKE)
    assert (len(pack.variants), pack.error) == (2, "")


FORKING = """
import os, time
if os.fork():
    time.sleep(0.3)
"""
WRITING = """
import os
for number in range(3, 256):
    try:
        os.write(number, TEXT)
    except OSError:
        pass
"""


def test_a_pack_that_writes_where_it_should_not_ends_alone(tmp_path: Path) -> None:
    forged = b'{"origin":"file:nowhere"}\n'
    wrong = {"line": b"x\n", "half": b"x", "bytes": b"\xff\n", "deep": b"[" * 9999, "other": forged}
    bad = {name: f"TEXT = {text!r}\n{WRITING}" for name, text in wrong.items()}
    texts = {"before": "", **bad, "fork": FORKING, "after": ""}
    sources = [source(tmp_path, name, t + HEAD + COPY + HOOK) for name, t in texts.items()]
    packs = load_catalogue(sources, tier=Tier.SMOKE)
    errors = {pack.name: pack.error for pack in packs}
    assert [errors.pop(name) for name in ("before", "fork", "after")] == ["", "", ""]
    assert {len(pack.variants) for pack in packs if not pack.error} == {2}
    for name, error in errors.items():
        assert "its worker sent a" in error
        assert f"pack {name!r}" in error


@pytest.mark.parametrize("limit", [resource.RLIMIT_DATA, resource.RLIMIT_FSIZE])
def test_limits_of_the_process_that_asks_are_taken_as_they_are(tmp_path: Path, limit: int) -> None:
    least = {resource.RLIMIT_DATA: 4 << 30, resource.RLIMIT_FSIZE: 32 << 20}[limit]
    asked = source(tmp_path, "acme", HEAD + COPY + HOOK)
    script = (
        f"import resource; resource.setrlimit({limit}, ({least}, {least}))\n"
        "from perfsuite.workers.catalogue import load_catalogue\n"
        "from perfsuite.model import Tier\nfrom perfsuite.packs.find import PackSource\n"
        f"(pack,) = load_catalogue([{asked!r}], tier=Tier.SMOKE)\n"
        "assert pack.variants and not pack.error, pack.error\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_path_that_is_no_utf8_is_refused() -> None:
    odd = PackSource(name="acme", origin="file:/bad\udcff/acme.py", version="1")
    with pytest.raises(UsageError, match="no UTF-8") as caught:
        load_catalogue([odd], tier=Tier.SMOKE)
    assert "bad\\udcff" in str(caught.value)


def test_a_heavy_import_is_an_error_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "slowlib.py").write_text("", encoding="utf-8")
    text = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport slowlib\n{HEAD}{COPY}{HOOK}"
    (pack,) = load_catalogue(
        [source(tmp_path, "acme", text)], tier=Tier.SMOKE, heavy=["torch", "slowlib"]
    )
    assert "imports slowlib when it is listed" in pack.error


def test_a_source_with_an_error_is_passed_on() -> None:
    bad = PackSource(name="acme", origin="module:acme@", error="two packs have the name 'acme'")
    (pack,) = load_catalogue([bad], tier=Tier.SMOKE)
    assert pack.error == bad.error


def test_ten_thousand_variants_are_listed_quickly(tmp_path: Path) -> None:
    text = HEAD + COPY.replace("[10, 20]", "range(5000)").replace("impl) != (20", "impl) != (-1")
    many = source(tmp_path, "acme", text + HOOK)
    started = time.perf_counter()
    (pack,) = load_catalogue([many], tier=Tier.NIGHTLY)
    assert len(pack.variants) == 10_000
    # Half a second on two idle cores; the margin is for a machine with other work.
    assert time.perf_counter() - started < 5


def test_the_controller_stays_light(tmp_path: Path) -> None:
    many = source(tmp_path, "acme", "import json.tool\n" + HEAD + COPY + HOOK)
    code = (
        "import sys; from perfsuite.workers.catalogue import load_catalogue; "
        "from perfsuite.packs.find import PackSource; "
        f"p, = load_catalogue([PackSource(name='acme', origin={many.origin!r})], tier='smoke'); "
        "assert p.variants, p.error; "
        "sys.exit(repr({'torch', 'numpy', 'rich', 'json.tool'} & {*sys.modules} or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.stderr.strip() == "''"


def test_a_pack_that_wants_kernels_gets_those_of_all_packs(tmp_path: Path) -> None:
    texts = {
        "asking": HEAD + KERNELS + ASKING,
        "acme": HEAD + COPY + HOOK + KERNELS,
        "bad": "raise RuntimeError('boom')",
        "only": HEAD + KERNELS,
    }
    sources = [source(tmp_path, name, text) for name, text in texts.items()]
    asking, acme, bad, only = load_catalogue(sources, tier=Tier.NIGHTLY)
    names = ["asking.f", "acme.f", "only.f"]
    assert [variant.axes["kernel"] for variant in asking.variants] == names, asking.error
    assert [kernel.name for kernel in asking.kernels] == names
    assert asking.kernels[1].file == str(tmp_path / "acme.py")
    assert (len(acme.variants), acme.kernels) == (5, ())
    assert "boom" in bad.error
    assert (only.variants, only.error) == ((), "")


@pytest.mark.parametrize(
    ("bad", "said"),
    [("1 / 0", "ZeroDivisionError"), ("__import__('os')._exit(3)", "exit status 3")],
)
def test_a_pack_that_fails_on_the_kernels_ends_alone(tmp_path: Path, bad: str, said: str) -> None:
    asking = HEAD + ASKING.replace("    @case", f"    {bad}\n    @case")
    sources = [
        source(tmp_path, "asking", asking),
        source(tmp_path, "acme", HEAD + COPY + HOOK + KERNELS),
    ]
    broken, acme = load_catalogue(sources, tier=Tier.NIGHTLY)
    assert said in broken.error
    assert (len(acme.variants), acme.error) == (5, "")


def test_a_pack_that_hangs_makes_none_late_that_waits_for_the_kernels(tmp_path: Path) -> None:
    sources = [
        source(tmp_path, "hang", "import time\ntime.sleep(3600)"),
        source(tmp_path, "acme", HEAD + KERNELS),
        source(tmp_path, "asking", HEAD + ASKING),
    ]
    hung, _, asking = load_catalogue(sources, tier=Tier.SMOKE, time_limit_s=0.7)
    assert "longer than its limit of 0.7 s" in hung.error
    assert [variant.id for variant in asking.variants] == ["asking.compiled[kernel=acme.f]"]


def test_data_of_a_wrong_type_fails_its_own_pack_alone(tmp_path: Path) -> None:
    odd = HEAD + KERNELS.replace("file=__file__", "file=__file__, expects={'sm_90a': 5}")
    sources = [
        source(tmp_path, "odd", odd),
        source(tmp_path, "acme", HEAD + COPY + HOOK),
    ]
    first, second = load_catalogue(sources, tier=Tier.NIGHTLY)
    assert "of a wrong type" in first.error
    assert second.variants
    assert not second.error


def test_what_a_pack_leaves_in_another_session_ends_with_the_listing(tmp_path: Path) -> None:
    daemon = f"""
import os, time
path = {str(tmp_path / "pid")!r}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
os.wait()
while not (os.path.exists(path) and os.path.getsize(path)):
    time.sleep(0.01)
"""
    assert not listed(tmp_path, daemon + COPY).error
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()
