"""What one card alone says, and the baseline's own revision on that card decides."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arms_data import BEFORE, commit, git, last, page, perf, project_in, verdicts, words
from kept_folder import Fill
from msgspec import structs
from test_runner import Log, request

from perfsuite.judge.noise import entries_of
from perfsuite.model import Stage
from perfsuite.run.against import differing
from perfsuite.run.run import execute, settle
from perfsuite.store.codec import end_lines, read_run
from perfsuite.store.runs import list_runs
from perfsuite.workers.units import Desks

pytest_plugins = ["pytester"]

SEEN, NEVER_SEEN = "fa4e00000000", "0ddc00000000"
A_LITTLE_SLOWER = BEFORE.replace('"two": 100.0', '"two": 104.0')
REASON = "--perf-reason=made up"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    return project_in(pytester, monkeypatch)


@pytest.fixture
def elsewhere(project: pytest.Pytester, fill: Fill) -> pytest.Pytester:
    """A project whose baseline was measured on another card, one commit ago."""

    def accept() -> None:
        perf(project, "--perf-accept", REASON)
        edit(project, "*.json", SEEN, NEVER_SEEN)
        commit(project.path)

    fill(project.path, accept)
    return project


def edit(project: pytest.Pytester, pattern: str, old: str, new: str) -> None:
    files = [*(project.path / "baselines").rglob(pattern)]
    texts = [file.read_text(encoding="utf-8") for file in files]
    assert any(old in text for text in texts)
    for file, text in zip(files, texts, strict=True):
        file.write_text(text.replace(old, new), encoding="utf-8")


def notes(project: pytest.Pytester) -> str:
    return "; ".join(last(project).notes)


def test_a_change_of_the_code_is_found_on_a_card_never_seen(elsewhere: pytest.Pytester) -> None:
    none = "from perfsuite.explain.trace import LIMITS_S\nLIMITS_S['is unclear'] = -1.0\n"
    (elsewhere.path / "conftest.py").write_text(none, encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    result = perf(elsewhere)
    result.stdout.fnmatch_lines(["*1 unclear on a card never seen: measuring * in turns*"])
    run = last(elsewhere)
    assert words(run) == {"one": "same", "two": "slower"}
    slower = verdicts(run)["two"]
    assert slower.confirmation == "A against B"
    assert slower.changes[0].theta == pytest.approx(0.04, abs=0.005)
    assert slower.card == ""
    # What turns decide is not confirmed before, and is traced although the run saw no cause to.
    assert not any("impl=two" in name for name in confirmed(elsewhere))
    assert sum("impl=two" in trace.variant for trace in run.traces) == 1
    assert "A against B" in page(elsewhere)
    # Turns are part of what the run took.
    assert run.wall_s > run.phases_s["turns"] > 0
    # What was measured for it is nobody's last run, and none to resume.
    assert len(list_runs(elsewhere.path / ".perfsuite")) == 2


def confirmed(project: pytest.Pytester) -> set[str]:
    return {r.variant for r in last(project).results if r.stage is Stage.CONFIRM}


@pytest.mark.parametrize("option", ["--perf-time=10m", "--perf-shard=1/1"])
def test_what_turns_may_not_come_to_is_confirmed(elsewhere: pytest.Pytester, option: str) -> None:
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere, option)
    assert any("impl=two" in name for name in confirmed(elsewhere))
    assert words(last(elsewhere))["two"] == "slower"


def test_other_software_has_it_confirmed(elsewhere: pytest.Pytester) -> None:
    edit(elsewhere, "runs/*.json", "fake 1.0", "fake 0.9")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere)
    assert any("impl=two" in name for name in confirmed(elsewhere))


SAYS_SAME = """
from dataclasses import replace
from msgspec import structs
from perfsuite.run import against, run
from perfsuite.model import Word

measured = run.execute

def execute(request, *rest):
    outcome = measured(request, *rest)
    if request.against is None:
        return outcome
    found = outcome.run
    told = [structs.replace(v, word=Word.SAME, in_turns=IN_TURNS, card="") for v in found.verdicts]
    return replace(outcome, run=found.having(verdicts=told))

run.execute = execute
against.of_one_code = lambda run: [(v.variant, "nothing of it") for v in run.verdicts]
"""


@pytest.mark.parametrize(("in_turns", "word"), [(False, "same"), (True, "unclear")])
def test_without_the_other_revision_only_the_baseline_can_say_same(
    elsewhere: pytest.Pytester, word: str, *, in_turns: bool
) -> None:
    text = SAYS_SAME.replace("IN_TURNS", str(in_turns))
    (elsewhere.path / "conftest.py").write_text(text, encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere)
    two = verdicts(last(elsewhere))["two"]
    assert (two.word.value, "nothing of it" in two.reason) == (word, True)


WAIVER = """[[waiver]]
select = "impl=two"
reason = "known"
issue = "https://example.org/issues/7"
up_to = "+8 %"
expires = 2999-12-31
"""


def test_a_waiver_holds_for_what_turns_decide(elsewhere: pytest.Pytester) -> None:
    (elsewhere.path / "baselines" / "exceptions.toml").write_text(WAIVER, encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    assert perf(elsewhere).ret == 0
    slower = verdicts(last(elsewhere))["two"]
    assert (slower.word.value, slower.confirmation) == ("slower", "A against B")
    assert slower.excepted is not None


def test_a_card_that_differs_is_no_change_of_the_code(elsewhere: pytest.Pytester) -> None:
    for value in scaled(elsewhere, 0.96):
        assert value == pytest.approx(96, rel=0.02)
    assert perf(elsewhere).ret == 0
    run = last(elsewhere)
    assert set(words(run).values()) == {"same"}
    two = verdicts(run)["two"]
    assert (two.confirmation, two.card, two.fails) == ("A against B", "", False)
    assert {"same_in_turns", "card_differs"} & {reason.kind for reason in two.reasons}


def scaled(project: pytest.Pytester, factor: float) -> list[float]:
    """Let the baseline's card be faster, and return its times."""
    found = []
    for file in (project.path / "baselines").glob("*/acme.json"):
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        for entry in stored["variants"].values():
            for metric in (entry["metrics"][name] for name in ("time_us", "cycles")):
                metric["center"] *= factor
                metric["values"] = {
                    card: [factor * value for value in values]
                    for card, values in metric["values"].items()
                }
            found.append(entry["metrics"]["time_us"]["center"])
        file.write_text(json.dumps(stored), encoding="utf-8")
    commit(project.path)
    return found


@pytest.mark.parametrize("is_known", [True, False])
def test_other_software_may_be_the_cause_and_is_named(
    elsewhere: pytest.Pytester, *, is_known: bool
) -> None:
    scaled(elsewhere, 0.96)
    for file in (elsewhere.path / "baselines").rglob("runs/*.json"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        environment = {**facts["environment"], "driver": "fake 0.9"} if is_known else {}
        file.write_text(json.dumps({**facts, "environment": environment}), encoding="utf-8")
    commit(elsewhere.path)
    perf(elsewhere)
    assert words(last(elsewhere)) == {"one": "unclear", "two": "unclear"}
    told = "(this card, driver)" if is_known else "of which no facts are stored"
    assert told in verdicts(last(elsewhere))["two"].reason


def test_what_comes_with_the_card_is_no_other_software() -> None:
    before = {"driver": "580", "vbios": "96.00", "nvlinks": "18"}
    assert [*differing(before, {"driver": "580", "vbios": "97.00", "nvlinks": "0"})] == []
    assert [*differing(before, {**before, "driver": "590", "torch": "2.13"})] == ["driver"]


def test_nothing_is_settled_beyond_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = request(tmp_path)
    outcome = execute(asked, Log())
    run = outcome.run
    doubted = tuple(structs.replace(each, card=NEVER_SEEN) for each in run.verdicts)
    outcome = replace(
        outcome,
        run=structs.replace(run, wall_s=60.0).having(verdicts=doubted),
        expected=replace(outcome.expected, entries=entries_of(run)),
    )
    found = settle(outcome, replace(asked, time_s=60.0), Log(), Desks())
    (note,) = found.run.notes[len(run.notes) :]
    assert note.endswith("the baseline's code: --perf-time 1m left no time")


def test_the_baselines_own_commit_has_nothing_to_say(project: pytest.Pytester) -> None:
    perf(project, "--perf-accept", REASON)
    edit(project, "*.json", SEEN, NEVER_SEEN)
    git(project.path, "update-index", "--assume-unchanged", "speed.py")
    (project.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(project)
    assert words(last(project))["two"] == "unclear"
    assert "it is this very commit" in notes(project)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ffffff{}", "does not know"),
        ("{}-dirty", "it is in no commit"),
        ("HEAD", "it names no commit of this repository"),
        ("--upload-pack=x", "it names no commit of this repository"),
        ("\\u001b[2Jffffffffff", "it names no commit of this repository"),
    ],
)
def test_what_is_no_commit_here_is_not_asked_and_fresh_processes_confirm(
    elsewhere: pytest.Pytester, name: str, told: str
) -> None:
    known = git(elsewhere.path, "rev-parse", "--short=12", "HEAD~")
    edit(elsewhere, "runs/*.json", f'"{known}"', f'"{name.format(known)}"')
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    result = perf(elsewhere)
    assert words(last(elsewhere))["two"] == "unclear"
    assert any("impl=two" in each for each in confirmed(elsewhere))
    assert told in notes(elsewhere)
    assert "\x1b" not in result.stdout.str()


def test_a_folder_in_the_way_loses_nothing(elsewhere: pytest.Pytester) -> None:
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    (elsewhere.path / ".perfsuite" / "settled").touch()
    perf(elsewhere)
    assert words(last(elsewhere)) == {"one": "same", "two": "unclear"}
    assert "1 not measured in turns with the baseline's code" in notes(elsewhere)


STOPS = """
from perfsuite.run import run

measured = run.execute

def execute(request, *rest):
    if request.against is not None:
        raise KeyboardInterrupt
    return measured(request, *rest)

run.execute = execute
"""


def test_ctrl_c_leaves_the_rest_unclear_and_ends_the_session(elsewhere: pytest.Pytester) -> None:
    (elsewhere.path / "conftest.py").write_text(STOPS, encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    result = perf(elsewhere)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert words(last(elsewhere)) == {"one": "same", "two": "unclear"}
    assert "interrupted while" in notes(elsewhere)


def test_more_than_can_be_asked_is_told(elsewhere: pytest.Pytester) -> None:
    more = "from perfsuite.run import against\nagainst.MOST = 1\n"
    (elsewhere.path / "conftest.py").write_text(more, encoding="utf-8")
    scaled(elsewhere, 0.96)
    perf(elsewhere)
    told = [" in turns " in each.reason for each in last(elsewhere).verdicts]
    assert sorted(told) == [False, True]
    assert "1 not measured in turns with the baseline's code: 1 at most are" in notes(elsewhere)


def test_a_run_that_was_judged_again_reads_as_judged_last(elsewhere: pytest.Pytester) -> None:
    run = last(elsewhere)
    path = elsewhere.path / ".perfsuite" / "runs" / f"{run.id}.jsonl"
    later = structs.replace(run, notes=("judged again",)).having(verdicts=run.verdicts[:1])
    assert later != run
    assert read_run(path.read_bytes() + end_lines(later), where="made up") == later
