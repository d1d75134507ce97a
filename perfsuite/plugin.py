"""The pytest plugin: options, variants as items, the measuring before they report, quick looks."""

from __future__ import annotations

import functools
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from perfsuite.boundary import PAGE_CHARACTERS, DeviceError, PerfError, UsageError
from perfsuite.model import ClaimInstance, Pack, Regime, Status, Variant
from perfsuite.run.config import EXIT_MACHINE, OPTIONS, Config, config_of, known_options

if TYPE_CHECKING:
    from perfsuite.devices.protocol import Device, Sample
    from perfsuite.report.data import RunView
    from perfsuite.report.terminal import Account, Ticker
    from perfsuite.run.finish import Closing
    from perfsuite.run.run import Outcome
    from perfsuite.workers.units import Panels

# In a file of their own: a project's names of tests may fit functions here, too.
ITEMS = Path(__file__).parent / "run" / "items.py"
looks_key: pytest.StashKey[list[Look]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; without --perf none of them does anything."""
    group = parser.getgroup("perfsuite", "GPU performance (perfsuite)")
    for name, option in known_options().items():
        add = group.addoption if name.startswith("--") else parser.addini
        add(name, **option)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Under --perf, refuse what does not go with it, before it starts processes of its own."""
    if not config.getoption("perf"):
        given = (str(word).partition("=")[0] for word in config.invocation_params.args)
        if alone := next((name for name in given if name in OPTIONS), ""):
            raise pytest.UsageError(f"{alone} does nothing without --perf\n  do: add --perf")
        return
    for option, told, remedy in REFUSED:
        if config.getoption(option, default=None):
            error = UsageError(f"--perf cannot run with {told}", remedy=remedy)
            raise pytest.UsageError(str(error))


def pytest_configure(config: pytest.Config) -> None:
    """Under --perf, hand the session over to the room that measures."""
    config.stash[looks_key] = []
    if not config.getoption("perf"):
        for arg in config.args:
            # As pytest does: a link stays, ".." goes.
            named = config.invocation_params.dir / arg.partition("::")[0]
            path = Path(os.path.abspath(named))  # noqa: PTH100
            is_module = path.is_file() and is_case(path, config)
            if is_module or is_module_id(arg, config):
                what = "a case module" if is_module else "a variant"
                raise pytest.UsageError(f"{arg} is {what}\n  do: add --perf")
        return
    if config.getoption("help"):  # nothing is run, and not all options are read
        return
    _refuse_other_root(config)
    config.pluginmanager.register(PerfSession(config), "perfsuite-session")


def _refuse_other_root(config: pytest.Config) -> None:
    """Refuse a root that pytest took from an option's value: it looks at all that is a path."""
    here, root = config.invocation_params.dir, config.rootpath
    is_own = here == root or (config.inipath and here.is_relative_to(root))
    if is_own or config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    values = [config.getoption(f"perf_{name}") or "" for name in ("report", "against_env")]
    values += config.getoption("perf_packs")
    for value in (here / value for value in values):
        is_apart = not (value.is_relative_to(here) and here.is_relative_to(root))
        if value.exists() and value.is_relative_to(root) and is_apart:
            raise pytest.UsageError(
                f"pytest took {str(root)!r} for the project's root, from an option"
                "\n  do: write '=' before it, as in --perf-report=DIR and --perf-packs=PATH, "
                f"or add --rootdir={here}"
            )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave case modules out of an ordinary session: they have nothing to say in it."""
    return (not config.getoption("perf") and is_case(collection_path, config)) or None


def is_case(path: Path, config: pytest.Config) -> bool:
    """Say whether a path lies in a folder of case modules."""
    return any(path.is_relative_to(folder) for folder in config.getini("perf_cases"))


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Callable[..., Look]:
    """Call a function; under --perf also take a quick look at its time: ``perf(fn, *args)``.

    Returns a look: ``result`` is what the first call returned, ``time_us`` the median of its
    ``runs``, of half a second. If calls put work on the GPU that this process uses, the GPU is
    timed on both of its clocks, else the host. Inputs are the same in each run, and so lie in the
    caches. A look is listed in the summary and gives no verdict; for a verdict, write a case.
    """
    config: pytest.Config = request.config
    is_on = config.getoption("perf") and not config.getoption("perf_check")

    def look(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Look:
        if not is_on:
            return Look(name=request.node.nodeid, result=fn(*args, **kwargs))
        taken = take_look(request.node.nodeid, lambda: fn(*args, **kwargs))
        config.stash[looks_key].append(taken)
        return taken

    return look


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """List the quick looks."""
    if config.stash[looks_key]:
        terminalreporter.write_sep("-", "perfsuite: quick looks, no verdict")
    for look in config.stash[looks_key]:
        terminalreporter.write_line(look.line())


# The file part of the ids of a project without case modules.
MODULE = "perf"
FIXTURE = "perf"
# What an item reports on.
Reported = Variant | ClaimInstance | Pack


def is_module_id(arg: str, config: pytest.Config) -> bool:
    """Say whether an argument is the id of an item in ``MODULE``."""
    return arg.startswith(f"{MODULE}::") and not (config.invocation_params.dir / MODULE).exists()


def takes_look(item: pytest.Item) -> bool:
    """Say whether an ordinary test takes a quick look; a project's own fixture may hide ours."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for each in reversed(known.get(FIXTURE, ())):
        if each.func.__module__ == __name__:
            return True
        if FIXTURE not in each.argnames:
            return False
    return False


def reported_by(item: pytest.Item) -> Iterable[Reported]:
    """Return the variant or claim that an item reports."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return [params[name] for name in ("variant", "claim") if isinstance(params.get(name), Reported)]


# What pytest-benchmark does with the results of its fixture, which pytest-codspeed shares.
RESULTS = ("json", "save", "autosave", "compare", "histogram")


# Options that would have perf items run elsewhere, again, or not at all: why, and what to do.
DISTURBED = "measurements would disturb each other"
ALL_GPUS = "perfsuite drives all GPUs of this machine itself"
REFUSED = (
    ("numprocesses", f"xdist's -n: {DISTURBED}", f"leave -n out, or add -n 0; {ALL_GPUS}"),
    ("tx", f"xdist's --tx: {DISTURBED}", f"leave --tx out; {ALL_GPUS}"),
    (
        *("looponfail", "xdist's --looponfail: what failed would be measured until it passes"),
        "leave it out; --lf runs what failed once more",
    ),
    ("codspeed", "--codspeed: it would deselect every variant", "run them one after the other"),
    (
        *("benchmark_only", "--benchmark-only: it would skip every variant"),
        "leave it out; each report has a benchmark.json in pytest-benchmark's format",
    ),
    (
        *("reruns", "--reruns: a repeated test would turn a slowdown into a pass"),
        "leave --reruns out, or add --reruns 0; perfsuite confirms changes in fresh processes",
    ),
)


REST = "test_other"
ARGUMENTS = frozenset({"variant", "claim", "broken_pack"})
# What pytest's short summary lists where nobody says: what failed, and errors.
REPORTED_BY_PYTEST = "fE"

T = TypeVar("T")


class PerfSession:
    """The hooks of a session under --perf."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.asked = self._guarded(lambda: config_of(config))
        self.chosen: Config | None = None
        # What tests are given, with its pack, by their argument's name and its id.
        self.values: Mapping[str, Mapping[str, tuple[str, Reported]]] = {}
        self.panels: Panels | None = None
        self.ticker: Ticker | None = None
        self.outcome: Outcome | None = None
        self.interrupted = False
        self.told_suite = False
        # The lines of the summary.
        self.told: Sequence[str] = ()
        self.accounts: Mapping[str, Account] = {}
        # By the node id of the item that has reported it.
        self.reported: dict[str, Account] = {}
        self.closing: Closing | None = None
        self.folders: Sequence[Path] = config.getini("perf_cases")
        # Files and folders that the command line names, and node ids in MODULE, which is no file.
        is_given = config.args_source.name == "ARGS"
        self.ids = [arg for arg in config.args if is_given and is_module_id(arg, config)]
        config.args = [arg for arg in config.args if arg not in self.ids]
        paths = (config.invocation_params.dir / arg.partition("::")[0] for arg in config.args)
        self.named = [path.resolve() for path in paths if is_given]
        files = [path for path in self.named if path.is_file()]
        # Whether packs are asked for, and not only files with quick looks.
        self.needs_packs = bool(self.ids or not files or any(is_case(p, config) for p in files))
        self.left_out: set[pytest.Item] = set()
        # Without results pytest-benchmark would only warn.
        self.silenced = [n for n in RESULTS if config.getoption(f"benchmark_{n}", default=None)]
        for name in self.silenced:
            setattr(config.option, f"benchmark_{name}", None)
        # The table of numbers says it; with -r somebody asks for pytest's own as well.
        if config.option.reportchars == REPORTED_BY_PYTEST:
            config.option.reportchars = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Catalogue the packs once, before anything is collected."""
        if self.needs_packs:
            if not self._is_dry:  # the device's servers import torch while packs are listed
                from perfsuite.workers.units import Panels

                self.panels = Panels(self.asked.wait, self._write)
                self.config.add_cleanup(self.panels.close)
                self.panels.begin(self.asked.device, self.asked.settings)
            self.chosen = chosen = self._guarded(self.asked.chosen)
            self.values = {
                "variant": {each.id: (each.pack, each) for each in chosen.variants},
                "claim": {each.id: (each.pack, each) for each in chosen.claims},
                "broken_pack": {p.name: (p.name, p) for p in chosen.packs if p.error},
            }

    @property
    def _is_dry(self) -> bool:
        return bool(self.config.option.collectonly or self.config.option.setuponly)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave every file out but case modules and what was named."""
        is_taken = collection_path.is_dir() or is_case(collection_path, self.config)
        place = collection_path.resolve()
        return None if is_taken or any(map(place.is_relative_to, self.named)) else True

    def pytest_pycollect_makeitem(
        self, collector: pytest.Module | pytest.Class, name: str, obj: object
    ) -> list[pytest.Item] | None:
        """Drop a test that has no values: pytest would report it as skipped."""
        code = getattr(obj, "__code__", None)
        if not code or not name.startswith("test") or not self._is_case(collector.path):
            return None
        arguments = ARGUMENTS & set(code.co_varnames[: code.co_argcount])
        return [] if any(not self._values(collector.path, each) for each in arguments) else None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give a case module its packs' variants, claims and failures, under their own ids."""
        path = metafunc.definition.path
        if not self._is_case(path):
            return
        for argument in ARGUMENTS & set(metafunc.fixturenames):
            values = self._values(path, argument)
            metafunc.parametrize(argument, values.values(), ids=list(values))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Leave ordinary tests out; collect the packs where no case module takes them.

        What cannot be listed stays, as in pytest a file that cannot be read: -k may mean a part.
        """
        own = {item for item in items if self._is_case(item.path) or takes_look(item)}
        self.left_out = set(items) - own
        # Where variants have no case module to stand in, unless files of others are named.
        if self.chosen and (self.ids or not (self.folders and self.named)):
            module: pytest.Module = pytest.Module.from_parent(
                session, path=ITEMS, name=MODULE, nodeid=MODULE
            )
            found = list(session.genitems(module))
            items.extend(found)
            own.update(() if self.ids else found)
            for name in self.ids:
                named = [i for i in found if name in {i.nodeid, i.nodeid.partition("[")[0]}]
                if not named:
                    raise pytest.UsageError(
                        f"not found: {name}\n  do: list the ids: pytest --perf --collect-only -q "
                        "(of another tier: --perf-tier nightly or full)"
                    )
                own.update(named)
        if others := [item for item in items if item not in own]:
            config.hook.pytest_deselected(items=others)
        broken = [i for i in items if i in own and "broken_pack" in getattr(i, "fixturenames", ())]
        items[:] = [item for item in items if item in own and item not in broken]
        yield
        items.extend(broken)

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        """Say what others' tests are left out, and why there is nothing, where there is nothing."""
        from perfsuite.report.view import count

        packs = self.chosen.packs if self.chosen else ()
        told = [f"note: pack {p.name}: {p.note}" for p in packs if p.note]
        of = [type(each) for item in items for each in reported_by(item)]
        counts = count(of.count(Variant), "variant"), count(of.count(ClaimInstance), "claim")
        if counted := self._why_nothing(items) or (f"perfsuite: {', '.join(counts)}" if of else ""):
            told.insert(0, counted)
        options = "".join(f" and --benchmark-{name}" for name in self.silenced)
        if options or any("benchmark" in getattr(i, "fixturenames", ()) for i in self.left_out):
            left_out = f"perfsuite: benchmark tests{options} are left out; run them without --perf"
            told.insert(0, left_out)
        return told

    def _why_nothing(self, items: list[pytest.Item]) -> str:
        if self.chosen is None or items:
            return ""
        if not self.chosen.packs:
            return "perfsuite: no pack found; install one, or name one with --perf-packs=PATH"
        if self.chosen.shard and not self.chosen.variants:
            return f"perfsuite: shard {self.chosen.shard} has no variant: nothing to do"
        told = f"no variant is chosen here; case modules are in {', '.join(map(str, self.folders))}"
        return f"perfsuite: {told}" if self.folders else ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Measure and judge everything that was collected; the items then only report."""
        is_broken = session.testsfailed and not self.config.option.continue_on_collection_errors
        if (chosen := self.chosen) and not (is_broken or self._is_dry):
            reported = [each for item in session.items for each in reported_by(item)]
            variants = [each for each in reported if isinstance(each, Variant)]
            claims = [each for each in reported if isinstance(each, ClaimInstance)]
            if own := {v.id for v in variants} | {c.id for c in claims}:
                self._guarded(lambda: self._measure(chosen.narrowed(variants, claims), own))
        if self.panels:  # quick looks are timed alone
            self.panels.close()
        return (yield)

    def _measure(self, asked: Config, own: Collection[str]) -> None:
        from perfsuite.report.terminal import Ticker, accounts_of, bare_accounts, summary
        from perfsuite.run.finish import close
        from perfsuite.run.run import execute

        with Ticker(self._write) as self.ticker:
            self.outcome = outcome = execute(asked, self.ticker, self.panels)
        if self.panels:
            self.panels.close()
        self.closing = close(outcome, asked)
        self.accounts = bare_accounts(outcome.run)
        if run_view := self.run_view:
            told = functools.partial(accounts_of, run_view)
            self.accounts = outcome.steps.take("items say less", told, self.accounts)
            # Of a claim's sides, or of a run that goes on with a narrower selection.
            for name in (n for n, each in self.accounts.items() if each.fails and n not in own):
                outcome.steps.add(name, "fails, and no test of this session reports it")
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
            is_verbose = self.config.option.verbose > 0
            lines = functools.partial(summary, run_view, is_verbose=is_verbose, width=width)
            self.told = outcome.steps.take("no summary", lines, ())

    @property
    def run_view(self) -> RunView | None:
        """The run as it is reported, once it is."""
        return self.closing.run_view if self.closing else None

    def _write(self, line: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(line)

    @pytest.fixture
    def judged(self, request: pytest.FixtureRequest) -> Callable[[Reported], None]:
        """Report what the run found about a variant, a claim or a pack."""
        has_suite = self.config.pluginmanager.hasplugin("junitxml") and not self.told_suite
        if has_suite and self.run_view and self.outcome:
            from perfsuite.report.files import suite_properties

            record = request.getfixturevalue("record_testsuite_property")
            told = functools.partial(suite_properties, self.run_view)
            lacks, nothing = "JUnit's suite lacks its properties", list[tuple[str, str | float]]()
            for name, value in self.outcome.steps.take(lacks, told, nothing):
                record(name, value)
        self.told_suite = True
        for each in reported_by(request.node):
            # Where a fixture fails, pytest and JUnit call it an error.
            if (account := self.accounts.get(getattr(each, "id", ""))) and account.is_error:
                self._report(request.node, each)
        return functools.partial(self._report, request.node)

    def _report(self, item: pytest.Item, reported: Reported) -> None:
        if isinstance(reported, Pack):
            from perfsuite.report.terminal import plain

            pytest.fail(plain(reported.error), pytrace=False)
        account = self.accounts.get(reported.id)
        if account is None:
            pytest.skip("not measured: the run ended before it")
        self.reported[item.nodeid] = account
        # An item that is run again says the same, once.
        item.user_properties += [p for p in account.properties if p not in item.user_properties]
        if account.skipped:
            pytest.skip(account.text)
        if account.fails:
            pytest.fail(account.text, pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give JUnit the first line of what is told, and the time that the run spent on it."""
        report = yield
        account, crash = self.reported.get(item.nodeid), getattr(report.longrepr, "reprcrash", None)
        if crash and account and account.fails and account.text in crash.message:
            crash.message = account.text.partition("\n")[0]
        elif report.failed:  # by what is the project's own, of which pytest has to tell
            self.reported.pop(item.nodeid, None)
        if account and (report.when == "call" or report.failed):
            report.duration = float(dict(account.properties).get("perf_wall_s", report.duration))
        return report

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Say with -v how a variant ended in place of PASSED and FAILED."""
        account = self.reported.get(report.nodeid) if report.when == "call" else None
        if account is None or report.skipped:
            return None
        return report.outcome, ".F"[report.failed], account.told

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        """Sum up behind all that pytest has to say: the last screen is what is read first."""
        stats, reporter = terminalreporter.stats, terminalreporter
        whole = {kind: stats[kind] for kind in stats.keys() & {"failed", "error"}}
        # The summary tells what failed, once; with -r somebody asks for pytest's own list.
        is_told = self.told and not self.config.option.reportchars
        for kind, reports in whole.items() if is_told else ():
            stats[kind] = [one for one in reports if one.nodeid not in self.reported]
        done = yield
        stats.update(whole)
        if self.interrupted and (resuming := self._interrupted()):
            reporter.write_line(resuming)
        if self.closing and self.outcome:
            from perfsuite.report.terminal import plain

            lines, steps = self.closing.lines, self.outcome.steps
            if steps.tracebacks:
                reporter.write_sep("-", "perfsuite: what failed after the measuring")
            for text in steps.tracebacks:
                reporter.write_line(plain(text, most=PAGE_CHARACTERS))
            reporter.write_sep("=", "perfsuite")
            told = (*self.told, *map(plain, (*lines, *steps.notes)), *self.closing.annotations)
            for line in told:
                reporter.write_line(line)
        return done

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that a run was cut short, unless all was measured and told before."""
        self.interrupted = self.closing is None and self.chosen is not None

    def _interrupted(self) -> str:
        """Say how to go on, if there is anything to go on with."""
        if self.outcome:
            return f"perfsuite: all was measured; to see it: perfsuite report {self.outcome.run.id}"
        if (told := self.ticker) and (told.has_result or (told.has_begun and self.asked.resume)):
            from perfsuite.store.runs import load_run, unfinished

            with suppress(PerfError, IndexError):  # a damaged file, or none: nothing to go on with
                run = load_run(unfinished(self.asked.folder)[0])
                known = {one.variant: one.status for one in run.asked}
                skipped = [*known.values()].count(Status.SKIPPED)
                counts = f"{len(known) - skipped} of {len(run.variants) - skipped} variants"
                return f"perfsuite: {counts} measured, none judged; go on:\n  {self.asked.resuming}"
        return ""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail for what no item reports."""
        is_empty = self.chosen and self.chosen.shard and not self.chosen.variants
        if is_empty and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        if self.run_view and self.run_view.is_environment and not session.shouldfail:
            others = session.testsfailed - sum(one.fails for one in self.run_view.variants)
            is_alone = not others and session.exitstatus == pytest.ExitCode.TESTS_FAILED
            is_alone = is_alone and self.outcome is not None and self.outcome.steps.are_done
            session.exitstatus = EXIT_MACHINE if is_alone else session.exitstatus
        if self.outcome and not self.outcome.steps.are_done and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _guarded(self, call: Callable[[], T]) -> T:
        """Turn a deliberate error into pytest's: its message, no traceback, exit status 4."""
        try:
            return call()
        except PerfError as error:
            from perfsuite.report.terminal import plain

            raise pytest.UsageError(plain(str(error))) from error
        except KeyboardInterrupt:  # which pytest would show with the line of ours it came to
            raise pytest.exit.Exception("interrupted", returncode=2) from None

    def _is_case(self, path: Path) -> bool:
        return path == ITEMS or is_case(path, self.config)

    def _values(self, path: Path, argument: str) -> dict[str, Reported]:
        """Return an argument's values for a case module; each pack belongs to one module."""
        homes = [path.parent] if path != ITEMS else [] if self.ids else self.folders
        stems = {file.stem for home in homes for file in home.glob("test_*.py")}
        takes_rest = path.stem == REST or (path == ITEMS and REST not in stems)
        return {
            name: value
            for name, (pack, value) in self.values.get(argument, {}).items()
            if path.stem == f"test_{pack}" or (takes_rest and f"test_{pack}" not in stems)
        }


TIME_LIMIT_S = 0.5
MOST_RUNS = 1000
# On a GPU each run has its stamps and its spin; more of them show nothing new.
MOST_STAMPED = 256
NAN = float("nan")
HOST, GPU = "host", "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a call returned, and how long its runs took: the median and the middle half around it.

    ``clock`` is where time was taken, "GPU" or "host"; ``cycles`` are SM cycles, NaN on the host.
    Nothing was timed where ``runs`` is 0, as without --perf: times are NaN then.
    """

    name: str
    result: Any
    runs: int = 0
    time_us: float = NAN
    low_us: float = NAN
    high_us: float = NAN
    cycles: float = NAN
    clock: str = HOST
    note: str = ""

    def line(self) -> str:
        """Return the look as one line of the summary."""
        clocks = f"{self.cycles:,.0f} cycles, " if self.clock == GPU else ""
        told = f"{self.low_us:,.2f} to {self.high_us:,.2f}, {clocks}{self.runs} runs, {self.clock}"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.time_us:14,.2f} us  ({told})  {self.name}{note}"


def take_look(name: str, call: Callable[[], Any], *, time_limit_s: float = TIME_LIMIT_S) -> Look:
    """Call once to warm up and for the result, then until the time is up."""
    bare, torch = Look(name=name, result=call()), sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return _timed(bare, _host_times(call, lambda: None, time_limit_s))
    from perfsuite.devices.tensors import open_guest

    try:
        device, stream = open_guest()
        with stream:
            samples = gpu_samples(device, call, time_limit_s)
            device.synchronize()
        device.close()
    except DeviceError as error:
        samples, bare = (), replace(bare, note=f"host time: {error.what}")
    if not samples:
        return _timed(bare, _host_times(call, torch.cuda.synchronize, time_limit_s))
    cycles = statistics.median(sample.cycles for sample in samples)
    timed = _timed(bare, [sample.time_us for sample in samples])
    return replace(timed, cycles=cycles, clock=GPU)


def gpu_samples(device: Device, call: Callable[[], Any], time_limit_s: float) -> Sequence[Sample]:
    """Time runs of a call between stamps; nothing if it leaves the GPU alone or work behind."""
    from perfsuite.devices.protocol import least_us
    from perfsuite.engine.calibrate import ISSUE_MARGIN

    group = device.group(call, [()], 1, backend="loop")
    device.synchronize()
    started = time.perf_counter()
    group()
    issue_us = 1e6 * (time.perf_counter() - started)
    device.synchronize()
    run_us = 1e6 * (time.perf_counter() - started)
    if issue_us > 1e6 * time_limit_s or not device.joins_streams(group):
        return ()
    spin_us = ISSUE_MARGIN * issue_us
    runs = min(MOST_STAMPED, int(1e6 * time_limit_s / (run_us + spin_us)))
    least = least_us(device)
    samples = device.sample(group, max(1, runs), regime=Regime.PACED, spin_us=spin_us, flush=False)
    good = [sample for sample in samples if math.isfinite(sample.time_us)]
    is_busy = good and statistics.median(sample.time_us for sample in good) > least
    return good if is_busy else ()


def _host_times(
    call: Callable[[], Any], wait: Callable[[], object], time_limit_s: float
) -> Iterator[float]:
    wait()
    end = time.perf_counter() + time_limit_s
    for runs in range(MOST_RUNS):
        if runs and time.perf_counter() > end:
            return
        start = time.perf_counter_ns()
        call()
        wait()
        yield (time.perf_counter_ns() - start) / 1e3


def _timed(look: Look, times: Iterator[float] | Sequence[float]) -> Look:
    times_us = list(times)
    low, middle, high = statistics.quantiles(times_us * 2, n=4, method="inclusive")
    return replace(look, runs=len(times_us), time_us=middle, low_us=low, high_us=high)
