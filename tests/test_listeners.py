"""Hooks of packs in pytest's own process: told of everything, contained, and shown as text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import report_data as data
from msgspec.structs import replace

from perfsuite.model import Pack, Section, Tier
from perfsuite.packs.find import discover
from perfsuite.packs.load import Listeners


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Leave this process as it was: a pack's folder and modules are for the session they are of."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith("perfsuite"):
            del sys.modules[name]


def pack_of(folder: Path, text: str, name: str = "acme") -> Pack:
    (folder / f"{name}_controller.py").write_text("import perfsuite\n" + text, encoding="utf-8")
    return Pack(name=name, origin=f"file:{folder / name}.py", controller=f"{name}_controller")


def hook(name: str, arguments: str, body: str) -> str:
    return f"@perfsuite.hookimpl\ndef {name}({arguments}):\n    {body}\n"


def section(fields: str) -> str:
    return hook("perf_report_section", "run", f"return perfsuite.Section({fields})")


def test_the_catalogue_names_the_module_and_does_not_import_it(tmp_path: Path) -> None:
    from perfsuite.workers.process import load_catalogue

    folder = tmp_path / "acme.py"
    text = "import perfsuite\n" + hook("perf_controller", "", 'return "not_there"')
    folder.write_text(text, encoding="utf-8")
    (pack,) = load_catalogue(discover(None, allow=[str(folder)]), tier=Tier.SMOKE)
    assert (pack.controller, pack.error) == ("not_there", "")
    folder.write_text(text.replace('"not_there"', "7"), encoding="utf-8")
    (pack,) = load_catalogue(discover(None, allow=[str(folder)]), tier=Tier.SMOKE)
    assert "perf_controller() returned 7" in pack.error


def test_results_and_verdicts_are_told_in_order(tmp_path: Path) -> None:
    text = "TOLD = []\n" + hook("perf_result", "result, variant", "TOLD.append(variant.id)")
    text += hook("perf_verdict", "verdict, variant, run", "TOLD.append(verdict.variant)")
    run = data.run_of()
    listeners = Listeners([pack_of(tmp_path, text)])
    listeners.tell(run)
    told = sys.modules["acme_controller"].TOLD
    assert listeners.notes == []
    assert told[: len(run.asked)] == [result.variant for result in run.asked]
    assert told[len(run.asked) :] == [verdict.variant for verdict in run.verdicts]


def test_a_hook_that_raises_is_a_note_once_and_harms_no_other(tmp_path: Path) -> None:
    text = hook("perf_result", "result, variant", "raise ValueError('no ticket system')")
    text += section("title='A', text='b'")
    listeners = Listeners([pack_of(tmp_path, text)])
    listeners.tell(data.run_of())
    assert listeners.sections(data.run_of()) == (Section(title="A", text="b"),)
    (note,) = listeners.notes
    assert re.match(
        r"pack acme, perf_result: ValueError: no ticket system \(.*_controller.py:4", note
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import no_such_module_of_acme", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        (hook("perf_verdicts", "verdict", "pass"), "unknown hook 'perf_verdicts'"),
        (hook("perf_result", "outcome", "pass"), "outcome"),
        (hook("perf_report_section", "run", "return 'text'"), "no perfsuite.Section"),
        (hook("perf_report_section", "run", "return 5"), "TypeError"),
        (section("title='a', text=5"), "holds what is no text"),
        (section("title='a', rows=[('b',)]"), "0 columns and a row of 1"),
    ],
)
def test_what_is_not_right_is_a_named_note(tmp_path: Path, text: str, told: str) -> None:
    listeners = Listeners([pack_of(tmp_path, text)])
    listeners.tell(data.run_of())
    assert listeners.sections(data.run_of()) == ()
    (note,) = listeners.notes
    assert note.startswith("pack acme, ")
    assert told in note


def test_a_module_of_the_same_name_elsewhere_is_not_taken_for_the_pack_s(tmp_path: Path) -> None:
    (note,) = Listeners([replace(pack_of(tmp_path, ""), controller="json")]).notes
    assert "is another one of that name" in note


def test_a_long_table_is_cut_and_says_so(tmp_path: Path) -> None:
    text = section("title='a', columns=('n',), rows=[('1',)] * 5002")
    (cut,) = Listeners([pack_of(tmp_path, text)]).sections(data.run_of())
    assert (len(cut.rows), cut.text) == (5000, " 2 more rows are not shown.")


def test_what_a_hook_changes_is_its_own_copy(tmp_path: Path) -> None:
    text = hook("perf_result", "result, variant", "variant.axes['n'] = 'bogus'")
    text += hook("perf_report_section", "run", "run.phases_s['bogus'] = 1.0")
    run = data.run_of()
    before = repr(run)
    listeners = Listeners([pack_of(tmp_path, text)])
    listeners.tell(run)
    assert listeners.sections(run) == ()
    assert (repr(run), listeners.notes) == (before, [])


def test_ctrl_c_ends_a_listener(tmp_path: Path) -> None:
    text = hook("perf_result", "result, variant", "raise KeyboardInterrupt")
    listeners = Listeners([pack_of(tmp_path, text)])
    with pytest.raises(KeyboardInterrupt):
        listeners.tell(data.run_of())


def test_what_would_garble_a_terminal_is_replaced_in_a_section(tmp_path: Path) -> None:
    text = section("title='\\x1b[2JA', columns=('\\u202en',), rows=[('1\\x07 s',)]")
    (plain,) = Listeners([pack_of(tmp_path, text)]).sections(data.run_of())
    assert (plain.title, plain.columns) == ("\ufffd[2JA", ("\ufffdn",))
    assert plain.rows == (("1\ufffd s",),)
