"""The options of a session: what pytest is told of them, and their values as plain data."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfsuite.boundary import hidden
from perfsuite.duration import seconds_of
from perfsuite.errors import UsageError

if TYPE_CHECKING:
    import pytest

    from perfsuite.request import Options

TIERS = ("smoke", "nightly", "full")
# The machine changed, and nothing else fails. 0 to 5 are pytest's.
EXIT_MACHINE = 14
# What fails a run unless --perf-fail-on says otherwise; see judge.Policy.
FAIL_ON = "slower,over-budget,machine-shift,wrong,crashed,timed-out,error,broken"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _packs(text: str) -> tuple[str, ...]:
    # As a list of what is allowed, an empty one, of a variable that is not set, is not all.
    if not _words(text):
        raise argparse.ArgumentTypeError("no pack is named; without the option all are taken")
    return _words(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _percent(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 < percent < 100:  # noqa: PLR2004 - percent
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage between 0 and 100")
    return percent / 100


def _time(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}: write 90s, 30m or 1h30m") from error


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    numbers = [int(part) for part in (index, count) if part.isascii() and part.isdigit()]
    if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1]:  # noqa: PLR2004 - k and n
        raise argparse.ArgumentTypeError(f"{text!r} is no shard: write k/n, as in 1/4 to 4/4")
    return numbers[0], numbers[1]


Option = Mapping[str, Any]


def _flag(told: str) -> Option:
    return {"action": "store_true", "help": told}


def _one_of(choices: tuple[str, ...], told: str) -> Option:
    return {"choices": choices, "default": choices[0], "help": told}


def _value(
    metavar: str, told: str, *, kind: Callable[[str], object] = str, default: object = None
) -> Option:
    return {"metavar": metavar, "type": kind, "default": default, "help": told}


# Their values are plain: xdist's --looponfail sends all options to another process.
# Commands that run without pytest read it too.
BASELINES, BASELINES_DEFAULT = "perf_baselines", ("baselines",)
OPTIONS: Mapping[str, Option] = {
    "--perf": _flag(
        "measure, judge and report the packs' variants instead of running ordinary tests"
    ),
    "--perf-tier": _one_of(
        TIERS, "how many values of each axis: smoke (default, seconds), nightly or full"
    ),
    "--perf-select": _value(
        "EXPR",
        "variants by axis, pack, case or id: 'impl=triton,n>=1e6'; -k takes words",
        default="",
    ),
    "--perf-device": _value(
        "NAME",
        "where to measure: auto (the GPUs if there are any, else a device that a pack brings, "
        "else the CPU), cuda, cpu, fake, or a pack's",
        default="auto",
    ),
    "--perf-packs": _value(
        "NAMES", "only these packs, separated by commas", kind=_packs, default=()
    ),
    "--perf-pack": {
        "metavar": "FILE_OR_FOLDER",
        "action": "append",
        "default": [],
        "help": "one more pack: a Python file, or a folder with a pyproject.toml; repeatable",
    },
    "--perf-processes": _value(
        "N", "fresh processes per variant; more find smaller changes", kind=_count
    ),
    "--perf-against": _value(
        "REV", "compare the working tree with this revision of it, both measured now and in turns"
    ),
    "--perf-against-build": _value(
        "CMD",
        "shell command that builds the revision in its checkout; needed for what is compiled",
        default="",
    ),
    "--perf-repo": _value("PATH", "the repository under test (default: that of the rootdir)"),
    "--perf-seed": _value("N", "seed of inputs and of the order", kind=int, default=0),
    "--perf-check": _flag("only check that results are right; measure nothing"),
    "--perf-profile": _flag(
        "tell at the end where the run's own time went: by phase, device and variant"
    ),
    "--perf-counters": _flag(
        "count memory sectors and bank conflicts of the kernels that are traced, with NVIDIA's "
        "Nsight Compute (ncu) on the PATH"
    ),
    "--perf-resume": _flag("continue the last run if it was interrupted, keeping what it measured"),
    "--perf-resume-if-any": _flag(
        "as --perf-resume where there is a run to continue, of this code and request; else anew"
    ),
    "--perf-time": _value(
        "DURATION",
        "how long the run may take: 30m, 90s, 1h30m; what is unclear, changed or was not measured "
        "for longest comes first, and what has no room is named",
        kind=_time,
    ),
    "--perf-shard": _value(
        "K/N",
        "measure this share of the variants; perfsuite merge joins all shares' runs",
        kind=_shard,
    ),
    "--perf-accept": _flag(
        "make this run's numbers the baseline, if every variant that ran is right; "
        "its changes then fail nothing (needs --perf-reason)"
    ),
    "--perf-reason": _value("TEXT", "why the numbers are accepted; stored with them", default=""),
    "--perf-fail-on": _value(
        "WORDS",
        f"verdicts, statuses and claims that fail a test (default: {FAIL_ON})",
        kind=_words,
        default=_words(FAIL_ON),
    ),
    "--perf-threshold": _value("PCT", "smallest change called slower or faster", kind=_percent),
    "--perf-gate": _value("PCT", "smallest slower change that fails a run", kind=_percent),
    "--perf-report": _value(
        "DIR",
        "where to write the HTML report (default: reports)",
        default="reports",
    ),
}
INI: Mapping[str, Option] = {
    "perf_cases": {"help": "folders of case modules: run with --perf only", "type": "paths"},
    BASELINES: {
        "help": "folders of accepted numbers; the first is written to",
        "type": "paths",
        "default": list(BASELINES_DEFAULT),
    },
    "perf_history": {
        "help": "URL of the history; empty: none",
        "default": "sqlite:///.perfsuite/history.db",
    },
    "perf_counters": {
        "help": "count what traced kernels do in each run, as --perf-counters has it",
        "type": "bool",
        "default": False,
    },
}

# Of pytest's own options those that choose tests and plugins, and those that set what INI has.
CHOICES, SETTERS = ("-k", "-m", "-p"), ("-o", "--override-ini")
SECRET_INI = {"perf_history"}


def options_of(config: pytest.Config) -> Options:
    """Return the session's options as plain values."""
    from perfsuite.request import Options

    names = (name.partition("--perf-")[2].replace("-", "_") for name in OPTIONS)
    values = {name: config.getoption(f"perf_{name}") for name in names if name}
    given = map(str, config.invocation_params.args)
    return Options(
        **{
            **values,
            "root": config.rootpath,
            "counters": values["counters"] or _is_set(config, "perf_counters"),
            "pack": tuple(map(Path, values["pack"])),
            "repo": Path(values["repo"]) if values["repo"] else None,
            "report": config.rootpath / values["report"],
            "history": config.getini("perf_history"),
            # The default comes as text, what a project sets as paths.
            "baselines": tuple(config.rootpath / path for path in config.getini(BASELINES)),
            "command": shlex.join(["pytest", *kept_words(given, config.option.file_or_dir)]),
        }
    )


def kept_words(words: Iterable[str], paths: Collection[str]) -> Iterator[str]:
    """Yield what may be stored of a command line, since it goes into files that others read.

    That is perfsuite's own options and settings, -k, -m and the ``paths`` that pytest found: what
    is another plugin's may be a secret. Passwords in the rest are hidden.
    """
    given = iter(words)
    for word in given:
        name, equals, value = word.partition("=")
        is_choice = word[:2] in CHOICES and not word.startswith("--")
        if name in OPTIONS or is_choice:
            has_value = OPTIONS.get(name, {}).get("action") != "store_true"
            is_next = has_value and (len(word) == len("-k") if is_choice else not equals)
            yield from map(hidden, (word, *([next(given, "")] if is_next else [])))
        elif name in SETTERS:
            setting = value if equals else next(given, "")
            if setting.partition("=")[0] in INI.keys() - SECRET_INI:
                yield from ("-o", hidden(setting))
        elif word in paths:
            yield hidden(word)


def _is_set(config: pytest.Config, name: str) -> bool:
    """Return an ini option that is true or false; raises UsageError for another value."""
    try:
        return bool(config.getini(name))
    except Exception as error:  # pytest's own are no ValueErrors in each version
        raise UsageError(
            f"{name} is neither true nor false: {error}",
            where="the ini file, or -o on the command line",
            remedy=f"write {name} = true, or leave it out",
        ) from error
