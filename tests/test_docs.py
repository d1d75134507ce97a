"""The docs are true: commands run, options exist, the site builds without a warning."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from docs_data import (
    PAGES,
    ROOT,
    Block,
    blocks_of,
    label,
    mentioned,
    script_of,
    unknown_in,
    with_names,
)

from perfsuite.cli import main
from perfsuite.model import ClaimWord, Word
from perfsuite.report.view import MARKS

CI = os.environ.get("CI") == "true"
SITE = ROOT / "docs" / "site"
sys.path.insert(0, str(SITE))

REASONS = {
    "installs from a network": 15,
    "needs a GPU": 8,
    "needs ncu": 3,
    "needs another tool": 8,
    "it downloads Triton": 2,
}
# On the fake device, of the one pack that a page makes, in two processes of each variant.
OPTIONS = "-p perfsuite.plugin --perf-device=fake --perf-processes=2 --perf-packs=acme"
NOTHING = Block("", "", 0)
README = ROOT / "README.md"
# What the README names is run behind the commands of this page, which leaves a pack and a run.
BEFORE_README = "docs/how-to/read-a-report.md"
Run = Callable[..., None]
# Their commands are held to the parsers only: one shows a made-up run, and tests/test_cli.py runs a
# variant alone where that needs no torch.
PARSED = {"docs/baselines.md", "docs/how-to/profile-a-variant.md"}
WITH_COMMANDS = [
    path
    for path in PAGES
    if label(path) not in PARSED
    and any(b.commands() and "not run" not in b.said for b in blocks_of(path))
]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with the commands that a reader has installed."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in {"pytest": "pytest", "perfsuite": "perfsuite.cli"}.items():
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        tool.chmod(0o755)
    for name in ("tmp", "home", "work"):
        (tmp_path / name).mkdir()
    settings = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{tmp_path / 'work' / 'acme-perf'}",  # as if it were installed
        "PYTEST_ADDOPTS": OPTIONS,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TMPDIR": str(tmp_path / "tmp"),
        "HOME": str(tmp_path / "home"),
        **{
            f"GIT_{who}_{what}": "reader"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "work"


@pytest.fixture
def run(shell: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """What runs a command where the one before it ended, one of ours in this process."""

    def here(words: list[str]) -> tuple[int, str]:
        state = shell.parent / "state"
        place = state.read_text("utf-8").splitlines()[-1] if state.exists() else f"cd {shell}"
        monkeypatch.chdir(place.removeprefix("cd "))
        monkeypatch.setattr(sys, "argv", words)
        capfd.readouterr()
        ours = {"pytest": lambda: sys.exit(pytest.main(words[1:])), "perfsuite": main}
        with pytest.raises(SystemExit) as ended:
            ours[words[0]]()
        return int(ended.value.code or 0), "".join(capfd.readouterr())

    def apart(command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{script_of(command, shell)}"],
            cwd=shell,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=100,
        )
        return done.returncode, done.stdout

    def run(command: str, block: Block = NOTHING) -> None:
        command = with_names(command, shell)
        lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words = shlex.split(command)
        needs_shell = list(lexer) != words or words[0] not in {"pytest", "perfsuite"}
        status, told = apart(command) if needs_shell else here(words)
        said = f"line {block.line}: {command}\n{told}"
        assert status == int(block.said.get("exit", 0)), said
        assert block.said.get("shows", "") in told, said

    return run


@pytest.mark.parametrize("path", WITH_COMMANDS, ids=label)
def test_the_commands_of_a_page_run(path: Path, shell: Path, run: Run) -> None:
    for block in blocks_of(path):
        if "file" in block.said:
            (folder(shell) / block.said["file"]).write_text(block.text, encoding="utf-8")
        if "not run" in block.said:
            continue
        commands = block.commands()
        for command in commands:
            run(command, block if command == commands[-1] else NOTHING)
        if "played" in block.said:
            twin = ROOT / "tests" / "packs" / f"played_{Path(block.said['played']).name}"
            shutil.copy(twin, folder(shell) / block.said["played"])
    if label(path) != BEFORE_README:
        return
    run("pytest --perf --perf-packs=acme-perf")
    for command in mentioned(README)[1:]:
        if command.startswith(("perfsuite report", "perfsuite history", "perfsuite doctor")):
            run(command)


def folder(shell: Path) -> Path:
    """Return the folder that a pack was made in."""
    return next(shell.glob("**/acme-perf"), shell / "acme-perf").parent


def test_what_is_not_run_says_why_and_stays_bounded() -> None:
    found: dict[str, int] = {}
    for block in (block for path in PAGES for block in blocks_of(path)):
        if reason := block.said.get("not run"):
            found[reason] = found.get(reason, 0) + len(block.commands())
    assert {why: count for why, count in found.items() if count > REASONS.get(why, 0)} == {}


@pytest.mark.parametrize("path", PAGES, ids=label)
def test_a_page_names_what_exists_and_shows_it_well_formed(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert {command: found for command in mentioned(path) if (found := unknown_in(command))} == {}
    read = {"python": ast.parse, "yaml": yaml.safe_load, "yml": yaml.safe_load, "json": json.loads}
    for block in blocks_of(path):
        if block.language in read:
            read[block.language](block.text)
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    # What is made of the code is not repeated.
    assert re.findall(r"^\| `--perf[^|]*`? \|", text, re.MULTILINE) == []
    # Code in the first of two columns never breaks: 24 letters are half of a telephone's width.
    rows = re.findall(r"^\|([^|\n]*)\|[^|\n]*\|$", text, re.MULTILINE)
    words = [word for first in rows for word in re.findall(r"`([^`]+)`", first)]
    assert [word for word in words if len(word) > 24] == []


def _sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page with their lines: no code, no tables, no headings, no links."""
    text = blank(path.read_text("utf-8"), r"^( *)```.*?^\1```|<!--.*?-->|^\|.*?$|^ *#.*?$")
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "CODE", text))
    start, ends = 0, r"(?<=[.!?])(?=[*)\"]*\s)|\n\s*\n|\n *(?:[-*]|\d+\.) "
    for end in [*(each.end() for each in re.finditer(ends, text)), len(text)]:
        lines = text.count("\n", 0, end - len(text[start:end].lstrip()))
        yield lines + 1, " ".join(text[start:end].split())
        start = end


def blank(text: str, pattern: str) -> str:
    """Leave the line ends alone of what matches."""
    return re.sub(pattern, lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=label)
def test_a_sentence_has_at_most_twenty_words(path: Path) -> None:
    if path.stem in {"notebook", "proof"}:
        pytest.skip("no page for users")
    found = [
        f"{label(path)}:{line}: {len(words)} words: {sentence}"
        for line, sentence in _sentences(path)
        if len(words := re.findall(r"[^\s]*\w[^\s]*", sentence)) > 20
    ]
    assert found == [], "\n".join(found)


def test_the_tutorial_s_code_is_what_new_pack_writes() -> None:
    folder = ROOT / "perfsuite" / "packs" / "new_pack" / "package"
    written = (folder / "softmax.py.txt").read_text("utf-8")
    blocks = blocks_of(ROOT / "docs" / "tutorial.md")
    (shown,) = [block.text for block in blocks if block.language == "python"]
    assert shown in written
    assert written.count("powers = shifted.exp()") == 1  # what the tutorial's sed replaces


@pytest.mark.skipif(not find_spec("material") and not CI, reason="mkdocs-material is not installed")
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    site = ["-f", str(SITE / "mkdocs.yml"), "--site-dir", str(tmp_path)]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *site]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text("utf-8") for path in tmp_path.rglob("*.html")]
    asked = r"<(?:script|img|iframe)[^>]*\ssrc=\"?https?:[^\s>]*|<link[^>]*stylesheet[^>]*https?:"
    assert {found for page in pages for found in re.findall(asked, page)} == set()


def _named(page: str, row: str) -> set[str]:
    """Return what stands as code in the first cells of a table, or in the one row that is named."""
    cells = re.findall(row, (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", " ".join(cells)))


def test_every_word_is_in_the_lists_of_words() -> None:
    verdicts, claims = {word.value for word in Word}, {word.value for word in ClaimWord}
    of_variants = {*verdicts, *(MARKS.keys() - claims)}
    assert _named("verdict.md", r"^\| `word` \| (the verdict.*)") == of_variants
    failed = {word for word, mark in MARKS.items() if mark.tone in {"fail", "unclear"}} - claims
    assert _named("how-to/read-a-report.md", r"^\| (`[^|]*) \|") == {*verdicts, *failed}
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    (row,) = re.findall(r"^\| verdict \| (.*) \|$", index, re.MULTILINE)
    assert set(re.split(", | or ", row)) == verdicts


def test_every_environment_variable_that_the_code_names_is_explained() -> None:
    pages = pytest.importorskip("reference_pages")
    assert pages.variables_in(ROOT / "perfsuite") == set(pages.VARIABLES)


def test_text_of_a_pack_is_text_in_the_reference() -> None:
    from markup import documented, escaped, table

    markdown = pytest.importorskip("markdown")
    nasty = "<script>x</script> [a](javascript:b) *c* | `<b>` ![d](e) &lt; # f"
    text = table(("a", "b"), [(escaped(nasty), escaped("*"))]) + documented(nasty)
    page = markdown.markdown(text, extensions=["tables"])
    assert set(re.findall(r"<(\w+)", page)) <= set(
        re.findall(r"\w+", "table thead tbody tr th td p code")
    )
    assert page.count("<td>") == 2


@pytest.mark.parametrize("name", ["run", "baseline"])
def test_stored_files_hold_to_their_schemas(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = pytest.importorskip("schemas")
    if name == "run":
        validator = jsonschema.Draft202012Validator(schemas.run_schema())
        lines = (ROOT / "reports/example/run.jsonl").read_text("utf-8").splitlines()
        stored = [json.loads(line) for line in lines]
        assert {each["kind"] for each in stored} >= {"header", "plan", "result", "judged", "end"}
    else:
        validator = jsonschema.Draft202012Validator(schemas.baseline_schema())
        stored = [json.loads(p.read_text("utf-8")) for p in ROOT.glob("baselines/*/memory.json")]
    assert stored
    for each in stored:
        validator.validate(each)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**stored[0], "kind": "header", "schema": "another"})
