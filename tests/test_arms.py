"""A against B: another revision of a repository measured in turns with its working tree."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
from arms_data import (
    BEFORE,
    PACK,
    PLANTED,
    ROOT,
    commit,
    git,
    last,
    page,
    perf,
    project_in,
    verdicts,
    words,
)
from kept_folder import Fill

from perfsuite.boundary import PackError, UsageError
from perfsuite.judge.claims import judge_quads
from perfsuite.judge.compare import Policy
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    Arm,
    Block,
    ClaimInstance,
    ClaimWord,
    DeviceFacts,
    Evidence,
    Result,
    Status,
    Tree,
)
from perfsuite.store.git import KEPT, check_out, repository_of, revision_of
from perfsuite.workers.panel import seats_of
from perfsuite.workers.server import entries, moved_origin, refuse_strangers

pytest_plugins = ["pytester"]

USAGE_ERROR = 4
CLAIM = """
    return [double, perfsuite.Claim(
        name="twice", case="double", faster={"impl": "one"}, than={"impl": "two"}, by=BY,
        source="made up")]
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    return project_in(pytester, monkeypatch)


@pytest.fixture
def compared(project: pytest.Pytester, fill: Fill) -> pytest.Pytester:
    """A project with a planted change that was compared with main."""

    def compare() -> None:
        (project.path / "speed.py").write_text(PLANTED, encoding="utf-8")
        told = ["*again * --perf-against=main*", "compared with revision *(main)"]
        perf(project, "--perf-against=main").stdout.fnmatch_lines(told)

    fill(project.path, compare)
    return project


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    commit(folder, speed=BEFORE)
    return folder


def test_a_change_since_the_revision_is_found_and_what_did_not_change_is_the_same(
    compared: pytest.Pytester,
) -> None:
    run, short = last(compared), git(compared.path, "rev-parse", "--short=7", "HEAD")
    found = verdicts(run)
    assert words(run) == {"one": "same", "two": "slower"}
    slower = found["two"]
    assert (slower.source, slower.confirmation) == (f"revision {short} (main)", "A against B")
    assert slower.changes[0].theta == pytest.approx(0.3, abs=0.01)
    assert "elapsed_us" in slower.reason
    assert "6 processes against 6 on the same unit" in slower.reason
    text = page(compared)
    assert f"revision {short} (main)" in text
    assert "A against B" in text


def test_both_arms_are_traced_and_the_report_says_why(project: pytest.Pytester) -> None:
    kernel = 'ctx.run_kernel("scale_rows", speed.US[impl])'
    commit(project.path, acme=PACK.replace("ctx.spend(speed.US[impl])", kernel))
    (project.path / "speed.py").write_text(PLANTED, encoding="utf-8")
    perf(project, "--perf-against=main")
    found = [(trace.arm, [k.duration_us for k in trace.kernels]) for trace in last(project).traces]
    assert found == [(Arm.A, [100.0]), (Arm.B, [130.0])]
    text = page(project)
    told = "scale_rows takes 130 µs instead of 100 µs (100 % of the change)"
    assert told in text.replace("\u202f", " ")


def test_a_change_inside_the_gate_is_confirmed_and_found(project: pytest.Pytester) -> None:
    (project.path / "speed.py").write_text(PLANTED.replace("130.0", "100.5"), encoding="utf-8")
    assert perf(project, "--perf-against=main").ret == 0
    run = last(project)
    assert words(run) == {"one": "same", "two": "slower"}
    assert Counter(result.stage.value for result in run.results) == {"screen": 2, "confirm": 1}


def test_arm_a_is_stored_aside_and_is_nobodys_baseline(compared: pytest.Pytester) -> None:
    run = last(compared)
    assert {result.arm for result in run.results} == {Arm.B}
    assert Counter(result.arm for result in run.aside) == {Arm.A: 3}
    entry = next(entry for name, entry in entries_of(run).items() if "two" in name)
    assert entry.metrics["time_us"].center == pytest.approx(130, rel=0.01)
    assert len(entry.metrics["time_us"].values["fa4e00000000"]) == 9
    samplings = {(r.variant, p.sampling) for r in (*run.results, *run.aside) for p in r.evidence}
    assert len(samplings) == len(run.variants)
    perf(compared)
    assert words(last(compared)) == {"one": "same", "two": "new"}


def test_what_the_revision_lacks_is_judged_as_in_any_run(project: pytest.Pytester) -> None:
    more = PACK.replace('["one", "two"]', '["one", "two", "three"]')
    speed = BEFORE.replace("}", ', "three": 50.0}')
    for name, text in (("acme", more), ("speed", speed)):
        (project.path / f"{name}.py").write_text(text, encoding="utf-8")
    perf(project, "--perf-against=main")
    run = last(project)
    assert words(run) == {"one": "same", "two": "same", "three": "new"}
    assert verdicts(run)["three"].reason.endswith("(main): it is new")
    assert any("1 of 3 variants are not compared" in note for note in run.notes)


def test_a_pack_that_the_revision_lacks_and_other_work_are_new(project: pytest.Pytester) -> None:
    git(project.path, "rm", "--quiet", "--cached", "acme.py")
    commit_without = git(project.path, "write-tree")
    old = git(project.path, "commit-tree", commit_without, "-m", "no pack")
    perf(project, f"--perf-against={old}")
    assert {each.reason.rpartition(": ")[2] for each in last(project).verdicts} == {
        "its pack is new"
    }
    text = PACK.replace('source="made up")', 'source="made up", version=2)')
    (project.path / "acme.py").write_text(text, encoding="utf-8")
    perf(project, "--perf-against=main")
    assert "version is 1 there" in verdicts(last(project))["one"].reason


def test_a_revision_that_fails_leaves_the_working_tree_judged(project: pytest.Pytester) -> None:
    wrong = PACK.replace("[2 * value", "[7 * value")
    commit(project.path, acme=wrong)
    (project.path / "acme.py").write_text(PACK, encoding="utf-8")
    perf(project, "--perf-against=HEAD")
    run = last(project)
    assert {result.status for result in run.aside} == {Status.WRONG}
    assert {result.status for result in run.results} == {Status.OK}
    assert "(HEAD): it ended wrong" in verdicts(run)["one"].reason
    assert all(len(result.evidence) == 3 for result in run.results)


def test_what_both_arms_share_needs_no_canary(project: pytest.Pytester) -> None:
    watched = PACK.replace('["one", "two"]', '["one", "two", "three"]').replace(
        'source="made up")', 'source="made up", canary={"fake": {"impl": "one"}})'
    )
    commit(project.path, acme=watched, speed=BEFORE.replace("}", ', "three": 50.0}'))
    perf(project)
    assert len(last(project).canaries) == 1
    perf(project, "--perf-against=main")
    assert last(project).canaries == ()
    assert set(words(last(project)).values()) == {"same"}


def test_code_of_the_working_tree_is_refused_in_arm_a(project: pytest.Pytester) -> None:
    stubborn = f"import sys\nsys.path.insert(0, {str(project.path)!r})\n{PACK}"
    commit(project.path, acme=stubborn)
    perf(project, "--perf-against=main")
    assert "imported from the working tree" in verdicts(last(project))["one"].reason


@pytest.mark.parametrize("ignored", ["built/\n", ""])
def test_code_that_the_revision_lacks_is_not_taken_from_the_working_tree(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    """What is built there, or checked out as a submodule, is not in a checkout."""
    built = project.mkdir("built")
    (project.path / "speed.py").rename(built / "speed.py")
    with (project.path / ".gitignore").open("a", encoding="utf-8") as file:
        file.write(ignored)
    git(project.path, "rm", "-q", "--cached", "speed.py")
    git(project.path, "add", ".gitignore")
    git(project.path, "commit", "--quiet", "-m", "made up")
    (built / "speed.py").write_text(PLANTED, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(built)]))
    perf(project, "--perf-against=main")
    reason = verdicts(last(project))["two"].reason
    assert "imported from the working tree" in reason
    assert words(last(project))["two"] != "same"


def test_what_is_installed_inside_the_repository_is_both_arms_own(tmp_path: Path) -> None:
    root = tmp_path / ".perfsuite" / "against" / "c"
    tree = Tree(str(root), str(tmp_path))
    for place in ("env/lib/site-packages/dep.py", "env/lib/dist-packages/dep.py"):
        module = ModuleType("dep")
        module.__file__ = str(tmp_path / place)
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
        refuse_strangers(tree, [module])
    module.__file__ = str(tmp_path / "dep.py")
    refuse_strangers(tree, [module])  # torch.ops names a file that is none
    (tmp_path / "dep.py").touch()
    with pytest.raises(PackError, match="whose checkout lacks it"):
        refuse_strangers(tree, [module])


def test_arms_that_run_the_same_code_are_told(project: pytest.Pytester, tmp_path: Path) -> None:
    away = tmp_path / "acme.py"
    away.write_text(PACK.replace("import speed", f"class speed: {BEFORE}"), encoding="utf-8")
    (project.path / "acme.py").unlink()
    perf(project, "--perf-against=main", f"--perf-pack={away}")
    result = project.runpytest_subprocess(
        *("-p", "perfsuite.plugin", "--perf", f"--perf-pack={away}", "--perf-packs=acme"),
        *("--perf-device=fake", "--perf-against=main"),
    )
    assert result.ret == 0
    assert "both arms ran the same code" in verdicts(last(project))["one"].reason


def test_the_instrument_stays_where_its_own_repository_is_under_test(
    project: pytest.Pytester,
) -> None:
    hostile = project.path / "src" / "perfsuite"
    hostile.mkdir(parents=True)
    for name in ("__init__", "worker", "model"):
        (hostile / f"{name}.py").write_text("raise ImportError('not me')", encoding="utf-8")
    commit(project.path)
    assert perf(project, "--perf-against=main").ret == 0
    assert words(last(project)) == {"one": "same", "two": "same"}


def test_the_revision_is_built_once_and_a_failing_build_shows_its_end(
    project: pytest.Pytester,
) -> None:
    commit(project.path, acme=PACK.replace("import speed", "import made as speed"))
    (project.path / "made.py").write_text(BEFORE, encoding="utf-8")
    failed = perf(project, "--perf-against=main", "--perf-against-build=echo no compiler; exit 3")
    assert failed.ret == USAGE_ERROR
    failed.stderr.fnmatch_lines(["*ended with 3:", "*no compiler"])
    build = "--perf-against-build=cp speed.py made.py; echo x >> count"
    for _ in range(2):
        assert perf(project, "--perf-against=main", build).ret == 0
    assert set(words(last(project)).values()) == {"same"}
    (count,) = (project.path / ".perfsuite" / "against").glob("*/count")
    assert count.read_text(encoding="utf-8") == "x\n"


@pytest.mark.parametrize(
    "rev", ["nowhere", "--upload-pack=touch x", "-h", "main main", "", "main\n", "HEAD:speed.py"]
)
def test_what_names_no_commit_is_refused(repository: Path, rev: str) -> None:
    with pytest.raises(UsageError, match="--perf-against does not know") as caught:
        revision_of(repository, rev)
    assert repr(rev) in caught.value.what


def test_legs_alternate_in_quads_of_random_order() -> None:
    def legs(processes: int, seed: str) -> str:
        waves = seats_of(processes, together=1, slots=3, seed=seed)
        return "".join(seat.arm for (seat,) in waves)

    found = [legs(4, str(seed)) for seed in range(50)]
    quads = Counter(text[start : start + 4] for text in found for start in (0, 4))
    assert set(quads) == {"ABBA", "BAAB"}
    assert min(quads.values()) > 25
    assert legs(3, "x") == legs(4, "x")[:6]


@pytest.mark.parametrize(("together", "slots"), [(3, 3), (6, 6), (1, 3), (2, 2), (1, 1)])
def test_each_slot_carries_both_arms_alike(together: int, slots: int) -> None:
    waves = seats_of(6, together=together, slots=slots, seed="x")
    assert {len(wave) for wave in waves} == {min(together, 2)}
    assert all(len({seat.slot for seat in wave}) == len(wave) for wave in waves)
    seats = [seat for wave in waves for seat in wave]
    count = Counter((seat.slot, seat.arm) for seat in seats)
    assert all(count[slot, Arm.A] == count[slot, Arm.B] for slot, _ in count)
    assert [seat.process for seat in seats] == list(range(12))


def checked_out(repository: Path, rev: str = "main", build: str = "") -> Path:
    revision = revision_of(repository, rev)
    folder = repository / ".perfsuite"
    with ExitStack() as stack:
        return check_out(repository, revision, folder=folder, build=build, stack=stack)


def test_a_clean_checkout_is_used_again_and_a_changed_one_is_made_anew(repository: Path) -> None:
    place = checked_out(repository)
    (place / "mark").touch()
    assert (checked_out(repository) / "mark").exists()
    (place / "speed.py").write_text("changed", encoding="utf-8")
    assert (checked_out(repository) / "speed.py").read_text(encoding="utf-8") == BEFORE
    assert not (place / "mark").exists()
    (place / ".git").write_text("garbage", encoding="utf-8")
    assert git(checked_out(repository), "status", "--porcelain") == ""


def test_an_interrupted_checkout_leaves_no_lock_and_is_made_anew(repository: Path) -> None:
    kill = "kill -9 $PPID"
    code = f"""
import sys
from contextlib import ExitStack
from pathlib import Path
from perfsuite.store.git import check_out, revision_of
place = Path(sys.argv[1])
folder, main = place / ".perfsuite", revision_of(place, "main")
check_out(place, main, folder=folder, build={kill!r}, stack=ExitStack())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", code, str(repository)], check=False, env=environment
    )
    assert ended.returncode == -9
    (half,) = (repository / ".perfsuite" / "against").iterdir()
    (half / "mark").touch()
    git(repository, "worktree", "lock", str(half))
    place = checked_out(repository)
    assert place == half
    assert not (place / "mark").exists()


def test_old_checkouts_are_removed_unless_they_are_in_use(repository: Path) -> None:
    first = checked_out(repository)
    with ExitStack() as stack:
        folder = repository / ".perfsuite"
        revision = revision_of(repository, "main")
        check_out(repository, revision, folder=folder, build="", stack=stack)
        for number in range(KEPT + 1):
            commit(repository, speed=f"# {number}")
            checked_out(repository)
        assert first.exists()
        assert len(list(first.parent.glob("*.built"))) == KEPT + 1
    commit(repository, speed="# last")
    checked_out(repository)
    assert not first.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == KEPT + 1


def test_a_repository_is_found_from_inside_it_and_only_there(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "deep").mkdir()
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    assert repository_of(repository / "deep") == repository
    with pytest.raises(UsageError, match="no git repository"):
        repository_of(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="git cannot be run"):
        repository_of(repository)


def test_paths_of_the_repository_have_twins_in_a_tree_that_others_lack(tmp_path: Path) -> None:
    root = tmp_path / ".perfsuite" / "against" / "c"
    tree = Tree(str(root), str(tmp_path), front=(f"{root}/src", f"{root}"))
    for folder in (root / "plugins", root / "src", tmp_path / "venv"):
        folder.mkdir(parents=True)
    assert moved_origin(f"file:{tmp_path}/a.py", tree) == f"file:{root}/a.py"
    assert moved_origin(f"module:m@{tmp_path}/plugins", tree) == f"module:m@{root}/plugins"
    assert moved_origin("module:m@", tree) == "module:m@"
    assert moved_origin("file:/elsewhere/a.py", tree) == "file:/elsewhere/a.py"
    paths = [f"{tmp_path}/plugins", f"{tmp_path}/venv", "/elsewhere", str(tmp_path)]
    assert entries(tree, paths) == [f"{root}/src", str(root), f"{root}/plugins"]
    own = Tree(str(tmp_path), str(tmp_path), front=(str(tmp_path),))
    assert entries(own, paths) == [str(tmp_path)]


def test_a_claim_left_open_is_decided_by_quads(project: pytest.Pytester) -> None:
    speed = 'US = {"one": 100.0, "two": 201.0}\n'
    pack = PACK.replace("    return [double]\n", CLAIM.replace("BY", "2.0"))
    commit(project.path, acme=pack, speed=speed)
    assert perf(project).ret == 0
    run = last(project)
    (claim,) = run.claims
    assert claim.word is ClaimWord.HELD
    assert "decided by 18 quads inside 6 processes" in claim.reason
    assert claim.ratio == pytest.approx(2.01, abs=0.003)
    assert {result.claim for result in run.aside} == {claim.claim}
    assert [len(result.evidence[0].blocks) for result in run.aside] == [6, 6]
    assert all(len(entry.metrics["time_us"].values) == 1 for entry in entries_of(run).values())
    kept = entries_of(run)[run.variants[0].id].metrics["time_us"].values["fa4e00000000"]
    assert len(kept) == 3


def test_claims_past_the_limit_stay_open_and_say_so(project: pytest.Pytester) -> None:
    pack = PACK.replace("    return [double]\n", CLAIM.replace("BY", "1.0"))
    commit(project.path, acme=pack)
    own = "import perfsuite.run.run\nperfsuite.run.run.LIMIT_S = 0.0\n"
    (project.path / "conftest.py").write_text(own, encoding="utf-8")
    perf(project)
    (claim,) = last(project).claims
    assert claim.word is ClaimWord.UNCLEAR
    assert claim.reason.endswith("no quads: the limit is 20 claims, 0 s")


def test_quads_that_crash_leave_the_claim_open(project: pytest.Pytester) -> None:
    crash = (
        "    perfsuite.times = getattr(perfsuite, 'times', 0) + 1\n    assert perfsuite.times < 2\n"
    )
    pack = PACK.replace("    return [double]\n", CLAIM.replace("BY", "1.0"))
    commit(project.path, acme=pack.replace("    def fn", f"{crash}    def fn"))
    perf(project)
    (claim,) = last(project).claims
    assert claim.word is ClaimWord.UNCLEAR
    assert "quads ended error: AssertionError" in claim.reason


FACTS = DeviceFacts(device="fake", name="", unit="", identity={})


def quads(ratios: Sequence[float], seed: int, within: float = 0.002) -> list[Result]:
    """Return made-up quads of processes with these ratios, whose level drifts by 5 %."""
    source = random.Random(seed)  # noqa: S311 - made-up samples
    sides: tuple[list[Evidence], list[Evidence]] = ([], [])
    for ratio in ratios:
        levels = [100 * math.exp(0.05 * source.gauss(0, 1)) for _ in range(3) for _ in range(2)]
        for side, factor in zip(sides, (1.0, ratio), strict=True):
            blocks = tuple(
                Block(time_us=(level * factor * math.exp(source.gauss(0, within)),))
                for level in levels
            )
            side.append(Evidence(slot=0, seed=0, blocks=blocks))
    return [
        Result(variant=name, status=Status.OK, evidence=tuple(side))
        for name, side in zip(("a", "b"), sides, strict=True)
    ]


def word_of(ratios: Sequence[float], seed: int, by: float = 2.0) -> ClaimWord:
    claim = ClaimInstance(id="c", pack="p", name="n", faster="a", than="b", by=by, source="s")
    verdict = judge_quads(claim, quads(ratios, seed), facts=FACTS, policy=Policy())
    assert verdict is not None
    return verdict.word


def test_quads_decide_what_drift_would_hide_and_not_what_is_on_the_edge() -> None:
    source = random.Random(7)  # noqa: S311 - made-up samples

    def ratios(center: float) -> list[float]:
        return [center * math.exp(source.gauss(0, 0.002)) for _ in range(6)]

    held = Counter(word_of(ratios(2.0 * 1.01), seed) for seed in range(100))
    broken = Counter(word_of(ratios(2.0 / 1.01), seed) for seed in range(100))
    edge = Counter(word_of(ratios(2.0), seed) for seed in range(400))
    assert held == {ClaimWord.HELD: 100}
    assert broken == {ClaimWord.BROKEN: 100}
    assert edge[ClaimWord.UNCLEAR] >= 0.94 * 400
