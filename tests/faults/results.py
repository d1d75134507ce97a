"""D1: results that are right when they are compared and wrong once they are timed."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent
from typing import NamedTuple

import pytest
from faults.lab import HEAD, QUICK, Done, Scene, Stage
from faults.rows import Fault, as_a_whole, ending

AFTER = "wrong: after"


class R(NamedTuple):
    """A function of (calls, x, kept): calls counts from 1, kept is a dict, right doubles x."""

    done: str
    see: str
    code: str
    on_cpu: bool = False  # on a CPU too: there each takes three seconds and more


RESULTS = (
    R("right three times, then wrong", AFTER, "return right(x, 2 if calls <= 3 else 3)", True),
    R("right three times, then three values in eight are wrong", AFTER,
      "return right(x) if calls <= 3 else spoilt(x)"),
    R("wrong from launch 50 on", AFTER, "return right(x) if calls < 50 else right(x, 3)"),
    R("NaN after 50 launches", AFTER, "return right(x) if calls < 50 else right(x, NAN)"),
    R("wrong once in 20", AFTER, "return right(x, 3 if calls % 20 == 19 else 2)"),
    R("wrong in every other launch after the check", AFTER,
      "return right(x, 3 if calls > 3 and calls % 2 else 2)"),
    R("work left out after the check", AFTER,
      "if calls <= 4: kept['y'] = right(x)\nreturn kept['y']"),
    R("keeps the results of the launch before", AFTER,
      "y = kept.get('y'); kept['y'] = right(x)\nreturn kept['y'] if calls <= 4 else y"),
    R("a cache by the address of the input", AFTER,
      "if calls <= 4: return right(x)\n"
      "if place(x) not in kept: kept[place(x)] = right(x, 2 if len(kept) % 2 else 3)\n"
      "return kept[place(x)]", True),
    R("returns nothing after the check", AFTER, "return right(x) if calls <= 4 else None"),
    R("one value less after the check", AFTER, "return right(x)[calls > 4 :]"),
    R("changes its input in place, each launch", "wrong: input", "y = right(x); spoil(x)\nreturn y",
      True),
    R("changes its input in place, after the check", "wrong: input",
      "y = right(x)\nif calls > 4: spoil(x)\nreturn y"),
    R("changes its input in place once, at launch 50", "wrong: input",
      "y = right(x)\nif calls == 50: spoil(x)\nreturn y"),
    R("raises at launch 50", "error: ValueError; late",
      "if calls == 50: raise ValueError('late')\nreturn right(x)"),
    R("leaves at launch 50", "crashed: exit code 9",
      "calls == 50 and os._exit(9)\nreturn right(x)"),
    # What is right may not be called wrong.
    R("a right one, by a warm-up that fills a table", "new",
      "kept.setdefault('table', 2)\nreturn right(x, kept['table'])"),
    R("a right one that counts its launches", "new", "kept['n'] = calls\nreturn right(x)", True),
)  # fmt: skip
# Of the device: how it doubles, spoils, and names where its data lie.
FAKE = """
def right(x, factor=2):
    return [factor * value for value in x]

def spoilt(x):
    return [9.0] * 3 + right(x)[3:]

def spoil(x):
    x[0] += 1.0

place = id
make = lambda rng: (rng.randn(8),)
"""
CPU = """
def right(x, factor=2):
    return x * factor

def spoilt(x):
    y = right(x)
    y[:3] = 9.0
    return y

def spoil(x):
    x.add_(1)

def place(x):
    return x.data_ptr()

make = lambda rng: (rng.randn(4096),)
"""


def pack_of(rows: tuple[R, ...], device: str) -> str:
    """Return a pack with a variant for each row, by its number."""
    functions = "\n".join(
        f"def f{number}(calls, x, kept):\n{indent(row.code, '    ')}\n"
        for number, row in enumerate(rows)
    )
    return f'''{HEAD}
NAN = float("nan")
{device}
{functions}
@perfsuite.case(axes={{"f": list(range({len(rows)}))}}, source="made up")
def r(ctx, f):
    """Do what this row does."""
    calls, kept, act = [0], {{}}, globals()[f"f{{f}}"]
    def fn(x):
        calls[0] += 1
        return act(calls[0], x, kept)
    return perfsuite.Workload(
        fn=fn, make_inputs=make, reference=lambda x: right(x), wrong=lambda x: right(x, 3)
    )

@perfsuite.hookimpl
def perf_cases():
    return [r]
'''


def late(number: int) -> Callable[[Done, str], None]:
    """Look at a row's ending; where other work on the machine hid it, there is none to look at."""

    def look(done: Done, see: str) -> None:
        name = f"late.r[f={number}]"
        if (found := done.endings().get(name)) and found.word == "disturbed":
            pytest.skip(f"disturbed: {found.reason}")
        ending(name)(done, see)

    return look


def table(group: str, rows: tuple[R, ...], device: str, *options: str) -> tuple[Fault, ...]:
    """Return the rows as faults of one run on this device."""

    def play(stage: Stage) -> Done:
        stage.write("late.py", pack_of(rows, device))
        return stage.perf("+late", *QUICK, *options)

    scene = Scene(group, play)
    faults = [
        Fault(group, f"{row.done} (D1)", row.see, scene, late(number))
        for number, row in enumerate(rows)
    ]
    whole = as_a_whole(group, f"the run of these {len(rows)}", "exit 1", scene)
    return (*faults, *whole)


ON_CPU = tuple(row for row in RESULTS if row.on_cpu)
FAULTS = (
    *table("late, fake", RESULTS, FAKE),
    *table("late, cpu", ON_CPU, CPU, "--perf-device=cpu", "--perf-select=pack=late"),
)
