"""The pytest plugin: its options, and what holds in every session, measured or not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfsuite.fixture import Look, PerfFixture

TIERS = ("smoke", "nightly", "full")
# What fails a run unless --perf-fail-on says otherwise; see judge.Policy.
FAIL_ON = "slower,over-budget,machine-shift,wrong,crashed,timed-out,error,broken"

looks_key: pytest.StashKey[list[Look]] = pytest.StashKey()
left_out_key: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:  # noqa: PLR0915 - a list of options
    """Declare the options; without --perf none of them does anything."""
    add = parser.getgroup("perfsuite", "GPU performance (perfsuite)").addoption
    add(
        "--perf",
        action="store_true",
        help="measure, judge and report the packs' variants instead of running ordinary tests",
    )
    add(
        "--perf-tier",
        choices=TIERS,
        default="smoke",
        help="how many values of each axis: smoke (default, seconds), nightly or full",
    )
    add(
        "--perf-select",
        metavar="EXPR",
        default="",
        help="variants by axis, pack, case or id: 'impl=triton,n>=1e6'; -k takes words",
    )
    add(
        "--perf-device",
        choices=("auto", "cuda", "cpu", "fake"),
        default="auto",
        help="where to measure; auto takes the GPUs if there are any, else the CPU",
    )
    add(
        "--perf-packs",
        metavar="NAMES",
        type=_words,
        default=(),
        help="only these packs, separated by commas",
    )
    add(
        "--perf-pack",
        metavar="FILE_OR_FOLDER",
        action="append",
        type=Path,
        default=[],
        help="one more pack: a Python file, or a folder with a pyproject.toml; repeatable",
    )
    add(
        "--perf-processes",
        metavar="N",
        type=_count,
        help="fresh processes per variant; more find smaller changes",
    )
    add(
        "--perf-against",
        metavar="REV",
        help="compare the working tree with this revision of it, both measured now and in turns",
    )
    add(
        "--perf-against-build",
        metavar="CMD",
        default="",
        help="shell command that builds the revision in its checkout; needed for what is compiled",
    )
    add(
        "--perf-repo",
        metavar="PATH",
        type=Path,
        help="the repository under test (default: that of the rootdir)",
    )
    add("--perf-seed", metavar="N", type=int, default=0, help="seed of inputs and of the order")
    add("--perf-check", action="store_true", help="check that results are right; measure nothing")
    add(
        "--perf-profile",
        action="store_true",
        help="tell at the end where the run's own time went: by phase, device and variant",
    )
    add(
        "--perf-resume",
        action="store_true",
        help="continue the last run if it was interrupted, keeping what it measured",
    )
    add(
        "--perf-accept",
        action="store_true",
        help="make this run's numbers the baseline, if every variant that ran is right; "
        "its changes then fail nothing (needs --perf-reason)",
    )
    add(
        "--perf-reason",
        metavar="TEXT",
        default="",
        help="why the numbers are accepted; stored with them",
    )
    add(
        "--perf-fail-on",
        metavar="WORDS",
        type=_words,
        default=_words(FAIL_ON),
        help=f"verdicts, statuses and claims that fail a test (default: {FAIL_ON})",
    )
    add(
        "--perf-threshold",
        metavar="PCT",
        type=_percent,
        help="smallest change called slower or faster",
    )
    add("--perf-gate", metavar="PCT", type=_percent, help="smallest slower change that fails a run")
    add(
        "--perf-report",
        metavar="DIR",
        type=Path,
        default=Path("reports"),
        help="where to write the HTML report (default: reports)",
    )
    parser.addini("perf_cases", "folders of case modules: run with --perf only", type="paths")
    parser.addini(
        "perf_baselines", "folders of accepted numbers", type="paths", default=["baselines"]
    )
    parser.addini(
        "perf_history", "URL of the history; empty: none", default="sqlite:///.perfsuite/history.db"
    )
    parser.addini(
        "perf_exit_codes",
        "exit with 10 if something regressed, 13 if incomparable, 14 if the machine shifted, "
        "15 if only unclear",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Under --perf, hand the session over to the room that measures."""
    config.stash[looks_key] = []
    config.stash[left_out_key] = []
    if not config.getoption("perf"):
        _refuse_variants(config)
        return
    _refuse_other_drivers(config)
    _refuse_other_root(config)
    from perfsuite.session import PerfSession

    config.pluginmanager.register(PerfSession(config), "perfsuite-session")


def _refuse_variants(config: pytest.Config) -> None:
    """Say what to do where the id of a variant was copied without --perf."""
    from perfsuite.wanted import is_module_id

    for arg in config.args:
        if is_module_id(arg, config):
            raise pytest.UsageError(f"{arg} is a variant\n  do: add --perf")


def _refuse_other_drivers(config: pytest.Config) -> None:
    """Refuse what would run perf items elsewhere, again, or not at all."""
    if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "--perf cannot run under xdist's -n: measurements would disturb each other"
            "\n  do: leave -n out; perfsuite drives all GPUs of this machine itself"
        )
    if config.getoption("codspeed", default=False):
        raise pytest.UsageError(
            "--perf cannot run with --codspeed: it would deselect every variant"
            "\n  do: run them one after the other"
        )
    if config.getoption("reruns", None):
        raise pytest.UsageError(
            "--perf cannot run with --reruns: a repeated test would turn a slowdown into a pass"
            "\n  do: leave --reruns out; perfsuite confirms changes in fresh processes"
        )
    if not config.getoption("perf_reason").replace("\n", " ").isprintable():
        raise pytest.UsageError(
            f"--perf-reason holds what cannot be stored: {config.getoption('perf_reason')!r}"
            "\n  do: write it in plain text"
        )
    if config.getoption("perf_accept") and not config.getoption("perf_reason").strip():
        raise pytest.UsageError(
            "--perf-accept needs a reason, which is stored with the numbers"
            '\n  do: add --perf-reason "why these numbers are right"'
        )
    if config.getoption("perf_accept") and config.getoption("perf_check"):
        raise pytest.UsageError(
            "--perf-accept has nothing to accept under --perf-check, which measures nothing"
            "\n  do: leave one of them out"
        )


def _refuse_other_root(config: pytest.Config) -> None:
    """Refuse a root that pytest took from an option's value: it looks at all that is a path."""
    here, root = config.invocation_params.dir, config.rootpath
    if config.args_source is pytest.Config.ArgsSource.ARGS or config.inipath or here == root:
        return
    values = [config.getoption("perf_report"), *config.getoption("perf_pack")]
    values += filter(None, [config.getoption("perf_repo")])
    for value in (here / value for value in values):
        if value.exists() and value.is_relative_to(root) and not value.is_relative_to(here):
            raise pytest.UsageError(
                f"pytest took {str(root)!r} for the project's root, from an option"
                "\n  do: write --perf-report=DIR and --perf-pack=FILE with '=', "
                f"or add --rootdir={here}"
            )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave case modules out of an ordinary session: they have nothing to say in it."""
    if config.getoption("perf") or not is_case(collection_path, config):
        return None
    return True


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Replace a case module that was named on the command line by nothing, to be told of later."""
    config = parent.config
    if config.getoption("perf") or not is_case(module_path, config):
        return None
    config.stash[left_out_key].append(module_path.relative_to(config.rootpath).as_posix())
    left_out: LeftOut = LeftOut.from_parent(parent, path=module_path)
    return left_out


class LeftOut(pytest.File):
    """A case module in a session without --perf."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield nothing."""
        return iter(())


def is_case(path: Path, config: pytest.Config) -> bool:
    """Say whether a path lies in a folder of case modules."""
    return any(path.is_relative_to(folder) for folder in config.getini("perf_cases"))


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> PerfFixture:
    """Call a function; under --perf also take a quick look at its time: ``perf(fn, *args)``.

    Returns a look: ``result`` is what the function returned, ``time_us`` the median of its
    ``runs``. It is listed in the summary and gives no verdict.
    """
    from perfsuite.fixture import PerfFixture

    config: pytest.Config = request.config
    is_on = config.getoption("perf") and not config.getoption("perf_check")
    return PerfFixture(request.node.nodeid, is_on=is_on, looks=config.stash[looks_key])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was left out, and list the quick looks."""
    for path in config.stash[left_out_key]:
        terminalreporter.write_line(f"perfsuite: to run {path}: pytest --perf {path}")
    if config.stash[looks_key]:
        terminalreporter.write_sep("-", "perfsuite: quick looks, no verdict")
    for look in config.stash[looks_key]:
        terminalreporter.write_line(look.line())


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


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
