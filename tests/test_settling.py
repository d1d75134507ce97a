"""What one card alone says, and the baseline's own revision on that card decides."""

from __future__ import annotations

import json
import tempfile
import textwrap
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
from perfsuite.run.run import execute
from perfsuite.run.settling import settle
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
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    result = perf(elsewhere)
    result.stdout.fnmatch_lines(["*1 unclear on a card never seen: measuring * in turns*"])
    run = last(elsewhere)
    assert words(run) == {"one": "same", "two": "slower"}
    slower = verdicts(run)["two"]
    assert slower.confirmation == "A against B"
    assert slower.changes[0].theta == pytest.approx(0.04, abs=0.005)
    assert slower.card == ""
    text = page(elsewhere)
    assert "A against B" in text
    # Turns are part of what the run took.
    assert run.wall_s > run.phases_s["turns"] > 0
    # What was measured for it is nobody's last run, and none to resume.
    assert len(list_runs(elsewhere.path / ".perfsuite")) == 2


def confirmed(project: pytest.Pytester) -> set[str]:
    return {r.variant for r in last(project).results if r.stage is Stage.CONFIRM}


ONE_SERVER_EACH = """
from perfsuite.panel import slot

launched = []

def launch(self, real=slot.Slot._launch):
    launched.append(self.index)
    real(self)

slot.Slot._launch = launch

def pytest_unconfigure():
    with open("launched.txt", "w", encoding="utf-8") as out:
        out.write(" ".join(map(str, sorted(launched))))
"""


def test_turns_are_measured_by_the_servers_of_the_run_that_asks(
    elsewhere: pytest.Pytester,
) -> None:
    (elsewhere.path / "conftest.py").write_text(ONE_SERVER_EACH, encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere)
    two = verdicts(last(elsewhere))["two"]
    assert (two.word.value, two.confirmation) == ("slower", "A against B")
    launched = (elsewhere.path / "launched.txt").read_text(encoding="utf-8").split()
    assert launched == ["0", "1", "2"]


def test_what_turns_decide_is_not_measured_again_before(elsewhere: pytest.Pytester) -> None:
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere)
    assert words(last(elsewhere))["two"] == "slower"
    assert not any("impl=two" in name for name in confirmed(elsewhere))


def test_what_turns_find_slower_is_traced_although_the_run_saw_no_cause_to(
    elsewhere: pytest.Pytester,
) -> None:
    none = "from perfsuite.explain.trace import LIMITS_S\nLIMITS_S['is unclear'] = -1.0\n"
    (elsewhere.path / "conftest.py").write_text(none, encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere)
    run = last(elsewhere)
    assert words(run)["two"] == "slower"
    assert sum("impl=two" in trace.variant for trace in run.traces) == 1


def test_what_turns_leave_unclear_is_measured_again_only_if_it_seems_to_have_moved(
    elsewhere: pytest.Pytester,
) -> None:
    told = """
        from perfsuite import runner
        wants = runner.wants_confirmation
        def told(verdict, *, is_brief):
            with open("asked.txt", "a") as file:
                file.write(f"{is_brief} ")
            return wants(verdict, is_brief=is_brief)
        runner.wants_confirmation = told
    """
    (elsewhere.path / "conftest.py").write_text(textwrap.dedent(told), encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere)
    asked = (elsewhere.path / "asked.txt").read_text(encoding="utf-8").split()
    assert asked == sorted(asked)
    assert {"False", "True"} == set(asked)


def test_what_no_turns_decide_is_confirmed(elsewhere: pytest.Pytester) -> None:
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    edit(elsewhere, "runs/*.json", '"commit": "', '"commit": "ffffff')
    perf(elsewhere)
    assert words(last(elsewhere))["two"] == "unclear"
    assert any("impl=two" in name for name in confirmed(elsewhere))


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


def test_a_checkout_that_does_not_run_leaves_it_unclear(
    elsewhere: pytest.Pytester,
) -> None:
    # The baseline's commit imports what no checkout has: a module that was built.
    old = git(elsewhere.path, "rev-parse", "--short=12", "HEAD~")
    scaled(elsewhere, 0.96)
    pack = elsewhere.path / "acme.py"
    (elsewhere.path / ".gitignore").write_text("built.py\n.perfsuite/\nreports/\ntmp/\n")
    (elsewhere.path / "built.py").write_text("")
    pack.write_text("import built\n" + pack.read_text(encoding="utf-8"), encoding="utf-8")
    new = commit(elsewhere.path)
    edit(elsewhere, "runs/*.json", old, new[:12])
    commit(elsewhere.path)
    perf(elsewhere)
    two = verdicts(last(elsewhere))["two"]
    assert two.word.value == "unclear"
    assert "in turns with" in two.reason


# What was measured in turns says *same*, of what SOURCE names; nothing of it is the repository's.
SAYS_SAME = """
from dataclasses import replace
from perfsuite import settling
from perfsuite.model import Word

measured = settling.execute

def execute(request, *rest):
    outcome = measured(request, *rest)
    if request.against is None:
        return outcome
    run = outcome.run
    told = [replace(v, word=Word.SAME, source=SOURCE, card="") for v in run.verdicts]
    return replace(outcome, run=replace(run, verdicts=tuple(told)))

settling.execute = execute
settling.of_one_code = lambda run: [(v.variant, "nothing of it") for v in run.verdicts]
"""


@pytest.mark.parametrize(
    ("source", "word"), [("'baseline fake'", "same"), ("str(run.against)", "unclear")]
)
def test_without_the_other_revision_only_the_baseline_can_say_same(
    elsewhere: pytest.Pytester, source: str, word: str
) -> None:
    text = SAYS_SAME.replace("SOURCE", source)
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
    # How much was found, and the gate that it lies inside.
    told, _, rest = two.reason.partition(", which is what differs; in turns time ")
    assert told.startswith("revision ")
    assert told.endswith(" is the same in turns on this card")
    assert "inside the gate of 1 %); time +4." in rest


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


def test_other_software_may_be_the_cause_and_is_named(elsewhere: pytest.Pytester) -> None:
    scaled(elsewhere, 0.96)
    edit(elsewhere, "runs/*.json", "fake 1.0", "fake 0.9")
    perf(elsewhere)
    assert words(last(elsewhere)) == {"one": "unclear", "two": "unclear"}
    reason = verdicts(last(elsewhere))["two"].reason
    assert "what it runs on (this card, driver)" in reason


def test_what_comes_with_the_card_is_no_other_software() -> None:
    before = {"driver": "580", "vbios": "96.00", "nvlinks": "18"}
    assert [*differing(before, {"driver": "580", "vbios": "97.00", "nvlinks": "0"})] == []
    assert [*differing(before, {**before, "driver": "590", "torch": "2.13"})] == ["driver"]


def test_software_of_which_nothing_is_known_may_be_the_cause(elsewhere: pytest.Pytester) -> None:
    scaled(elsewhere, 0.96)
    for file in (elsewhere.path / "baselines").rglob("runs/*.json"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**facts, "environment": {}}), encoding="utf-8")
    commit(elsewhere.path)
    perf(elsewhere)
    assert words(last(elsewhere)) == {"one": "unclear", "two": "unclear"}
    assert "of which no facts are stored" in verdicts(last(elsewhere))["two"].reason


def test_nothing_is_settled_beyond_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = request(tmp_path)
    outcome = execute(asked, Log())
    run = outcome.run
    doubted = tuple(structs.replace(each, card=NEVER_SEEN) for each in run.verdicts)
    outcome = replace(
        outcome, run=structs.replace(run, verdicts=doubted, wall_s=60.0), baselines=entries_of(run)
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


def test_code_that_is_in_no_commit_cannot_be_asked(project: pytest.Pytester) -> None:
    (project.path / "speed.py").write_text(BEFORE + "# not committed\n", encoding="utf-8")
    perf(project, "--perf-accept", REASON)
    edit(project, "*.json", SEEN, NEVER_SEEN)
    (project.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(project)
    assert words(last(project))["two"] == "unclear"
    assert "it is in no commit" in notes(project)


def test_a_commit_that_is_gone_is_told(elsewhere: pytest.Pytester) -> None:
    edit(elsewhere, "runs/*.json", '"commit": "', '"commit": "ffffff')
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    perf(elsewhere)
    assert words(last(elsewhere))["two"] == "unclear"
    assert "does not know" in notes(elsewhere)


@pytest.mark.parametrize("name", ["HEAD", "v1.0", "--upload-pack=x", "\\u001b[2Jffffffffff"])
def test_what_is_no_commits_number_is_not_asked(elsewhere: pytest.Pytester, name: str) -> None:
    edit(
        elsewhere,
        "runs/*.json",
        f'"{git(elsewhere.path, "rev-parse", "--short=12", "HEAD~")}"',
        f'"{name}"',
    )
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    result = perf(elsewhere)
    assert words(last(elsewhere))["two"] == "unclear"
    assert "it names no commit of this repository" in notes(elsewhere)
    assert "\x1b" not in result.stdout.str()


def test_a_folder_in_the_way_loses_nothing(elsewhere: pytest.Pytester) -> None:
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    (elsewhere.path / ".perfsuite" / "settled").touch()
    perf(elsewhere)
    assert words(last(elsewhere)) == {"one": "same", "two": "unclear"}
    assert "1 not measured in turns with the baseline's code" in notes(elsewhere)


STOPS = """
from perfsuite import settling

measured = settling.execute

def execute(request, *rest):
    if request.against is not None:
        raise KeyboardInterrupt
    return measured(request, *rest)

settling.execute = execute
"""


def test_ctrl_c_leaves_the_rest_unclear_and_ends_the_session(elsewhere: pytest.Pytester) -> None:
    (elsewhere.path / "conftest.py").write_text(STOPS, encoding="utf-8")
    (elsewhere.path / "speed.py").write_text(A_LITTLE_SLOWER, encoding="utf-8")
    result = perf(elsewhere)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert words(last(elsewhere)) == {"one": "same", "two": "unclear"}
    assert "interrupted while" in notes(elsewhere)


def test_more_than_can_be_asked_is_told(elsewhere: pytest.Pytester) -> None:
    more = "from perfsuite import turns\nturns.MOST = 1\n"
    (elsewhere.path / "conftest.py").write_text(more, encoding="utf-8")
    scaled(elsewhere, 0.96)
    perf(elsewhere)
    told = [" in turns " in each.reason for each in last(elsewhere).verdicts]
    assert sorted(told) == [False, True]
    assert "1 not measured in turns with the baseline's code: 1 at most are" in notes(elsewhere)


def test_a_run_that_was_judged_again_reads_as_judged_last(elsewhere: pytest.Pytester) -> None:
    run = last(elsewhere)
    path = elsewhere.path / ".perfsuite" / "runs" / f"{run.id}.jsonl"
    later = structs.replace(run, verdicts=run.verdicts[:1], notes=("judged again",))
    assert later != run
    assert read_run(path.read_bytes() + end_lines(later), where="made up") == later
