"""What the user asked for: options of the command line, checked and completed."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from perfsuite.boundary import UsageError, hidden
from perfsuite.hooks import added, features
from perfsuite.judge.compare import FAIL_WORDS
from perfsuite.model import (
    BUILT_IN_DEVICES,
    ClaimInstance,
    ClaimVerdict,
    Pack,
    Policy,
    Run,
    Settings,
    Shard,
    Source,
    Status,
    Tier,
    Variant,
    Verdict,
    seconds_of,
    words_of,
)
from perfsuite.packs import GRAMMAR

if TYPE_CHECKING:
    import pytest

    from perfsuite.store.baselines import Root


T = TypeVar("T")
TIERS = ("smoke", "nightly", "full")
# The environment changed, and nothing else fails. 0 to 5 are pytest's.
EXIT_MACHINE = 14
# What fails a run unless --perf-fail-on says otherwise.
FAIL_ON = Settings().asked["--perf-fail-on"]


# Of a time limit: when no variant of a round begins to be screened any more, of what was left when
# the round began; and when none is confirmed. The rest is for claims, traces and the unforeseen.
SCREEN_END, CONFIRM_END = 0.75, 0.9
# Of a variant. All are planned at once: a number without end would take all memory.
MOST_PROCESSES = 1000


class TimeLimit(msgspec.Struct, frozen=True):
    """How long a run may take in seconds, by this process's clock; an infinite one cuts nothing.

    ``spent_s`` is what the run had taken before it was interrupted.
    """

    seconds: float = inf
    spent_s: float = 0.0
    started: float = msgspec.field(default_factory=time.monotonic)

    @property
    def is_set(self) -> bool:
        """Say whether there is a limit at all."""
        return self.seconds < inf

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds until this share of the time is over."""
        return max(0.0, self.seconds * share - self.spent_s - (time.monotonic() - self.started))

    def until(self, share: float) -> Callable[[], bool]:
        """Return what says whether this share of the time that is left now is over."""
        kept_s = (1 - share) * self.left_s() if self.is_set else -1.0
        return lambda: self.left_s() <= kept_s

    def is_over(self, share: float = 1.0) -> bool:
        """Say whether this share of the time is over."""
        return self.left_s(share) <= 0.0

    def __str__(self) -> str:
        return f"--perf-time {words_of(self.seconds)}" if self.is_set else "no time limit"


class Exceptions:
    """What may not fail a run: nothing, unless a feature knows of something."""

    def applied(self, verdicts: Sequence[Verdict], _run: Run, /) -> tuple[Verdict, ...]:
        """Return the verdicts, those that are excepted with the reason and failing nothing."""
        return tuple(verdicts)

    def claims(self, claims: Sequence[ClaimVerdict], _run: Run, /) -> tuple[ClaimVerdict, ...]:
        """Return the claims on the run's excepted verdicts."""
        return tuple(claims)

    def notes(self, _run: Run, /) -> Iterable[str]:
        """Say what acted on a run."""
        return ()

    def told(self, _slug: str, /) -> Iterable[str]:
        """Say what there is for a SKU."""
        return ()


def exceptions_of(roots: Sequence[Root], today: date) -> Exceptions:
    """Return what may not fail a run today, as the project's baselines say."""
    return features().hook.perf_exceptions(roots=roots, today=today) or Exceptions()


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def named_packs(text: str) -> tuple[str, ...]:
    """Return names and paths of packs, separated by commas; ArgumentTypeError for none."""
    # As a list of what is allowed, an empty one, of a variable that is not set, is not all.
    if not _words(text):
        raise argparse.ArgumentTypeError("no pack is named; without the option all are taken")
    # A folder's name may have a comma; a list may be too long for a Path to ask.
    return (text,) if os.path.exists(text) else _words(text)  # noqa: PTH110 - as above


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_PROCESSES):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {MOST_PROCESSES}")
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


def _place(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("no environment is named: a folder, or requirements")
    return text


def _value(
    metavar: str, told: str, *, kind: Callable[[str], object] = str, default: object = None
) -> Option:
    return {"metavar": metavar, "type": kind, "default": default, "help": told}


def _text(told: str) -> Option:
    return {"help": told, "default": ""}


# Of --perf-resume: without a run to go on with it fails, or starts anew.
ALWAYS, AUTO = "always", "auto"
# Their values are plain: xdist's --looponfail sends all options to another process.
# Commands that run without pytest read it too.
BASELINES, BASELINES_DEFAULT = "perf_baselines", ("baselines",)
OPTIONS: Mapping[str, Option] = {
    "--perf": _flag(
        "measure, judge and report the packs' variants instead of running ordinary tests"
    ),
    "--perf-tier": {
        "choices": TIERS,
        "default": TIERS[0],
        "help": "how many values of each axis: smoke (default, seconds), nightly or full",
    },
    "--perf-select": _value("EXPR", f"variants: {GRAMMAR}", default=""),
    "--perf-device": _value(
        "NAME",
        f"where to measure: auto, {', '.join(BUILT_IN_DEVICES)}, or a pack's. "
        "auto takes the GPUs, else a pack's device, else the CPU",
        default="auto",
    ),
    "--perf-packs": {
        "action": "extend",
        "metavar": "NAMES_OR_PATHS",
        "type": named_packs,
        "default": [],
        "help": "only these packs, separated by commas: a name, a Python file, or a folder with a "
        "pyproject.toml, as in acme,./more-perf",
    },
    "--perf-processes": _value(
        "N", "fresh processes per variant (default: 2); more find smaller changes", kind=_count
    ),
    "--perf-against": _value(
        "REV", "compare the working tree with this git revision; both are measured now, alternating"
    ),
    "--perf-against-env": _value(
        "ENV",
        "compare with another environment, where the tree or REV is measured: a folder (a virtual "
        "environment), or requirements, such as 'triton==3.6.0', that one is made of",
        kind=_place,
    ),
    "--perf-check": _flag("only check that results are right; measure nothing"),
    "--perf-resume": {
        "nargs": "?",
        "const": ALWAYS,
        "choices": (ALWAYS, AUTO),
        "metavar": AUTO,
        "help": "go on with the interrupted run, and keep what it measured. "
        "=auto starts a new run if none fits this code and request",
    },
    "--perf-time": _value(
        "DURATION",
        "how long the run may take: 30m, 90s, 1h30m. The oldest, unclear and changed variants "
        "come first. The rest is named",
        kind=_time,
        default=inf,
    ),
    "--perf-wait": {
        **_value("DURATION", "wait while another run has the device", kind=_time, default=0.0),
        "nargs": "?",
        "const": inf,
    },
    "--perf-shard": _value(
        "K/N",
        "measure this share of the variants; perfsuite merge joins all shares' runs",
        kind=_shard,
    ),
    "--perf-fail-on": _value(
        "WORDS",
        f"verdicts, statuses and claims that fail a test (default: {FAIL_ON}; in the tiers nightly "
        "and full environment too)",
        kind=_words,
    ),
    "--perf-report": _value(
        "DIR", "where to write the HTML report (default: reports)", default="reports"
    ),
}
INI: Mapping[str, Option] = {
    "perf_cases": {"help": "folders of case modules; a pack needs none", "type": "paths"},
    BASELINES: {
        "help": "folders of accepted numbers; the first is written to",
        "type": "paths",
        "default": list(BASELINES_DEFAULT),
    },
    "perf_wheels": {
        "help": "folders of wheels (pip download) that baselines may come from: side A of pairs",
        "type": "paths",
        "default": [],
    },
    "perf_counters": {
        "help": "count memory sectors and bank conflicts of the kernels that are traced, with "
        "NVIDIA's Nsight Compute (ncu) on the PATH",
        "type": "bool",
        "default": False,
    },
    "perf_repo": _text("the repository under test (default: that of the rootdir)"),
    "perf_against_build": _text(
        "shell command that builds a revision in its checkout; needed for what is compiled"
    ),
    "perf_seed": _text("seed of inputs and of the order (default: 0)"),
    "perf_threshold": _text("smallest change that is called slower or faster, in percent"),
    "perf_gate": _text("smallest slower change that fails a run, in percent"),
}
# Of pytest's own options those that choose tests and plugins, and those that set what INI has.
CHOICES, SETTERS = ("-k", "-m", "-p"), ("-o", "--override-ini")


def known_options() -> dict[str, Option]:
    """Return the options and settings of the core and of each feature."""
    return {**OPTIONS, **INI, **added("perf_options")}


def kept_words(words: Iterable[str], paths: Collection[str]) -> Iterator[str]:
    """Yield what may be stored of a command line, since it goes into files that others read.

    That is perfsuite's own options, the core's settings, -k, -m and the ``paths`` that pytest
    found: what is another plugin's may be a secret, and so may a feature's setting, such as the
    URL of the history. Passwords in the rest are hidden. A long option is one word, with "=".
    """
    given, options = iter(words), known_options()
    for word in given:
        name, equals, value = word.partition("=")
        if name in options and name.startswith("--"):
            option = options[name]
            has_value = option.get("action") != "store_true" and "nargs" not in option
            yield hidden(f"{word}={next(given, '')}" if has_value and not equals else word)
        elif word[:2] in CHOICES and not word.startswith("--"):
            yield from map(hidden, (word, *([next(given, "")] if word in CHOICES else [])))
        elif name in SETTERS or word.startswith("-o"):
            setting = (value if name in SETTERS else word[len("-o") :]) or next(given, "")
            if setting.partition("=")[0] in INI:
                yield hidden(f"--override-ini={setting}")
        elif word in paths:
            yield hidden(word)


STATE_FOLDER = ".perfsuite"
STATUS_WORDS = tuple(status.value for status in Status if status not in {"ok", "skipped"})


# Sessions without --perf import this module, and nothing that only a run needs.
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What is to be run and how it is judged.

    ``packs``, ``variants`` and ``claims`` are there once they were chosen; until then ``only`` are
    the names of the packs that are allowed, and ``share`` is the K/N of a shard. ``baselines`` are
    the project's folders, the first of which is written to, and ``wheels`` those that have wheels
    that can be side A. ``source`` is the code that is side A, where no revision ``against`` is
    named: of a run that another one asks for; then ``resume`` is the asking run's id.
    """

    root: Path
    device: str = "auto"
    tier: str = "smoke"
    select: str = ""
    only: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)
    against: str | None = None
    against_env: str | None = None
    source: Source | None = None
    against_build: str = ""
    repo: str = ""
    time_s: float = inf
    wait: float = 0.0
    share: tuple[int, int] | None = None
    resume: str | None = None
    counters: bool = False
    report: Path = Path("reports")
    baselines: tuple[Path, ...] = ()
    wheels: tuple[Path, ...] = ()
    command: str = ""
    features: Mapping[str, Any] = field(default_factory=dict)
    packs: tuple[Pack, ...] = ()
    variants: tuple[Variant, ...] = ()
    claims: tuple[ClaimInstance, ...] = ()
    shard: Shard | None = None
    exceptions: Exceptions = field(default_factory=Exceptions)
    state: str = STATE_FOLDER

    @property
    def folder(self) -> Path:
        """Where runs are stored."""
        return self.root / self.state

    @property
    def baseline_roots(self) -> tuple[Root, ...]:
        """Where accepted numbers lie: the project's, then those that packs ship."""
        from perfsuite.packs.find import discover
        from perfsuite.store.baselines import shipped_by

        packs = self.packs or discover(self.root, allow=self.only)
        return (*self.baselines, *shipped_by(packs))

    @property
    def project(self) -> Path:
        """The folder of the code under test."""
        return self.root / self.repo

    @property
    def resuming(self) -> str:
        """The command that goes on with this session's run, if it is interrupted."""
        words = shlex.split(self.command)
        is_asked = any(word.partition("=")[0] == "--perf-resume" for word in words)
        return self.command if is_asked else f"{self.command} --perf-resume"

    def chosen(self) -> Config:
        """List the packs in a child process, and select among their variants."""
        from perfsuite.packs.find import discover
        from perfsuite.packs.load import chosen_accelerator
        from perfsuite.packs.select import claims_of, select, shard_of
        from perfsuite.workers.process import load_catalogue

        packs = load_catalogue(discover(self.root, allow=self.only), tier=Tier(self.tier))
        chosen_accelerator(self.device, packs)  # refuses a name that nothing has
        variants = tuple(variant for pack in packs for variant in pack.variants)
        if self.select:
            try:
                variants = select(variants, self.select)
            except UsageError as error:  # what is meant may be in a pack that cannot be listed
                told = (*(pack.error for pack in packs if pack.error), error.what)
                raise UsageError("\n".join(told), where=error.where, remedy=error.remedy) from error
        shard, claims = None, claims_of(packs, variants)
        if self.share is not None:
            index, count = self.share
            variants, shard = shard_of(variants, claims, index=index, count=count)
            shard, own = replace(shard, tier=self.tier), {variant.id for variant in variants}
            claims = tuple(claim for claim in claims if claim.faster in own)
        return dataclasses.replace(self, packs=packs, variants=variants, claims=claims, shard=shard)

    def narrowed(self, variants: Sequence[Variant], claims: Sequence[ClaimInstance]) -> Config:
        """Return what is to be run of what was chosen; what only a claim needs is measured too."""
        needed = {variant.id for variant in variants}
        needed |= {side for claim in claims for side in (claim.faster, claim.than)}
        return dataclasses.replace(
            self,
            variants=tuple(variant for variant in self.variants if variant.id in needed),
            claims=tuple(claims),
            exceptions=exceptions_of(self.baselines, datetime.now(UTC).date()),
        )


def config_of(config: pytest.Config) -> Config:
    """Return what pytest's options and settings ask for; ``UsageError`` where they cannot be."""
    names = (name.partition("--perf-")[2].replace("-", "_") for name in OPTIONS)
    values = {name: config.getoption(f"perf_{name}") for name in names if name}
    usual = _words(FAIL_ON if values["tier"] == TIERS[0] else f"{FAIL_ON},environment")
    failing = frozenset(usual if values["fail_on"] is None else values["fail_on"])
    if unknown := failing - {*FAIL_WORDS, *STATUS_WORDS}:
        what = f"--perf-fail-on does not know {', '.join(unknown)}"
        raise UsageError(what, remedy=f"choose among {', '.join((*FAIL_WORDS, *STATUS_WORDS))}")
    if (values["against"] or values["against_env"]) is not None and values["check"]:
        what = "--perf-against and --perf-against-env cannot go with --perf-check"
        raise UsageError(what, remedy="run them one after the other")

    threshold, gate = (_set(config, name, _percent) for name in ("perf_threshold", "perf_gate"))
    words = tuple(word for word in FAIL_WORDS if word in failing)
    settings = Settings(
        check_only=values["check"],
        seed=_set(config, "perf_seed", _whole) or 0,
        failing=tuple(sorted(failing & {*STATUS_WORDS})),
        policy=Policy(threshold=threshold, gate=gate, fail_on=words),
    )
    if processes := values["processes"]:
        confirm = max(processes, settings.confirm_processes)
        settings = replace(settings, processes=processes, confirm_processes=confirm)
    root, given = config.rootpath, map(str, config.invocation_params.args)
    return Config(
        root=root,
        settings=settings,
        counters=_set(config, "perf_counters", bool) or False,
        time_s=values["time"],
        share=values["shard"],
        only=tuple(values["packs"]),
        against_build=config.getini("perf_against_build"),
        repo=config.getini("perf_repo"),
        report=root / values["report"],
        # The default comes as text, what a project sets as paths.
        baselines=tuple(root / path for path in config.getini(BASELINES)),
        wheels=tuple(root / path for path in config.getini("perf_wheels")),
        command=shlex.join(["pytest", *kept_words(given, config.option.file_or_dir)]),
        features={
            name: config.getoption(name) if name.startswith("--") else config.getini(name)
            for name in added("perf_options")
        },
        **{name: values[name] for name in _PLAIN},
    )


# Options that are taken as they are.
_PLAIN = ("device", "tier", "select", "resume", "against", "against_env", "wait")


def _set(config: pytest.Config, name: str, kind: Callable[[Any], T]) -> T | None:
    """Return a setting of the ini file, None without one; ``UsageError`` where it is odd."""
    try:
        value = config.getini(name)
        return kind(value) if value else None
    except Exception as error:  # pytest's own are no ValueErrors in each version
        where = "the ini file, or -o on the command line"
        raise UsageError(f"{name}: {error}", where=where, remedy="correct it") from error


# Pytest reads settings from these as well.
OTHERS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg")


def paths_of(root: Path, name: str, default: Sequence[str]) -> tuple[Path, ...]:
    """Return a setting of type "paths", relative ones below ``root``; errors as ``setting``."""
    found = setting(root, name, list(default))
    words = shlex.split(found) if isinstance(found, str) else found
    return tuple(root / str(word) for word in words)


def setting(root: Path, name: str, default: object) -> Any:
    """Return a setting of the project; ``UsageError`` where commands cannot read it."""
    # A command that went by the default where the tests do not would write to the wrong place.
    for other in filter(Path.is_file, map(root.joinpath, OTHERS)):
        if re.search(rf"^\s*{name}\b", other.read_text("utf-8", errors="replace"), re.MULTILINE):
            raise UsageError(
                f"the setting {name} stands where commands do not read it",
                where=str(other),
                remedy="move pytest's settings to [tool.pytest.ini_options] of pyproject.toml",
            )
    path = root / "pyproject.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not valid TOML: {error}", where=str(path)) from error
    tables = document.get("tool", {}).get("pytest", {})
    return tables.get("ini_options", tables).get(name, default)
