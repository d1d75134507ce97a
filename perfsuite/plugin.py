"""The pytest plugin: its options, and what holds in every session, measured or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfsuite.boundary import is_plain
from perfsuite.options import INI, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfsuite.fixture import Look, PerfFixture

looks_key: pytest.StashKey[list[Look]] = pytest.StashKey()
left_out_key: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; without --perf none of them does anything."""
    group = parser.getgroup("perfsuite", "GPU performance (perfsuite)")
    for name, option in OPTIONS.items():
        group.addoption(name, **option)
    for name, option in INI.items():
        parser.addini(name, **option)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Under --perf, refuse what does not go with it, before it starts processes of its own."""
    if not config.getoption("perf"):
        return
    from perfsuite.errors import UsageError
    from perfsuite.neighbours import refuse_neighbours

    try:
        refuse_neighbours(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_configure(config: pytest.Config) -> None:
    """Under --perf, hand the session over to the room that measures."""
    config.stash[looks_key] = []
    config.stash[left_out_key] = []
    if not config.getoption("perf"):
        _refuse_variants(config)
        return
    _refuse_contradictions(config)
    _refuse_other_root(config)
    from perfsuite.session import PerfSession

    config.pluginmanager.register(PerfSession(config), "perfsuite-session")


def _refuse_variants(config: pytest.Config) -> None:
    """Say what to do where the id of a variant was copied without --perf."""
    from perfsuite.wanted import is_module_id

    for arg in config.args:
        if is_module_id(arg, config):
            raise pytest.UsageError(f"{arg} is a variant\n  do: add --perf")


def _refuse_contradictions(config: pytest.Config) -> None:
    """Refuse options that contradict each other."""
    if not is_plain(config.getoption("perf_reason")):
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
