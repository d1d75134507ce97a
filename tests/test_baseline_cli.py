"""The life of a baseline on the command line: accept, propose, diff, lint, show."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from against_data import commit, git
from msgspec.structs import replace
from store_data import FACTS, finished, kept, variant
from test_cli import PACK, STEADY, A, B, Command, project
from test_propose import night, nights, root

from perfsuite.boundary import UsageError
from perfsuite.model import Pack, Run, Tier, Trace, TracedKernel
from perfsuite.nightly.propose import problems_in
from perfsuite.report.terminal import plain
from perfsuite.run.accept import accept
from perfsuite.run.config import OTHERS, paths_of, setting
from perfsuite.store.runs import RunFile

__all__ = ["project", "root"]  # fixtures

TODAY = date(2026, 11, 22)
COPY = variant("copy", 1024)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_accept_lists_what_gets_slower(perfsuite: Command) -> None:
    perfsuite("baseline", "accept", A, "--reason", "first")
    code, said = perfsuite("baseline", "accept", B, "--reason", "the price of a fix")
    assert (code, "SLOWER: cycles" in said) == (0, False)
    assert "SLOWER: time_us +10.0 % (threshold 0.25 %)" in said
    assert "1 of them slower than before" in said


def test_variants_with_one_reason_are_one_row(perfsuite: Command, project: Path) -> None:
    run = finished({f"v{n}": 100.0 for n in range(6)}, run_id="20261127-103000-77ac")
    ended = [replace(each, status=type(each.status)("crashed")) for each in run.results[1:]]
    kept(project / ".perfsuite", run.having(results=[run.results[0], *ended]))
    _, said = perfsuite("baseline", "accept", run.id, "--reason", "first")
    assert "memory.v1[n=1024], memory.v2[n=1024], memory.v3[n=1024], 2 more" in said
    assert said.count("crashed") == 1


def test_reset_takes_the_newest_run_that_ended_or_the_one_named(
    perfsuite: Command, project: Path
) -> None:
    RunFile.create(project / ".perfsuite", night({"copy": 100.0}, 30)).close()
    for words, run, count in (((), B, "2 variants"), ((A, "--select", "memory"), A, "1 variant")):
        code, said = perfsuite("baseline", "reset", *words)
        assert (code, said) == (0, f"run {run} is the reference of {count} from now on\n")
    kept = json.loads((project / ".perfsuite" / "reference.json").read_text("utf-8"))
    assert [*kept["units"].values()] == [{"compute.softmax[n=1024]": B, COPY.id: A}]
    code, said = perfsuite("baseline", "reset", "nowhere")
    assert (code, "there is no run 'nowhere'" in said) == (2, True)


@pytest.fixture
def dated(project: Path) -> Path:
    """A project with an accepted night and five of another level, the last traced."""
    accept(traced(night({"copy": 100.0}, 1), "old_copy", 100), project / "baselines",
           reason="first", by="Ann")  # fmt: skip
    for path in (project / ".perfsuite" / "runs").glob("*"):
        path.unlink()
    runs = nights({"copy": 99.0, "add": 7.0}, *range(2, 7))
    runs[-1] = traced(runs[-1], "new_copy", 99)
    facts = replace(FACTS, environment={**FACTS.environment, "driver": "590.1"})
    for run in runs:
        kept(project / ".perfsuite", replace(run, commit="b" * 40, facts=facts))
    return project


def traced(run: Run, kernel: str, time_us: float) -> Run:
    kernels = (TracedKernel(name=kernel, count=1, duration_us=time_us),)
    return run.having(traces=(Trace(variant=COPY.id, kernels=kernels),))


def test_propose_writes_the_tree_and_a_page(perfsuite: Command, dated: Path) -> None:
    git(dated, "init", "--quiet")
    commit(dated)
    code, said = perfsuite("baseline", "propose", "--output", "page.md")
    assert code == 0, said
    assert "wrote page.md" in said
    page = (dated / "page.md").read_text("utf-8")
    assert page.startswith("# Baseline proposal: 2 entries\n\n1 faster, 1 new.")
    row = next(line for line in page.splitlines() if line.startswith("| memory.copy"))
    assert "time\\_us" in row
    assert "| 5 | 15 | 1 | faster: 5 nights |" in row
    assert "from 20261102-020000, 20261103" in page
    assert "commits 00000000" in page
    for cause in ("new\\_copy", "driver 580.159 → 590.1"):
        assert cause in page
    changed = git(dated, "status", "--porcelain", "--", "baselines").splitlines()
    assert any("memory.json" in line for line in changed)
    assert git(dated, "rev-list", "--count", "HEAD") == "1"  # nothing is committed


def test_propose_passes_a_damaged_run_file_by(perfsuite: Command, dated: Path) -> None:
    (dated / ".perfsuite" / "runs" / "20261107-020000.jsonl").write_text("{", "utf-8")
    code, said = perfsuite("baseline", "propose")
    assert code == 0
    assert "not read: " in said
    assert "faster: 5 nights" in said


def test_propose_tells_of_older_runs_that_it_does_not_read(
    perfsuite: Command, dated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "older by their clocks" not in perfsuite("baseline", "propose")[1]
    monkeypatch.setattr(
        "perfsuite.nightly.propose.MOST_RUNS", len(list(dated.glob("**/*.jsonl"))) - 2
    )
    assert "not read: 2 runs that are older by their clocks" in perfsuite("baseline", "propose")[1]


def test_diff_says_what_changed_and_why(perfsuite: Command, dated: Path) -> None:
    git(dated, "init", "--quiet")
    commit(dated)
    assert "differences: 0" in perfsuite("baseline", "diff")[1]
    perfsuite("baseline", "propose", "--output", "page.md")
    assert "differences: 2" in perfsuite("baseline", "diff")[1]
    table = perfsuite("baseline", "diff", "HEAD", "baselines", "--markdown")[1].splitlines()
    assert table[1].startswith("| --- |")
    for row, told in zip(table[2:4], (("added",), ("first", "-1.0")), strict=True):
        assert all(each in plain(row) for each in told), row
    assert "removed" in perfsuite("baseline", "diff", "baselines", "HEAD")[1]


def test_diff_follows_a_link_to_the_baselines_own_repository(
    perfsuite: Command, dated: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("own")
    (dated / "baselines").rename(own / "baselines")
    (dated / "baselines").symlink_to(own / "baselines")
    for folder in (dated, own):
        git(folder, "init", "--quiet")
    commit(own)
    assert "differences: 0" in perfsuite("baseline", "diff")[1]


def test_lint_exits_1_with_a_line_for_each_problem(perfsuite: Command, dated: Path) -> None:
    stored = dated / "baselines" / "nvidia-h200" / "memory.json"
    code, said = perfsuite("baseline", "lint", "--older-than", "1000000")
    assert code == 1
    assert (
        "pack 'memory' is not installed, or not in --packs: its 1 entries cannot be checked" in said
    )
    stored.unlink()
    code, said = perfsuite("baseline", "lint")
    assert "no entry comes from run '20261101-020000'" in said
    (dated / "baselines" / "nvidia-h200" / "runs" / "20261101-020000.json").unlink()
    assert perfsuite("baseline", "lint")[0] == 0
    assert STEADY.is_file()
    assert perfsuite("baseline", "lint", *PACK)[0] == 0


MEMORY = Pack(name="memory", origin="", variants=(COPY, variant("copy", 2048)))


def problems(root: Path, *packs: Pack, today: date = TODAY, tier: Tier | None = None) -> list[str]:
    found = problems_in(root, packs or (MEMORY,), today=today, older_than=10_000, tier=tier)
    return [f"{e.where}: {e.what}; {e.remedy}".replace(f"{root}/", "") for e in found]


def test_stale_entries_are_named(root: Path) -> None:
    (line,) = problems(root, replace(MEMORY, variants=()))
    assert line.startswith(f"nvidia-h200/memory.json: {COPY.id} is stale: no such variant is left;")
    moved = replace(COPY, case=replace(COPY.case, version=3))
    (line,) = problems(root, replace(MEMORY, variants=(moved,)))
    assert "is of version 1 of its case, now 3" in line
    assert problems(root, replace(MEMORY, variants=(), canaries={"cuda": (COPY,)})) == []


def test_missing_variants_of_a_tier_are_named_where_siblings_have_entries(root: Path) -> None:
    more = replace(MEMORY, variants=(COPY, variant("copy", 2048), variant("copy", 4096)))
    (line,) = problems(root, more, tier=Tier.SMOKE)
    assert "memory.copy[n=2048] (and 1 more) of tier smoke has no entry" in line
    for other in (variant("add", 2048), replace(variant("copy", 2048), tier=Tier.FULL)):
        assert not problems(root, replace(MEMORY, variants=(COPY, other)), tier=Tier.NIGHTLY)


def test_old_entries_are_named(root: Path) -> None:
    (line,) = [*map(str, problems_in(root, (MEMORY,), today=date(2126, 1, 1)))]
    assert "days ago, limit 180" in line
    edit(root / "nvidia-h200" / "memory.json", '"when": "2', '"when": "x2')
    (line,) = problems(root)
    assert "no moment" in line


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("memory.json", '"center": ', '"center": -', "a value of a process is not above 0"),
        ("sku.json", '"nvidia-h200"', '"nvidia-h100"', "key 'slug' is 'nvidia-h100'"),
        ("runs/20261101-020000.json", '"run":', '"ran":', "unknown field `ran`"),
    ],
)
def test_damaged_files_are_problems(root: Path, name: str, old: str, new: str, said: str) -> None:
    edit(root / "nvidia-h200" / name, old, new)
    (line,) = problems(root)
    assert said in line
    assert name in line


def test_run_files_are_those_that_entries_come_from(root: Path) -> None:
    runs = root / "nvidia-h200" / "runs"
    (runs / "20261101-020000.json").rename(runs / "20261009-020000.json")
    missing, unused = problems(root)
    assert "come from run '20261101-020000', of which no file is kept: 1" in missing
    assert "no entry comes from run '20261009-020000'; remove the file" in unused


def test_show_says_where_an_impossible_run_id_stands(perfsuite: Command, dated: Path) -> None:
    file = dated / "baselines" / "nvidia-h200" / "memory.json"
    edit(file, '"2026', '"../2026')
    for word in ((), ("nvidia-h200",), ("nvidia-h200", COPY.id)):
        code, said = perfsuite("baseline", "show", *word)
        assert code == 2
        assert "run id '../20261101-020000' cannot be a file name" in said
        assert f"{file}, variant {COPY.id!r}" in said


ODD = "\x1b[2J\x1b]0;x\x07\x9b\u202e"


def test_nothing_that_a_terminal_obeys_is_shown(perfsuite: Command, dated: Path) -> None:
    folder = dated / "baselines" / "nvidia-h200"
    for name in ("sku.json", "memory.json"):
        text = (folder / name).read_text()
        for word in ("NVIDIA H200", "[n=1024]", '"old_copy', '"first', '"Ann', '"us'):
            text = text.replace(word, word + json.dumps(ODD)[1:-1])
        (folder / name).write_text(text)
    git(dated, "init", "-q")
    told = []
    for words in (
        ("show",),
        ("show", "nvidia-h200"),
        ("show", "nvidia-h200", f"{COPY.id}{ODD}"),
        ("show", ODD),
        ("diff", str(dated), "baselines"),
        ("diff", "--markdown", str(dated), "baselines"),
        ("lint",),
    ):
        _, said = perfsuite("baseline", *words)
        told.append(said)
    # Of a pack that is not installed lint names no variant.
    assert all("?" in said or "\\x1b" in said for said in told[:-1]), told
    assert not [said for said in told if any(char in said for char in "\x1b\x07\x9b\u202e")]


RULE = "[[quarantine]]\nselect = '{}'\nreason = 'flaky'\nexpires = {}\n"


def test_exceptions_that_expired_or_match_nothing_are_problems(root: Path) -> None:
    path = root / "exceptions.toml"
    path.write_text(RULE.format("memory.*", "2026-11-21") + RULE.format("n=7", "2026-12-01"))
    expired, idle = problems(root)
    assert expired == (
        "exceptions.toml, line 1: the quarantine of 'memory.*' expired on 2026-11-21; "
        "repair the case and remove it, or prolong it"
    )
    assert "the quarantine of 'n=7' matches nothing; correct or remove it" in idle
    idle = problems(root, MEMORY, Pack(name="other", origin="", error="oh"))[1]
    assert "matches nothing of the packs that can be listed (not other)" in idle
    path.write_text("[[waiver]\n")
    (line,) = problems(root)
    assert "not valid TOML" in line


def test_show_tells_of_one_entry_and_of_exceptions(perfsuite: Command, dated: Path) -> None:
    (dated / "baselines" / "exceptions.toml").write_text(RULE.format("memory.*", "2026-01-01"))
    said = perfsuite("baseline", "show", "nvidia-h200")[1]
    assert "quarantined until 2026-01-01: flaky (expired: it acts no more)" in said
    said = perfsuite("baseline", "show", "nvidia-h200", COPY.id)[1]
    for told in ("time_us", "exact", "3f2a91c04d7e", "by Ann: first", "driver 580.159", "ecc on"):
        assert told in said
    assert "'x' of nvidia-h200" in perfsuite("baseline", "show", "nvidia-h200", "x")[1]


def test_commands_find_the_folders_that_the_projects_ini_names(
    perfsuite: Command, project: Path
) -> None:
    text = "[tool.pytest.ini_options]\nperf_baselines = ['perf/accepted', 'perf/older']\n"
    (project / "pyproject.toml").write_text(text)
    accept(night({"scan": 100.0}, 1), project / "perf" / "older", reason="then", by="Ann")
    assert perfsuite("baseline", "accept", A, "--reason", "first")[0] == 0
    assert not (project / "baselines").exists()
    folders = perfsuite("baseline", "folders")[1].splitlines()
    assert folders == [str(project / "perf" / name) for name in ("accepted", "older")]
    said = perfsuite("baseline", "show", "nvidia-h200")[1]
    assert all(f"memory.{case}[n=1024]" in said for case in ("copy", "scan"))
    assert "perf/accepted, " in perfsuite("baseline", "lint")[1]
    assert "memory.scan[n=1024]" not in perfsuite("baseline", "show", "nvidia-h200",
                                                  "--baselines", "perf/accepted")[1]  # fmt: skip
    code, said = perfsuite("baseline", "show", "nvidia-h100")
    assert (code, str(project / "perf" / "older") in said) == (2, True)


def test_commands_refuse_an_ini_that_names_no_folder(perfsuite: Command, project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.pytest]\nperf_baselines = []\n")
    code, said = perfsuite("baseline", "show")
    assert (code, "the project's perf_baselines names no folder" in said) == (2, True)


# What pyproject.toml says is what pytest itself would read there.


@pytest.mark.parametrize("table", ["tool.pytest.ini_options", "tool.pytest"])
@pytest.mark.parametrize("paths", ['["one", "two words"]', "\"one 'two words'\""])
def test_settings_are_read_from_pyproject(tmp_path: Path, table: str, paths: str) -> None:
    assert setting(tmp_path, "perf_history", "none") == "none"
    text = f'[{table}]\nperf_baselines = {paths}\nperf_history = "sqlite:///%(x)s"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert setting(tmp_path, "perf_history", "") == "sqlite:///%(x)s"
    assert paths_of(tmp_path, "perf_baselines", ["x"]) == (tmp_path / "one", tmp_path / "two words")
    assert paths_of(tmp_path, "perf_other", ["x"]) == (tmp_path / "x",)


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_in_another_file_of_pytest_s_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[pytest]\n# perf_history\nother = perf_history\n", "utf-8")
    assert setting(tmp_path, "perf_history", "none") == "none"
    (tmp_path / name).write_text("[pytest]\nperf_history = x\n", "utf-8")
    with pytest.raises(UsageError, match="do not read it") as caught:
        setting(tmp_path, "perf_history", "")
    assert name in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[oh", encoding="utf-8")
    with pytest.raises(UsageError, match="not valid TOML") as caught:
        setting(tmp_path, "perf_history", "")
    assert "pyproject.toml" in str(caught.value)
