"""pytest's session under --perf: variants become items, and all are measured before one reports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from perfsuite import items as every_pack
from perfsuite.boundary import PerfError
from perfsuite.model import ClaimInstance, Pack, Variant
from perfsuite.plugin import (
    MODULE,
    Subject,
    benchmarks_left_out,
    id_of,
    silence_benchmark,
    subjects_of,
    takes_look,
    wanted_of,
)
from perfsuite.run.config import EXIT_MACHINE, options_of

if TYPE_CHECKING:
    from perfsuite.report.data import RunView
    from perfsuite.report.terminal import Account, Ticker
    from perfsuite.run.config import Request
    from perfsuite.run.finish import Closing
    from perfsuite.run.run import Outcome, Steps


REST = "test_other"
ARGUMENTS = frozenset({"variant", "claim", "broken_pack"})
NOT_RUN = "not measured: the run ended before it"

T = TypeVar("T")


class PerfSession:
    """The hooks of a session under --perf."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.options = self._guarded(lambda: options_of(config))
        self.chosen: Request | None = None
        # What tests are given, by their argument's name and the pack.
        self.values: dict[tuple[str, str], list[Subject]] = {}
        self.session: pytest.Session | None = None
        self.ticker: Ticker | None = None
        self.outcome: Outcome | None = None
        self.interrupted = False
        self.told_suite = False
        self.accounts: Mapping[str, Account] = {}
        self.closing: Closing | None = None
        self.wanted = wanted_of(config)
        self.left_out: set[pytest.Item] = set()
        self.silenced = silence_benchmark(config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Catalogue the packs once, before anything is collected."""
        from perfsuite.run.config import choose

        if self.wanted.needs_packs:
            self.chosen = self._guarded(lambda: choose(self.options))
            for variant in self.chosen.variants:
                self.values.setdefault(("variant", variant.pack), []).append(variant)
            for claim in self.chosen.claims:
                self.values.setdefault(("claim", claim.pack), []).append(claim)
            for pack in (each for each in self.chosen.packs if each.error):
                self.values.setdefault(("broken_pack", pack.name), []).append(pack)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave every file out but case modules and what was named."""
        is_left_out = collection_path.is_file() and not self.wanted.takes(collection_path)
        return True if is_left_out else None

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
            metafunc.parametrize(argument, values, ids=[id_of(value) for value in values])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave ordinary tests out; collect the packs where no case module takes them."""
        own = {item for item in items if self._is_case(item.path) or takes_look(item)}
        self.left_out = set(items) - own
        if self.left_out:
            config.hook.pytest_deselected(items=list(self.left_out))
            items[:] = [item for item in items if item in own]
        if self.chosen and self.wanted.needs_module:
            module: pytest.Module = pytest.Module.from_parent(
                session, path=Path(every_pack.__file__), name=MODULE, nodeid=MODULE
            )
            found = list(session.genitems(module))
            chosen = self._guarded(lambda: self.wanted.chosen(found))
            items.extend(chosen)
            if others := set(found) - set(chosen):
                config.hook.pytest_deselected(items=list(others))

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        """Say what others' tests are left out, and why there is nothing, where there is nothing."""
        told = (benchmarks_left_out(self.silenced, self.left_out), self._why_nothing(items))
        return [line for line in told if line]

    def _why_nothing(self, items: list[pytest.Item]) -> str:
        if self.chosen is None or items:
            return ""
        if not self.chosen.packs:
            return "perfsuite: no pack found; install one, or name one with --perf-pack"
        if self.chosen.shard and not self.chosen.variants:
            return f"perfsuite: shard {self.chosen.shard} has no variant: nothing to do"
        if not self.wanted.folders:
            return ""
        folders = ", ".join(map(str, self.wanted.folders))
        return f"perfsuite: no variant is chosen here; case modules are in {folders}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Measure and judge everything that was collected; the items then only report."""
        option = self.config.option
        is_broken = session.testsfailed and not option.continue_on_collection_errors
        if self.chosen and not (is_broken or option.collectonly or option.setuponly):
            subjects = [subject for item in session.items for subject in subjects_of(item)]
            variants = [each for each in subjects if isinstance(each, Variant)]
            claims = [each for each in subjects if isinstance(each, ClaimInstance)]
            if variants or claims:
                self._guarded(lambda: self._measure(variants, claims))
        return (yield)

    def _measure(self, variants: list[Variant], claims: list[ClaimInstance]) -> None:
        from perfsuite.report.terminal import Ticker, accounts_of, bare_accounts
        from perfsuite.run.config import request_of
        from perfsuite.run.finish import close
        from perfsuite.run.run import settled

        assert self.chosen is not None  # noqa: S101 - collection came first
        request = request_of(self.options, self.chosen, variants=variants, claims=claims)
        with Ticker(self._write) as self.ticker:
            self.outcome = outcome = settled(request, self.ticker)
        self.closing = close(outcome, self.chosen.packs, self.options)
        self.accounts = bare_accounts(outcome.run, self.options)
        if book := self.book:
            told = functools.partial(accounts_of, book, self.options)
            self.accounts = outcome.steps.take("items say less", told, self.accounts)
        if outcome.is_interrupted:
            raise KeyboardInterrupt

    @property
    def book(self) -> RunView | None:
        """The run as it is reported, once it is."""
        return self.closing.book if self.closing else None

    def _write(self, line: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(line)

    @pytest.fixture
    def judged(self, request: pytest.FixtureRequest) -> Callable[[Subject], None]:
        """Report what the run found about a variant, a claim or a pack."""
        has_suite = self.config.pluginmanager.hasplugin("junitxml") and not self.told_suite
        if has_suite and self.book and self.outcome:
            from perfsuite.report.text import suite_properties

            record = request.getfixturevalue("record_testsuite_property")
            told = functools.partial(suite_properties, self.book)
            lacks, nothing = "JUnit's suite lacks its properties", list[tuple[str, str | float]]()
            for name, value in self.outcome.steps.take(lacks, told, nothing):
                record(name, value)
        self.told_suite = True
        return functools.partial(self._report, request.node)

    def _report(self, item: pytest.Item, subject: Subject) -> None:
        if isinstance(subject, Pack):
            from perfsuite.report.terminal import plain

            pytest.fail(plain(subject.error), pytrace=False)
        account = self.accounts.get(subject.id)
        if account is None:
            pytest.skip(NOT_RUN)
        # An item that is run again says the same, once.
        known = list(item.user_properties)
        item.user_properties.extend(each for each in account.properties if each not in known)
        if account.skipped:
            pytest.skip(account.text)
        if account.fails:
            pytest.fail(account.text, pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        """Sum up behind all that pytest has to say: the last screen is what is read first."""
        done = yield
        if self.interrupted and (told := self._interrupted()):
            terminalreporter.write_line(told)
        if self.closing and self.outcome:
            self._tell(terminalreporter, self.closing, self.outcome.steps)
        return done

    def _tell(self, reporter: pytest.TerminalReporter, closing: Closing, steps: Steps) -> None:
        from perfsuite.boundary import PAGE_CHARACTERS
        from perfsuite.report.terminal import plain

        short: list[str] = steps.take("no summary", lambda: list(self._summary()), [])
        if steps.tracebacks:
            reporter.write_sep("-", "perfsuite: what failed after the measuring")
        for text in steps.tracebacks:
            reporter.write_line(plain(text, most=PAGE_CHARACTERS))
        reporter.write_sep("=", "perfsuite")
        for line in (*short, *map(plain, (*closing.lines, *steps.notes)), *closing.annotations):
            reporter.write_line(line)
        if self.session and not steps.are_done and not self.session.exitstatus:
            self.session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _summary(self) -> Iterator[str]:
        from perfsuite.report.terminal import costs, summary

        if self.closing and self.book:
            yield from summary(self.book)
            yield from costs(self.book.run, self.closing.report_s) if self.options.profile else ()

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that a run was cut short, unless all was measured and told before."""
        self.interrupted = self.closing is None and self.chosen is not None

    def _interrupted(self) -> str:
        """Say how to go on, if there is anything to go on with."""
        if self.outcome:
            return f"perfsuite: all was measured; to see it: perfsuite report {self.outcome.run.id}"
        given = self.options
        kept = self.ticker and self.ticker.has_begun and (given.resume or given.resume_if_any)
        if kept or (self.ticker and self.ticker.has_result):
            return f"perfsuite: interrupted; to keep what was measured: {given.resuming}"
        return ""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail for what no item reports."""
        self.session = session
        is_empty = self.chosen and self.chosen.shard and not self.chosen.variants
        if is_empty and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        shift = self.outcome.run.shift if self.outcome else None
        if shift and shift.fails and not session.exitstatus:
            session.exitstatus = EXIT_MACHINE
        if self.outcome and not self.outcome.steps.are_done and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _guarded(self, call: Callable[[], T]) -> T:
        """Turn a deliberate error into pytest's: its message, no traceback, exit status 4."""
        try:
            return call()
        except PerfError as error:
            from perfsuite.report.terminal import plain

            raise pytest.UsageError(plain(str(error))) from error

    def _is_case(self, path: Path) -> bool:
        return path == Path(every_pack.__file__) or self.wanted.is_case(path)

    def _values(self, path: Path, argument: str) -> list[Subject]:
        """Return an argument's values for a case module; each pack belongs to one module."""
        packs = dict.fromkeys(pack for _, pack in self.values)
        if path != Path(every_pack.__file__):
            beside = {file.stem.removeprefix("test_") for file in path.parent.glob("test_*.py")}
            own = path.stem.removeprefix("test_")
            rest = path.stem == REST
            packs = {pack: None for pack in packs if pack == own or (rest and pack not in beside)}
        return [value for pack in packs for value in self.values.get((argument, pack), [])]
