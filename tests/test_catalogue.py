"""The catalogue of packs: what it lists, and that a bad pack ends alone and named."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfsuite.boundary import UsageError
from perfsuite.model import Pack, Tier, Work
from perfsuite.packs.load import Listing, list_pack, load_pack
from perfsuite.workers.process import load_catalogue

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
@case(smoke={"n": 1, "impl": ["a", "b"]}, full={"n": 30, "impl": ["a", "b"]},
      nightly=[{"n": 10, "impl": ["a", "b"]}, {"n": 20, "impl": "a"}],
      source="a book", work=lambda n, **_: Work(read_bytes=4 * n), tags=["quick"],
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
    if not kernels:
        raise SystemExit("asked before the kernels are known")

    @case(smoke={"kernel": [each.name for each in kernels]}, source="a book")
    def compiled(ctx, kernel):
        '''Compile.'''

    return [compiled]
"""
GOOD = HEAD + COPY + HOOK


def source(folder: Path, name: str, text: str) -> Pack:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return Pack(name=name, origin=f"file:{path}", version="1")


def listed(
    folder: Path, texts: Mapping[str, str], *, tier: Tier = Tier.NIGHTLY, limit_s: float = 20.0
) -> dict[str, Pack]:
    """List packs by name, each a file with its text."""
    sources = [source(folder, name, text) for name, text in texts.items()]
    return {pack.name: pack for pack in load_catalogue(sources, tier=tier, time_limit_s=limit_s)}


def one(folder: Path, text: str, tier: Tier = Tier.NIGHTLY) -> Pack:
    """List a good pack, in this process."""
    asked = Listing(source(folder, "acme", HEAD + text + HOOK), tier, heavy=(), paths=())
    return list_pack(asked, load_pack("acme", asked.source.origin))


SMOKE = ["[n=1,impl=a]", "[n=1,impl=b]"]
NIGHTLY = [*SMOKE, "[n=10,impl=a]", "[n=10,impl=b]", "[n=20,impl=a]"]
FULL = [*NIGHTLY, "[n=30,impl=a]", "[n=30,impl=b]"]


def test_a_tier_contains_those_before_it(tmp_path: Path) -> None:
    packs = [one(tmp_path, COPY, tier) for tier in Tier]
    found = [{v.id.partition("copy")[2]: str(v.tier) for v in pack.variants} for pack in packs]
    assert [*map(sorted, found)] == [SMOKE, sorted(NIGHTLY), sorted(FULL)]
    assert [*found[2].values()] == ["smoke"] * 2 + ["nightly"] * 3 + ["full"] * 2


def test_a_variant_carries_its_case_and_a_claim_its_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").touch()
    monkeypatch.chdir(tempfile.mkdtemp(dir=tmp_path))
    pack = one(tmp_path, COPY + FAST)
    variant = pack.variants[0]
    assert variant.axes == {"n": 1, "impl": "a"}
    assert (variant.work, variant.memory_bytes) == (Work(read_bytes=4), 8)
    assert variant.case.doc == "Copy n floats.\n\nTwice."
    assert variant.case.file == "../acme.py"
    assert variant.case.line == HEAD.count("\n") + COPY.count("\n", 0, COPY.index("@case")) + 1
    assert variant.case.tags == ("quick",)
    assert [need.kind for need in variant.needs] == ["device"]
    # A claim is bound where both variants exist; "at" narrows it.
    assert [claim.id for claim in pack.claims] == ["acme.copy:fast[n=1]", "acme.copy:fast[n=10]"]
    claim = pack.claims[1]
    assert (claim.faster, claim.than) == ("acme.copy[n=10,impl=a]", "acme.copy[n=10,impl=b]")
    assert (claim.by, claim.source) == (2.5, "a paper")
    odd = COPY.replace('"n": 1,', """"n": [3, 2.5, True, "x"],""").replace("4 * n", "4")
    odd = odd.replace("8 * n", "8")
    narrow = one(tmp_path, COPY + FAST.replace("by=2.5", "by=2.5, at={'n': (10,)}"))
    assert [claim.id for claim in narrow.claims] == ["acme.copy:fast[n=10]"]
    typed = one(tmp_path, odd)
    values = [variant.axes["n"] for variant in typed.variants if variant.axes["impl"] == "a"]
    assert list(map(repr, values)) == ["3", "2.5", "True", "'x'", "10", "20"]


DEVICE = """
import perfsuite

@perfsuite.hookimpl
def perf_device():
    return {returned}

{opens}
"""
OWN = "perfsuite.Accelerator(name='odd', opens='bad:opened', units=('one',))"
# What stands in a case, what instead, and what is said of it.
DECLARED = (
    ("4 * n", "1 / 0", "work(n=1, impl='a') raised ZeroDivisionError"),
    ("lambda n, **_", "lambda n", "work(n=1, impl='a') raised TypeError"),
    ("Work(read_bytes=4 * n)", "n", "work(n=1, impl='a') returned 1"),
    ("4 * n", "float('inf')", "ValueError: Work.read_bytes must be a number >= 0, not inf"),
    ("4 * n", "10**400", "Work.read_bytes must be a number >= 0, not 1000"),
    ("4 * n", "1e-300", "Work.read_bytes must be a number >= 0, not 1e-300"),
    ("8 * n", "'x'", "memory_bytes(n=1, impl='a') returned 'x'"),
    ("8 * n", "10**400", "memory_bytes(n=1, impl='a') returned 1000"),
    ("8 * n", "10**5000", "returned an integer of very many digits"),
    ('"n": 10', '"n": "a\\nb"', "do: use str"),
    ("@case(", "@case(budgets=[perfsuite.Budget('time_us', 1e300, 'x')], ", "'1e+300' cannot be"),
    ('["quick"]', "[7]", "of a wrong type"),
    ('cuda().when(impl="a")', "'cuda'", "unknown kind of need 'cuda'"),
)  # fmt: skip
DEVICES = (
    ("'odd'", "perf_device() returned 'odd'"),
    ("1 / 0", "ZeroDivisionError"),
    (OWN.replace("'odd'", "'cuda'"), "must match"),
    (OWN.replace("'odd'", "'../odd'"), "'../odd'"),
    (OWN.replace("bad:opened", "bad"), "no module:callable"),
    (OWN.replace("('one',)", "(7,)"), "of a wrong type"),
)


SAID = b"for fd in (1, 2): os.write(fd, b'{}\\n')\n".decode()
BAD = {
    **{
        f"case{n}": (COPY.replace(old, new, 1), said) for n, (old, new, said) in enumerate(DECLARED)
    },
    **{
        f"device{n}": (DEVICE.format(returned=each, opens=""), said)
        for n, (each, said) in enumerate(DEVICES)
    },
    "claim": (FAST.replace('"fast"', '"fa/st\\n"'), "claim name"),
    "fills": ("while True: print('x' * (1 << 20))", "File too large"),
    "crash": ("import ctypes\nprint('my last words', flush=True)\nctypes.string_at(0)", "SIGSEGV"),
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom"),
    "odd_words": (r"raise RuntimeError('\x1b[2J\u202eboom \ud800')", "boom"),
    "endless": ("raise ValueError('x' * 3_000_000)", "ValueError: xxx"),
    "heavy": ("import sys\nsys.modules['torch'] = sys", "imports torch when it is listed"),
    "odd": (KERNELS.replace("file=__file__", "file=__file__, constants={'n': [5]}"), "wrong type"),
}


def test_bad_packs_end_alone_and_the_others_are_listed(tmp_path: Path) -> None:
    good = {"good": "", "loud": f"import os\n{SAID}"}
    bad = {name: text if "def copy(" in text else text + COPY for name, (text, _) in BAD.items()}
    whole = {name: HEAD + text + COPY + HOOK for name, text in good.items()}
    packs = listed(tmp_path, whole | {name: HEAD + text + HOOK for name, text in bad.items()})
    for name in good:
        assert (len(packs[name].variants), packs[name].error) == (5, "")
    for name, (_, said) in BAD.items():
        error = packs[name].error
        assert said in error
        assert f"pack {name!r}" in error
        assert packs[name].variants == ()
        assert all(c.isprintable() or c == "\n" for c in error)
        assert len(error) < 20_000
        assert "'copy'" in error or not name.startswith("case")
    assert "my last words" in packs["crash"].error
    rude = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nsignal.pause()"
    assert "'rude'" in listed(tmp_path, {"rude": rude})["rude"].error
    failed = Pack(name="acme", origin="module:acme@", error="two packs have the name 'acme'")
    assert load_catalogue([failed], tier=Tier.SMOKE)[0].error == failed.error


def test_a_pack_that_hangs_makes_none_late_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = "3600.25"
    apart = f"subprocess.Popen(['sleep', '{mark}'], start_new_session=True)"
    texts = {
        "hang": f"import subprocess\n{apart}.wait()",
        "acme": HEAD + KERNELS,
        "asking": HEAD + ASKING,
    }
    packs = listed(tmp_path, texts, limit_s=5.0)
    assert "longer than its limit of 5 s" in packs["hang"].error
    assert [each.id for each in packs["asking"].variants] == ["asking.compiled[kernel=acme.f]"]
    running = subprocess.run(["ps", "-Ao", "args"], capture_output=True, check=True, text=True)
    assert mark not in running.stdout


def test_without_a_process_each_pack_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = source(tmp_path, "acme", GOOD)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (pack,) = load_catalogue([asked], tier=Tier.SMOKE)
    assert "the server of slot 0 is gone (exit code 1" in pack.error
    assert "declares cases" not in pack.error


def test_a_path_that_is_no_utf8_is_refused() -> None:
    odd = Pack(name="acme", origin="file:/bad\udcff/acme.py", version="1")
    with pytest.raises(UsageError, match="no UTF-8") as caught:
        load_catalogue([odd], tier=Tier.SMOKE)
    assert "bad\\udcff" in str(caught.value)


def test_a_pack_that_wants_kernels_gets_those_of_all_packs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")  # Python drops docstrings
    texts = {
        "asking": HEAD + KERNELS + ASKING,
        "acme": GOOD + KERNELS,
        "bad": "raise RuntimeError('boom')",
        "only": HEAD + KERNELS,
        "raising": HEAD + ASKING.replace("    @case", "    1 / 0\n    @case"),
        "leaving": HEAD + ASKING.replace("    @case", "    __import__('os')._exit(3)\n    @case"),
    }
    packs = listed(tmp_path, texts)
    asking, names = packs["asking"], ["asking.f", "acme.f", "only.f"]
    assert [variant.axes["kernel"] for variant in asking.variants] == names, asking.error
    assert [kernel.name for kernel in asking.kernels] == names
    assert asking.kernels[1].file == str(tmp_path / "acme.py")
    assert (len(packs["acme"].variants), packs["acme"].kernels) == (5, ())
    assert (packs["only"].variants, packs["only"].error) == ((), "")
    for name, said in (("bad", "boom"), ("raising", "ZeroDivision"), ("leaving", "exit code 3")):
        assert said in packs[name].error
