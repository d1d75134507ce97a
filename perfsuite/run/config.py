"""What the user asked for: options of the command line, checked and completed."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perfsuite.boundary import UsageError, hidden
from perfsuite.hooks import added
from perfsuite.judge.compare import FAIL_WORDS, Policy
from perfsuite.model import (
    ClaimInstance,
    Pack,
    Settings,
    Shard,
    Status,
    Tier,
    Variant,
    seconds_of,
)
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.packs.find import discover
from perfsuite.packs.listing import load_catalogue
from perfsuite.packs.load import chosen_accelerator
from perfsuite.packs.select import claims_of, parse_selection, select, shard_of
from perfsuite.store.baselines import Root
from perfsuite.store.git import RevisionOptions

if TYPE_CHECKING:
    import pytest


TIERS = ("smoke", "nightly", "full")
# The machine changed, and nothing else fails. 0 to 5 are pytest's.
EXIT_MACHINE = 14
# What fails a run unless --perf-fail-on says otherwise; see judge.Policy.
FAIL_ON = ",".join((*Policy().fail_on, "wrong", "crashed", "timed-out", "error"))


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
        "DIR", "where to write the HTML report (default: reports)", default="reports"
    ),
}
INI: Mapping[str, Option] = {
    "perf_cases": {"help": "folders of case modules: run with --perf only", "type": "paths"},
    BASELINES: {
        "help": "folders of accepted numbers; the first is written to",
        "type": "paths",
        "default": list(BASELINES_DEFAULT),
    },
    "perf_counters": {
        "help": "count what traced kernels do in each run, as --perf-counters has it",
        "type": "bool",
        "default": False,
    },
}

# Of pytest's own options those that choose tests and plugins, and those that set what INI has.
CHOICES, SETTERS = ("-k", "-m", "-p"), ("-o", "--override-ini")


def known_options() -> dict[str, Option]:
    """Return the options and settings of the core and of each feature."""
    return {**OPTIONS, **INI, **added("perf_options")}


def options_of(config: pytest.Config) -> Options:
    """Return the session's options as plain values."""
    names = (name.partition("--perf-")[2].replace("-", "_") for name in OPTIONS)
    values = {name: config.getoption(f"perf_{name}") for name in names if name}
    features = {
        name: config.getoption(name) if name.startswith("--") else config.getini(name)
        for name in added("perf_options")
    }
    given = map(str, config.invocation_params.args)
    try:
        counters = values["counters"] or bool(config.getini("perf_counters"))
    except Exception as error:  # pytest's own are no ValueErrors in each version
        raise UsageError(
            f"perf_counters is neither true nor false: {error}",
            where="the ini file, or -o on the command line",
            remedy="write perf_counters = true, or leave it out",
        ) from error
    return Options(
        **{
            **values,
            "root": config.rootpath,
            "counters": counters,
            "pack": tuple(map(Path, values["pack"])),
            "repo": Path(values["repo"]) if values["repo"] else None,
            "report": config.rootpath / values["report"],
            "features": features,
            # The default comes as text, what a project sets as paths.
            "baselines": tuple(config.rootpath / path for path in config.getini(BASELINES)),
            "command": shlex.join(["pytest", *kept_words(given, config.option.file_or_dir)]),
        }
    )


def kept_words(words: Iterable[str], paths: Collection[str]) -> Iterator[str]:
    """Yield what may be stored of a command line, since it goes into files that others read.

    That is perfsuite's own options, the core's settings, -k, -m and the ``paths`` that pytest
    found: what is another plugin's may be a secret, and so may a feature's setting, such as the
    URL of the history. Passwords in the rest are hidden.
    """
    given, options = iter(words), known_options()
    for word in given:
        name, equals, value = word.partition("=")
        is_choice = word[:2] in CHOICES and not word.startswith("--")
        if (name in options and name.startswith("--")) or is_choice:
            has_value = options.get(name, {}).get("action") != "store_true"
            is_next = has_value and (len(word) == len("-k") if is_choice else not equals)
            yield from map(hidden, (word, *([next(given, "")] if is_next else [])))
        elif name in SETTERS:
            setting = value if equals else next(given, "")
            if setting.partition("=")[0] in INI:
                yield from ("-o", hidden(setting))
        elif word in paths:
            yield hidden(word)


STATE_FOLDER = ".perfsuite"
STATUS_WORDS = tuple(status.value for status in Status if status not in {"ok", "skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a session as plain values; shares of 1 where pytest takes percent."""

    root: Path
    tier: str
    select: str
    device: str
    packs: tuple[str, ...]
    pack: tuple[Path, ...]
    processes: int | None
    seed: int
    check: bool
    profile: bool
    resume: bool
    accept: bool
    reason: str
    fail_on: tuple[str, ...]
    threshold: float | None
    gate: float | None
    report: Path
    baselines: tuple[Path, ...]
    command: str
    against: str | None = None
    against_build: str = ""
    repo: Path | None = None
    features: Mapping[str, Any] = field(default_factory=dict)
    resume_if_any: bool = False
    time: float | None = None
    shard: tuple[int, int] | None = None
    counters: bool = False

    @property
    def resuming(self) -> str:
        """The command that goes on with this session's run, if it is interrupted."""
        words = shlex.split(self.command)
        return self.command if "--perf-resume" in words else f"{self.command} --perf-resume"

    def failing_statuses(self) -> frozenset[str]:
        """Return the statuses that fail a test."""
        return frozenset(self.fail_on) & frozenset(STATUS_WORDS)

    def again(self, variant: Variant) -> tuple[str, ...]:
        """Return the options that measure a variant as in this session."""
        given = [
            ("--perf-tier", variant.tier.value if variant.tier is not Tier.SMOKE else ""),
            ("--perf-device", self.device if self.device != "auto" else ""),
            *(("--perf-pack", str(path)) for path in self.pack),
            ("--perf-processes", str(self.processes or "")),
            ("--perf-seed", str(self.seed or "")),
            ("--perf-against", self.against or ""),
            ("--perf-against-build", self.against_build),
            ("--perf-repo", str(self.repo or "")),
        ]
        # With "=": pytest takes a path that stands alone for part of the project.
        return tuple(f"{name}={value}" for name, value in given if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be run and how it is judged; folders are the project's.

    If it ``is_brief``, what is unclear is measured again only if it seems to have moved, and
    nothing is traced but what has.
    """

    variants: tuple[Variant, ...]
    claims: tuple[ClaimInstance, ...]
    packs: tuple[Pack, ...]
    device: str = "auto"
    settings: Settings = field(default_factory=Settings)
    policy: Policy = field(default_factory=Policy)
    root: Path
    folder: Path
    baseline_roots: tuple[Root, ...]
    command: str = ""
    resume: bool = False
    resume_if_any: bool = False
    against: RevisionOptions | None = None
    exceptions: Exceptions = field(default_factory=Exceptions)
    time_s: float = float("inf")
    shard: Shard | None = None
    counters: bool = False
    is_brief: bool = False


def choose(options: Options) -> Request:
    """Find the packs, list them in a child process, and select among their variants.

    Return what there is to run; how it is judged, ``request_of`` says.
    """
    sources = discover(options.root, extra=options.pack, allow=options.packs)
    packs = load_catalogue(sources, tier=Tier(options.tier))
    chosen_accelerator(options.device, packs)  # refuses a name that nothing has
    variants = tuple(variant for pack in packs for variant in pack.variants)
    if options.select:
        variants = tuple(select(variants, parse_selection(options.select)))
    shard = None
    if options.shard is not None:
        index, count = options.shard
        claims = claims_of(packs, variants)
        variants, shard = shard_of(variants, claims, index=index, count=count)
        shard = replace(shard, tier=options.tier)
    return Request(
        variants=variants,
        claims=claims_of(packs, variants),
        packs=packs,
        device=options.device,
        settings=settings_of(options),
        root=options.root,
        folder=options.root / STATE_FOLDER,
        baseline_roots=options.baselines,
        command=options.command,
        resume=options.resume,
        resume_if_any=options.resume_if_any,
        time_s=options.time or float("inf"),
        shard=shard,
        counters=options.counters,
    )


def request_of(
    options: Options,
    chosen: Request,
    *,
    variants: Sequence[Variant],
    claims: Sequence[ClaimInstance],
) -> Request:
    """Return what is to be run of what was chosen, and how it is judged.

    Variants that only a claim needs are measured for it.
    """
    from perfsuite.nightly.exceptions import Exceptions
    from perfsuite.store.baselines import shipped_by

    needed = {variant.id for variant in variants}
    needed |= {side for claim in claims for side in (claim.faster, claim.than)}
    return dataclasses.replace(
        chosen,
        variants=tuple(variant for variant in chosen.variants if variant.id in needed),
        claims=tuple(claims),
        policy=policy_of(options),
        against=against_of(options),
        baseline_roots=(*options.baselines, *shipped_by(chosen.packs)),
        exceptions=Exceptions.load(options.baselines, datetime.now(UTC).date()),
    )


def settings_of(options: Options) -> Settings:
    """Return how the run measures."""
    settings = Settings(check_only=options.check, seed=options.seed)
    if options.processes is None:
        return settings
    confirm = max(options.processes, settings.confirm_processes)
    return replace(settings, processes=options.processes, confirm_processes=confirm)


def policy_of(options: Options) -> Policy:
    """Return how the run is judged; a word that nothing is called is a ``UsageError``."""
    unknown = sorted(set(options.fail_on) - {*FAIL_WORDS, *STATUS_WORDS})
    if unknown:
        raise UsageError(
            f"--perf-fail-on does not know {unknown[0]!r}",
            remedy=f"choose among {', '.join((*FAIL_WORDS, *STATUS_WORDS))}",
        )
    # What is accepted is no failure, however it compares with what it replaces.
    words = () if options.accept else tuple(set(options.fail_on) & set(FAIL_WORDS))
    return Policy(threshold=options.threshold, gate=options.gate, fail_on=words)


def against_of(options: Options) -> RevisionOptions | None:
    """Return what the working tree is compared with, if that is a revision of it."""
    if options.against is None:
        if options.repo or options.against_build:
            raise UsageError(
                "--perf-repo and --perf-against-build say nothing by themselves",
                remedy="name a revision with --perf-against=REV, or leave them out",
            )
        return None
    for name, is_given in (("--perf-check", options.check), ("--perf-accept", options.accept)):
        if is_given:
            raise UsageError(
                f"--perf-against cannot go with {name}: it says nothing of right or accepted",
                remedy="run them one after the other",
            )
    project = options.root / (options.repo or "")
    return RevisionOptions(rev=options.against, project=project, build=options.against_build)


# Pytest reads settings from these as well.
OTHERS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg")


def text_of(root: Path, name: str, default: str) -> str:
    """Return a setting of one line; ``UsageError`` where commands cannot read it."""
    return str(_setting(root, name, default))


def paths_of(root: Path, name: str, default: Sequence[str]) -> tuple[Path, ...]:
    """Return a setting of type "paths", relative ones below ``root``; errors as ``text_of``."""
    found = _setting(root, name, list(default))
    words = shlex.split(found) if isinstance(found, str) else found
    return tuple(root / str(word) for word in words)


def _setting(root: Path, name: str, default: object) -> Any:
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
