"""A against B: another revision measured beside the tree, because it was asked for or in doubt."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from against_data import (
    BEFORE,
    PACK,
    PLANTED,
    asked,
    commit,
    git,
    repository_at,
    verdicts,
    words,
    write,
)
from msgspec import structs
from options_data import OPTIONS
from store_data import FACTS
from test_merge import split, whole_of
from test_runner import Log, failing_by

from perfsuite import model
from perfsuite.boundary import PackError, UsageError
from perfsuite.judge.noise import entries_of
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.report.terminal import accounts_of
from perfsuite.run.accept import accept
from perfsuite.run.against import open_sides
from perfsuite.run.expected import Basis
from perfsuite.run.finish import run_view_of
from perfsuite.run.run import Judging, Outcome, execute, new_run
from perfsuite.store.runs import end_lines, list_runs, load_run, read_run, write_references
from perfsuite.workers.server import entries, moved_origin, refuse_strangers
from perfsuite.workers.units import Panels

# Opened by the first run and shared by all.
SERVERS = Panels()
FEW = model.Settings(samples=8, processes=2, confirm_processes=4)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with SERVERS:
        folder = repository_at(tmp_path_factory.mktemp("repository") / "project")
        git(folder, "tag", "first")
        yield folder


@pytest.fixture
def project(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository as it was made, on its branch main."""
    reset(repository, "first")
    monkeypatch.syspath_prepend(str(repository))
    monkeypatch.chdir(repository)
    return repository


@pytest.fixture
def fresh_servers() -> Iterator[None]:
    """Servers that no other test shares, for another environment or pack."""
    SERVERS.close()
    yield
    SERVERS.close()


def reset(folder: Path, commit: str) -> None:
    git(folder, "checkout", "--quiet", "--force", "-B", "main", commit)
    git(folder, "clean", "-ffdxq")
    git(folder, "worktree", "prune")


def measure(folder: Path, **fields: Any) -> Outcome:
    return execute(asked(folder, **{"settings": FEW, **fields}), Log(), SERVERS)


def missing(folder: Path, **fields: Any) -> dict[str, str]:
    """Return why variants cannot be measured beside the revision."""
    config = asked(folder, **fields)
    with ExitStack() as stack:
        found = open_sides(config, config.variants, stack).missing
    return {name: str(reason.facts["why"]) for name, reason in found.items()}


# Beside a revision that was asked for.


def test_a_change_since_the_revision_is_found_and_what_did_not_change_is_the_same(
    project: Path,
) -> None:
    write(project, speed=PLANTED)
    outcome = measure(project, against="main")
    run, short = outcome.run, git(project, "rev-parse", "--short=7", "HEAD")
    assert words(run) == {"one": "same", "two": "slower"}
    slower = verdicts(run)["two"]
    assert (slower.source, slower.confirmation) == (f"revision {short} (main)", "A against B")
    assert slower.changes[0].theta == pytest.approx(0.3, abs=0.01)
    assert "elapsed_us" in slower.reason
    assert len(slower.changes) == 2
    # Side A is nobody's baseline, and both sides are sampled alike.
    assert Counter(result.side for result in run.aside) == {model.Side.A: 3}
    looks = [len(r.evidence) for r in run.results if "two" in r.variant]
    assert looks == [2, 2]  # four pairs make a call, two do not
    times = next(e for n, e in entries_of(run).items() if "two" in n).metrics["time_us"]
    assert times.center == pytest.approx(130, rel=0.01)
    assert len(times.values["fa4e00000000"]) == 4
    samplings = {(r.variant, p.sampling) for r in (*run.results, *run.aside) for p in r.evidence}
    assert len(samplings) == len(run.variants)
    run_view = run_view_of(outcome, OPTIONS)
    assert (run_view.source, run_view.previous and run_view.previous.commit) == (
        f"revision {short} (main)", git(project, "rev-parse", "HEAD"),
    )  # fmt: skip
    assert words(measure(project).run) == {"one": "same", "two": "new"}


def test_both_sides_are_traced_and_a_change_inside_the_gate_is_confirmed(project: Path) -> None:
    kernel = 'ctx.run_kernel("scale_rows", speed.US[impl])'
    commit(project, acme=PACK.replace("ctx.spend(speed.US[impl])", kernel))
    write(project, speed=PLANTED.replace("130.0", "100.5"))
    run = measure(project, against="main").run
    assert words(run) == {"one": "same", "two": "slower"}
    assert not verdicts(run)["two"].fails
    assert Counter(result.stage.value for result in run.results) == {"screen": 2, "confirm": 1}
    found = [(trace.side, [k.duration_us for k in trace.kernels]) for trace in run.traces]
    assert found == [(model.Side.A, [100.0]), (model.Side.B, [100.5])]


def test_a_pack_that_the_revision_lacks_and_other_work_are_new(project: Path) -> None:
    git(project, "rm", "--quiet", "--cached", "acme.py")
    old = git(project, "commit-tree", git(project, "write-tree"), "-m", "no pack")
    assert set(missing(project, against=old).values()) == {"its pack is new"}
    write(project, acme=PACK.replace('source="made up")', 'source="made up", version=2)'))
    (why,) = set(missing(project, against="main").values())
    assert "version is 1 there" in why
    write(project, acme=PACK.replace('"two"]', '"two", "three"]'))
    write(project, speed=BEFORE.replace("}", ', "three": 50.0}'))
    run = measure(project, against="main").run
    assert words(run) == {"one": "same", "two": "same", "three": "new"}
    assert verdicts(run)["three"].reason.endswith("(main): it is new")
    assert any("1 of 3 variants are not compared" in note for note in run.notes)


@pytest.mark.parametrize("folder", [True, False])
def test_a_pack_may_be_a_new_module_of_a_package(
    project: Path, monkeypatch: pytest.MonkeyPatch, *, folder: bool
) -> None:
    package = project / "parts"
    package.mkdir()
    write(package, __init__="")
    commit(project)
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    module = package / "extra" / "__init__.py"
    module.parent.mkdir()
    module.write_text(PACK, encoding="utf-8")
    pack = model.Pack(name="acme", origin=f"module:parts.extra@{project if folder else ''}")
    config = replace(asked(project, against="HEAD"), packs=(pack,))
    with ExitStack() as stack:
        found = open_sides(config, config.variants, stack).missing
        assert {each.facts["why"] for each in found.values()} == {"its pack is new"}
        commit(project)
        module.rename(package / "extra.py")  # the same module
        module.parent.rmdir()
        assert not open_sides(config, config.variants, stack).missing


@pytest.mark.parametrize(
    ("fault", "status", "told", "gaps"),
    [
        (("[2 * value", "[7 * value"), model.Status.WRONG, "(HEAD): it is wrong there: output", 0),
        (("[2 * value", "[broken * value"), model.Status.ERROR, "measured: it ended error", 1),
    ],
)
def test_a_revision_that_fails_leaves_the_working_tree_judged(
    project: Path, fault: tuple[str, str], status: model.Status, told: str, gaps: int
) -> None:
    """What was wrong and is repaired is compared with nothing; that is no error of the run."""
    commit(project, acme=PACK.replace(*fault))
    write(project, acme=PACK)
    outcome = measure(project, against="HEAD")
    assert {result.status for result in outcome.run.aside} == {status}
    assert {result.status for result in outcome.run.results} == {model.Status.OK}
    assert words(outcome.run) == {"one": "new", "two": "new"}
    assert told in verdicts(outcome.run)["one"].reason
    run_view = run_view_of(outcome, OPTIONS)
    assert len(run_view.gaps) == gaps
    assert {each.is_error for each in accounts_of(run_view).values()} == {gaps > 0}


def test_what_both_sides_share_needs_no_canary(project: Path) -> None:
    watched = PACK.replace('"two"]', '"two", "three"]').replace(
        'source="made up")',
        'source="made up", regime="sustained", canary={"fake": {"impl": "one"}})',
    )
    write(project, acme=watched, speed=BEFORE.replace("}", ', "three": 50.0}'))
    config, facts = asked(project), structs.replace(FACTS, device="fake")
    assert len(new_run(config, facts, None).canaries) == 1
    assert new_run(config, facts, model.Revision("a" * 40, "main")).canaries == ()


BY_PATH = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("speed", "{}")
speed = sys.modules["speed"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(speed)
"""


@pytest.mark.usefixtures("fresh_servers")
def test_code_of_the_working_tree_is_refused_in_side_a(project: Path) -> None:
    commit(project, acme=PACK.replace("import speed", BY_PATH.format(project / "speed.py")))
    outcome = measure(project, against="main")
    assert "imported from the working tree" in verdicts(outcome.run)["two"].reason
    assert words(outcome.run)["two"] != "same"
    headline = run_view_of(replace(outcome, run=load_run(outcome.run_file)), OPTIONS).headline
    assert " was measured for 0 of 2 variants: its pack: '/" in headline
    assert "; do: name another revision, or make it there" in headline


@pytest.mark.usefixtures("fresh_servers")
def test_sides_that_run_the_same_code_are_told(project: Path, tmp_path: Path) -> None:
    write(tmp_path, acme=PACK.replace("import speed", f"class speed: {BEFORE}"))
    (project / "acme.py").unlink()
    outcome = measure(project, against="main", pack=tmp_path / "acme.py")
    assert "both sides ran the same code" in verdicts(outcome.run)["one"].reason
    (gap,) = run_view_of(outcome, OPTIONS).gaps
    assert " was measured for 0 of 2 variants" in gap


def test_the_revision_is_built_once_and_a_failing_build_shows_its_end(project: Path) -> None:
    commit(project, acme=PACK.replace("import speed", "import made as speed"))
    write(project, made=BEFORE)
    with pytest.raises(UsageError, match=r"ended with 3:(?s:.)*no compiler"):
        measure(project, against="main", build="echo no compiler; exit 3")
    build = "cp speed.py made.py; echo x >> count"
    assert not missing(project, against="main", build=build)
    assert set(words(measure(project, against="main", build=build).run).values()) == {"same"}
    (count,) = (project / ".perfsuite" / "against").glob("*/count")
    assert count.read_text(encoding="utf-8") == "x\n"


def test_what_is_installed_inside_the_repository_is_both_sides_own(tmp_path: Path) -> None:
    tree = model.Tree(str(tmp_path / ".perfsuite" / "against" / "c"), str(tmp_path))
    module = ModuleType("dep")
    for place in ("env/lib/site-packages/dep.py", "env/lib/dist-packages/dep.py"):
        module.__file__ = str(tmp_path / place)
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
        refuse_strangers(tree, [module])
    module.__file__ = str(tmp_path / "dep.py")
    refuse_strangers(tree, [module])  # torch.ops names a file that is none
    (tmp_path / "dep.py").touch()
    with pytest.raises(PackError, match="whose checkout lacks it"):
        refuse_strangers(tree, [module])


def test_paths_of_the_repository_have_twins_in_a_tree_that_others_lack(tmp_path: Path) -> None:
    root = tmp_path / ".perfsuite" / "against" / "c"
    tree = model.Tree(str(root), str(tmp_path), front=(f"{root}/src", f"{root}"))
    for folder in (root / "plugins", root / "src", tmp_path / "venv"):
        folder.mkdir(parents=True)
    for origin, twin in (
        (f"file:{tmp_path}/a.py", f"file:{root}/a.py"),
        (f"module:m@{tmp_path}/plugins", f"module:m@{root}/plugins"),
        ("module:m@", "module:m@"),
        ("file:/elsewhere/a.py", "file:/elsewhere/a.py"),
    ):
        assert moved_origin(origin, tree) == twin
    paths = [f"{tmp_path}/plugins", f"{tmp_path}/venv", "/elsewhere", str(tmp_path)]
    assert entries(tree, paths) == [f"{root}/src", str(root), f"{root}/plugins"]


# Beside the commit that a baseline comes from, where one card never seen leaves doubt.


SEEN, NEVER_SEEN = "fa4e00000000", "0ddc00000000"
A_LITTLE_SLOWER = BEFORE.replace('"two": 100.0', '"two": 104.0')


@pytest.fixture
def elsewhere(project: Path) -> Path:
    """A project whose baseline was measured on another card, one commit ago."""
    if not git(project, "tag", "--list", "elsewhere"):
        accept(measure(project).run, project / "baselines", reason="made up", by="t")
        edit(project, "*.json", SEEN, NEVER_SEEN)
        commit(project)
        git(project, "tag", "elsewhere")
    reset(project, "elsewhere")
    return project


def edit(project: Path, pattern: str, old: str, new: str) -> None:
    files = [*(project / "baselines").rglob(pattern)]
    texts = [file.read_text(encoding="utf-8") for file in files]
    assert any(old in text for text in texts)
    for file, text in zip(files, texts, strict=True):
        file.write_text(text.replace(old, new), encoding="utf-8")


def confirmed(run: model.Run) -> list[str]:
    return [one.id for one in run.variants if len([r for r in one.results if not r.is_aside]) > 1]


def test_a_change_of_the_code_is_found_on_a_card_never_seen(elsewhere: Path) -> None:
    write(elsewhere, speed=A_LITTLE_SLOWER)
    outcome = measure(elsewhere)
    run = outcome.run
    assert words(run) == {"one": "same", "two": "slower"}
    slower = verdicts(run)["two"]
    assert slower.confirmation == "A against B"
    assert slower.changes[0].theta == pytest.approx(0.04, abs=0.005)
    # What pairs decide needs no other processes: those of the tree are kept, and it is traced.
    assert confirmed(run) == [slower.variant]
    assert len(entries_of(run)[slower.variant].metrics["time_us"].values[run.facts.unit]) == 6
    assert sum("impl=two" in trace.variant for trace in run.traces) == 1
    # Pairs are part of what the run took; what was measured for it is nobody's last run.
    assert run.wall_s > run.phases_s["pairs"] > 0
    assert len(list_runs(elsewhere / ".perfsuite")) == 1
    assert words(load_run(outcome.run_file)) == words(run)
    text = outcome.run_file.read_bytes()
    later = structs.replace(run, notes=("judged again",))
    assert read_run(text + end_lines(later), where="made up").notes == later.notes


WAIVER = """[[waiver]]
select = "impl=two"
reason = "known"
issue = "https://example.org/issues/7"
up_to = "+8 %"
expires = 2999-12-31
"""


def test_a_waiver_holds_for_what_turns_decide(elsewhere: Path) -> None:
    (elsewhere / "baselines" / "exceptions.toml").write_text(WAIVER, encoding="utf-8")
    write(elsewhere, speed=A_LITTLE_SLOWER)
    assert isinstance(asked(elsewhere).exceptions, Exceptions)
    slower = verdicts(measure(elsewhere).run)["two"]
    assert (slower.word.value, slower.confirmation) == ("slower", "A against B")
    assert slower.excepted is not None
    assert not slower.fails


def scaled(project: Path, factor: float, *names: str) -> None:
    """Let the baseline's card be faster."""
    for file in (project / "baselines").glob("*/acme.json"):
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        for entry in stored["variants"].values():
            for metric in (entry["metrics"][name] for name in names or ("time_us", "cycles")):
                rows = metric["values"].items()
                metric["center"] *= factor
                metric["values"] = {card: [factor * value for value in row] for card, row in rows}
        file.write_text(json.dumps(stored), encoding="utf-8")
    commit(project)


def kinds(verdict: model.Verdict) -> set[str]:
    return {reason.kind for reason in verdict.reasons}


def test_the_same_code_on_a_card_never_seen_has_an_environment_that_nobody_judged(
    elsewhere: Path,
) -> None:
    scaled(elsewhere, 0.96)
    commit(elsewhere, more="")
    run = measure(elsewhere).run
    assert set(words(run).values()) == {"same-code"}
    for each in run.verdicts:
        assert (each.in_turns, each.fails) == (True, False)
        assert "same_in_turns" in kinds(each)


@pytest.mark.parametrize("kind", ["environment", "environment_unknown"])
@pytest.mark.parametrize("is_paired", [True, False])
def test_what_moved_although_its_code_is_the_same_is_the_environment_s(
    project: Path, kind: str, *, is_paired: bool
) -> None:
    """With the entry's own code, and in pairs with it."""
    accept(measure(project).run, project / "baselines", reason="made up", by="t")
    for file in (project / "baselines").rglob("runs/*.json"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        environment = {**facts["environment"], "driver": "fake 0.9"}
        environment = environment if kind == "environment" else {}
        file.write_text(json.dumps({**facts, "environment": environment}), encoding="utf-8")
    scaled(project, 0.96)
    if is_paired:
        commit(project, more="")
    for fail_on, fails in (((), False), (("environment",), True)):
        run = measure(project, settings=failing_by(*fail_on)).run
        assert set(words(run).values()) == {"environment"}
        for each in run.verdicts:
            assert each.fails is fails
            assert each.changes[0].theta == pytest.approx(1 / 0.96 - 1, abs=0.005)
            assert (each.confirmation is model.Confirmation.IN_TURNS) is is_paired
            (reason,) = (one for one in each.reasons if one.kind == kind)
            told = ("driver fake 0.9 -> fake 1.0",) if kind == "environment" else ()
            assert reason.facts["differing"] == told


def test_what_the_host_times_has_its_load_in_it_unless_something_known_changed(
    project: Path,
) -> None:
    commit(project, acme=PACK.replace("source=", 'regime="end_to_end", source='))
    accept(measure(project).run, project / "baselines", reason="made up", by="t")
    scaled(project, 0.8)
    commit(project, more="")
    paired = measure(project).run
    assert {v.confirmation for v in paired.verdicts} == {model.Confirmation.IN_TURNS}
    git(project, "reset", "--quiet", "--hard", "HEAD~")
    run = measure(project, settings=failing_by("slower", "environment")).run
    merged = whole_of(split(run, unit=run.facts.unit), project).run
    for each in (*paired.verdicts, *run.verdicts, *merged.verdicts):
        assert (each.word, each.fails) == ("same-code", False)
        assert "same_code_host" in kinds(each)
    why = (model.because("lost"),)  # no host's load loses a metric
    lost = structs.replace(paired.verdicts[0], word=model.Word.SLOWER, reasons=why)
    assert Judging(Basis(expected={})).settled(lost, run.variants[0], run).word == "environment"
    scaled(project, 0.8, "device_us")  # no load of a host's moves what the device takes
    assert set(words(measure(project).run).values()) == {"environment"}
    scaled(project, 1.25, "device_us")
    edit(project, "runs/*.json", "fake 1.0", "fake 0.9")
    commit(project)
    assert set(words(measure(project).run).values()) == {"environment"}
    assert len(accept(paired, project / "baselines", reason="made up", by="t").changed) == 2


def test_noise_alone_leaves_the_very_same_code_the_same(project: Path) -> None:
    noisy = "ctx.spend(speed.US[impl] * (1 + ctx.seed % 100 / 2000))"
    commit(project, acme=PACK.replace("ctx.spend(speed.US[impl])", noisy))
    accept(measure(project).run, project / "baselines", reason="made up", by="t")
    run = measure(project).run
    assert ["same_code_noisy" in kinds(each) for each in run.verdicts] == [True, True]
    assert not confirmed(run)
    why = (model.because("clock_lost"),)
    unclear = structs.replace(run.verdicts[0], word=model.Word.UNCLEAR, reasons=why)
    assert Judging(Basis(expected={})).settled(unclear, run.variants[0], run) == unclear


def test_a_burst_while_the_screen_was_taken_is_no_environment(project: Path) -> None:
    """What side B takes in pairs is compared with the entry, not the samples that were doubted."""

    class Calms(Log):
        def note(self, text: str) -> None:
            if text.startswith("measuring"):
                (project / "tmp" / "burst").unlink(missing_ok=True)

    pack = PACK.replace("ctx.spend(speed.US[impl])", "ctx.spend(speed.US[impl] * held_up())")
    burst = project / "tmp" / "burst"
    burst.parent.mkdir(exist_ok=True)
    held = f"from pathlib import Path\nBURST = Path({str(burst)!r})\n"
    held += "def held_up():\n    return 1.05 if BURST.exists() else 1\n"
    commit(project, acme=held + pack)
    accept(measure(project).run, project / "baselines", reason="made up", by="t")
    commit(project, speed=BEFORE + "# later\n")
    burst.touch()
    run = execute(asked(project, settings=FEW), Calms(), SERVERS).run
    assert not burst.exists()
    assert words(run) == {"one": "same", "two": "same"}
    assert all("same_in_turns" in kinds(each) for each in run.verdicts)


@pytest.mark.parametrize(
    ("regime", "said"),
    [
        ("paced", {"environment": 6}),
        ("paced", {"environment": 5, "slower": 1}),
        ("end_to_end", {"same-code": 6}),
    ],
)
def test_where_everything_moved_some_speak_for_all_if_they_say_same(
    project: Path, monkeypatch: pytest.MonkeyPatch, regime: str, said: dict[str, int]
) -> None:
    names = ("one", "two", "three", "four", "five", "six")
    speed = dict.fromkeys(names, 100.0)
    pack = PACK.replace('["one", "two"]', f"{[*names]}").replace("so", f"regime='{regime}', so")
    commit(project, acme=pack, speed=f"US = {speed}\n")
    accept(measure(project).run, project / "baselines", reason="made up", by="t")
    scaled(project, 0.8)
    commit(
        project, speed=f"US = { {**speed, 'two': 110.0 if 'slower' in said else 100.0} }  # later\n"
    )
    monkeypatch.setattr("perfsuite.run.against.MOST_PAIRED", 2)
    run = measure(project).run
    assert Counter(words(run).values()) == said
    paired = sum(each.confirmation is model.Confirmation.IN_TURNS for each in run.verdicts)
    assert paired == (2 if said == {"environment": 6} else 6)
    told = [one.facts for each in run.verdicts for one in each.reasons if one.kind == "paired"]
    assert told == [{"count": 2, "total": 6}] * (6 - paired)


def test_a_crowd_on_a_card_never_seen_is_not_called_slower(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled(elsewhere, 0.85)
    commit(elsewhere, more="")
    monkeypatch.setattr("perfsuite.run.run.chosen_of", lambda some, *_: [*some[:1]])
    run = measure(elsewhere).run
    assert {each.word for each in run.verdicts} == {model.Word.SAME_CODE}
    assert not any(each.fails for each in run.verdicts)


def test_without_side_a_fresh_processes_confirm(elsewhere: Path) -> None:
    edit(elsewhere, "runs/*.json", git(elsewhere, "rev-parse", "HEAD~"), "f" * 40)
    commit(elsewhere)
    write(elsewhere, speed=A_LITTLE_SLOWER)
    run = measure(elsewhere).run
    assert words(run)["two"] == "unclear"
    assert any("impl=two" in each for each in confirmed(run))
    assert "squashed" in kinds(verdicts(run)["two"])


def test_what_fails_beside_a_run_costs_it_no_verdict(elsewhere: Path) -> None:
    write(elsewhere, speed=A_LITTLE_SLOWER)
    (elsewhere / ".perfsuite").mkdir()
    (elsewhere / ".perfsuite" / "settled").touch()
    unclear = verdicts(measure(elsewhere).run)["two"]
    assert unclear.word is model.Word.UNCLEAR
    assert "no_build" in kinds(unclear)


@pytest.mark.parametrize("where", ["RunFile.finish", "Work._answer"])
def test_pairs_that_were_taken_are_not_taken_again(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    write(elsewhere, speed=A_LITTLE_SLOWER)
    monkeypatch.setattr(f"perfsuite.run.run.{where}", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        measure(elsewhere)
    monkeypatch.undo()
    (path,) = list_runs(elsewhere / ".perfsuite" / "settled")
    taken = load_run(path)
    assert words(measure(elsewhere, resume=True).run)["two"] == "slower"
    assert list_runs(elsewhere / ".perfsuite" / "settled") == (path,)
    assert load_run(path).results == taken.results
    assert load_run(path).finished
    # Another run takes pairs of its own.
    assert words(measure(elsewhere).run)["two"] == "slower"
    assert len(list_runs(elsewhere / ".perfsuite" / "settled")) == 2


def test_of_many_codes_the_newest_are_side_a(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = "acme.double[impl=one]", "acme.double[impl=two]"
    for name in (one, two):
        commit(project, speed=f"{BEFORE}# {name}\n")
        run = measure(project).run
        write_references(project / ".perfsuite", run, [name])
    monkeypatch.setattr("perfsuite.run.run.MOST_SOURCES", 1)
    commit(project, speed='US = {"one": 110.0, "two": 110.0}\n')
    run = measure(project).run
    assert words(run) == {"one": "slower", "two": "slower"}
    told = {name: "too_many" in kinds(each) for name, each in verdicts(run).items()}
    assert told == {"one": True, "two": False}
