"""Packs that fail, flood, fork or mean ill when they are listed: refused by name, or harmless."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from faults.lab import CHECK, FIRST, GOOD, SECOND, Done, Scene, Stage
from faults.rows import Fault, as_a_whole, ending, exits, match, tail

GROUP = "pack"
CASE = '''
@perfsuite.case(axes={"n": [1]}, source="made up")
def one(ctx, n):
    """Double eight numbers."""
    return workload()
'''
HOOK = """
@perfsuite.hookimpl
def perf_cases():
    return [one]
"""
BODY = GOOD.split("@perfsuite.case")[0] + CASE + HOOK
CLAIM = (
    'perfsuite.Claim(name="quick", case="one", faster={"n": 1}, than={"n": 2}, by=1.5, '
    'source="made up")'
)


def changed(old: str, new: str) -> str:
    """Return a sound pack with one text in the place of another."""
    assert old in BODY
    return BODY.replace(old, new, 1)


def field(text: str) -> str:
    """Return a sound pack with one more field of its case."""
    return changed('source="made up")', f'source="made up", {text})')


def metric(name: str, threshold: str) -> str:
    """Return a sound pack whose case has a metric."""
    rest = f'unit="s", better="lower", threshold={threshold}'
    return field(f"metrics=[perfsuite.Metric({name}, {rest})]")


def claimed(old: str, new: str) -> str:
    """Return a sound pack with a claim in which one text is in the place of another."""
    assert old in CLAIM
    claim = CLAIM.replace(old, new, 1)
    return changed("[1]", "[1, 2]").replace("[one]", f"[one, {claim}]")


class P(NamedTuple):
    """A pack: what is wrong with it, what must be seen, its text."""

    done: str
    see: str
    text: str


PACKS = (
    # While it is imported.
    P("raises", "refused: RuntimeError; broken", "raise RuntimeError('broken')"),
    P("raises with escape sequences", "refused: wiped", r"raise RuntimeError('\x1b[2J\x07wiped')"),
    P("raises with bidi marks", "refused: marked", r"raise RuntimeError('\u202emarked')"),
    P("raises with half a character", "refused: half", r"raise RuntimeError('half \ud800')"),
    P("raises with 3 MB of text (D18)", "refused: ValueError", "raise ValueError('x' * 3_000_000)"),
    P("raises what has no words", "refused: Mute",
      "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute"),
    P("raises KeyboardInterrupt", "refused: KeyboardInterrupt", "raise KeyboardInterrupt"),
    P("sys.exit(0)", "refused: SystemExit", "import sys; sys.exit(0)"),
    P("os._exit(0)", "refused: exit code 0", "import os; os._exit(0)"),
    P("kills itself", "refused: SIGKILL|signal", "import os; os.kill(os.getpid(), 9)"),
    P("reads address zero", "refused: SIGSEGV|signal", "import ctypes; ctypes.string_at(0)"),
    P("endless recursion", "refused: RecursionError", "f = lambda: f(); f()"),
    P("is no Python", "refused: SyntaxError", "def ("),
    P("is no UTF-8", "refused: utf-8", "x = '\udcff'"),
    P("is empty", "refused: hook", ""),
    P("imports what is not there", "refused: ModuleNotFoundError; nowhere", "import nowhere"),
    P("imports torch", "refused: torch", "import torch\n" + BODY),
    P("prints a megabyte", "harmless", "print('x' * (1 << 20))\n" + BODY),
    P("closes its descriptors", "refused|harmless", "import os; os.closerange(0, 256)\n" + BODY),
    P("leaves a thread", "harmless",
      "import threading; threading.Thread(target=threading.Event().wait).start()\n" + BODY),
    P("leaves a child", "harmless",
      "import os; os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '1003')\n" + BODY),
    P("ignores signals, changes its folder", "harmless",
      "import signal, os; signal.signal(15, signal.SIG_IGN); os.chdir('/')\n" + BODY),
    P("replaces json and print", "harmless",
      "import json, builtins; json.dumps = builtins.print = None\n" + BODY),
    # What the hook returns.
    P("its hook raises", "refused: perf_cases; hook", changed("[one]", "{}['hook']")),
    P("its hook returns None", "refused: perf_cases", changed("[one]", "None")),
    P("a case twice", "refused: one", changed("[one]", "[one, one]")),
    # What a case declares.
    P("no docstring", "refused: docstring", changed('"""Double eight numbers."""', "pass")),
    P("a docstring with escape sequences", "refused: control", changed("Double", r"\x1b[2Jx")),
    P("a docstring of 30,000 characters", "refused: characters", changed("eight", "eight " * 5000)),
    P("no source", "refused: source", changed('"made up"', '""')),
    P("a source with escape sequences", "refused: control", changed('"made up"', r'"\x1b[2J"')),
    P("a name that leads elsewhere", "refused: ../up", field('name="../up"')),
    P("a name of 1 MB (D18)", "refused: characters|name", field('name="x" * 1_000_000')),
    P("an axis value that leads elsewhere", "refused: ../..", changed("[1]", '["../../etc"]')),
    P("an axis value with an escape sequence", "refused", changed("[1]", r'["\x1b[2J"]')),
    P("an axis value of 1 MB (D18)", "refused: characters|value",
      changed("[1]", '["x" * 1_000_000]')),
    P("two values that read alike", "refused: '1'", changed("[1]", '[1, "1"]')),
    P("an axis without values", "refused: n", changed("[1]", "[]")),
    P("an axis value that is a list", "refused: n", changed("[1]", "[[1]]")),
    P("an axis value that is NaN", "refused: nan", changed("[1]", '[float("nan")]')),
    P("an axis that the builder does not take", "refused: m", changed('{"n": [1]}', '{"m": [1]}')),
    P("an unknown field", "refused: colour", field('colour="red"')),
    P("an unknown need", "refused: need", field('needs=[perfsuite.Need("moon", "full")]')),
    P("a work formula that raises", "refused: ZeroDivisionError", field("work=lambda n: 1 / 0")),
    P("a work formula of 1e300 bytes", "refused: 1e+300",
      field("work=lambda n: perfsuite.Work(read_bytes=1e300)")),
    P("10**400 bytes of memory", "refused: memory_bytes", field("memory_bytes=lambda n: 10**400")),
    P("an axis value of 1e300", "refused: 1e+300", changed("[1]", "[1e300]")),
    P("a budget of 1e-300", "refused: 1e-300",
      field('budgets=[perfsuite.Budget("time_us", 1e-300, "made up")]')),
    P("a metric with a hostile name", "refused", metric(r'"a\x1b[2J"', "0.1")),
    P("a metric with threshold NaN", "refused", metric('"a"', 'float("nan")')),
    P("a budget on a metric that it lacks (D24)", "refused: watts",
      field('budgets=[perfsuite.Budget("watts", 1.0, "made up")]')),
    P("a claim on a metric that it lacks (D24)", "refused: watts",
      claimed(", by=1.5", ', by=1.5, metric="watts"')),
    P("a claim on a case that it lacks", "refused: two",
      claimed('"one"', '"two"')),
    P("a claim by a factor of NaN", "refused",
      claimed("1.5", 'float("nan")')),
    P("a claim by a factor of 1e300", "refused: 1e+300", claimed("1.5", "1e300")),
)  # fmt: skip


def listing(number: int) -> Callable[[Done, str], None]:
    """Look at what became of a pack."""

    def look(done: Done, see: str) -> None:
        name = f"p{number}"
        refusal = done.failures().get(f"test_pack[{name}]", "")
        ran = [v for v in done.endings() if v.startswith(f"{name}.")]
        word = "refused" if refusal else "harmless" if ran else "gone"
        words, _, rest = see.partition(": ")
        match(words, word, refusal)
        assert word != "refused" or f"'{name}'" in refusal, f"it is not named: {tail(refusal)}"
        assert word != "refused" or "do: " in refusal, f"no remedy: {tail(refusal)}"
        for part in filter(None, rest.split("; ")) if word == "refused" else ():
            assert any(each in refusal for each in part.split("|")), tail(refusal)
        assert len(refusal) < 20_000, f"{len(refusal)} characters"

    return look


def table() -> tuple[Fault, ...]:
    """Return all packs as faults of one run, with a good pack beside them."""

    def play(stage: Stage) -> Done:
        for number, pack in enumerate(PACKS):
            stage.write(f"p{number}.py", pack.text.encode(errors="surrogateescape"))
        return stage.perf(*(f"+p{n}" for n in range(len(PACKS))), *CHECK, "--junitxml=junit.xml")

    scene = Scene("packs", play)
    faults = [Fault(GROUP, p.done, p.see, scene, listing(n)) for n, p in enumerate(PACKS)]
    beside = f"beside these {len(PACKS)}"
    good = [Fault(GROUP, f"{n} {beside}", "checked", scene, ending(n)) for n in (FIRST, SECOND)]
    return (*faults, *good, *as_a_whole(GROUP, f"the run of these {len(PACKS)}", "exit 1", scene))


GOES_ON = "import os\nos.fork()\n" + BODY
WRITES = """
import os
for n in range(3, 64):
    try: os.write(n, b'x' * 100)
    except OSError: pass
"""


def beside(done: str, see: str, text: str) -> tuple[Fault, ...]:
    """Return a pack that may take others' listings with it, alone beside the good one."""

    def play(stage: Stage) -> Done:
        stage.write("p0.py", text)
        stage.write("good.py", f"import time; time.sleep(1)\n{GOOD}")  # it is not listed before
        return stage.perf("+p0", *CHECK, "--junitxml=junit.xml")

    scene = Scene(f"packs: {done}", play)
    return (
        Fault(GROUP, f"{done} (D6)", see, scene, listing(0)),
        Fault(GROUP, f"{FIRST} beside: {done} (D6)", "checked", scene, ending(FIRST)),
    )


def without_docstrings(stage: Stage) -> Done:
    """List the good pack where Python drops docstrings."""
    return stage.perf("--collect-only", "-q", "-Wignore", env={"PYTHONOPTIMIZE": "2"})


FAULTS = (
    *table(),
    *beside("forks, and both go on", "refused|harmless", GOES_ON),
    *beside("writes to what it inherited", "refused|harmless", WRITES + BODY),
    Fault(GROUP, "PYTHONOPTIMIZE=2 (D14)", "exit 0: double_it; not docstring",
          Scene("docstrings", without_docstrings), exits, is_alone=True),
)  # fmt: skip
