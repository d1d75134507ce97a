"""Where packs' code comes from, what is kept of it, and why it cannot be side A any more."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from against_data import (
    BEFORE,
    PACK,
    PLANTED,
    ROOT,
    asked,
    commit,
    git,
    repository_at,
    words,
    write,
)
from msgspec import structs
from test_runner import Log

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.model import BUILT_IN_DEVICES, Pack, Settings, Side, Source, Wheel
from perfsuite.run.accept import accept, refuse_changed
from perfsuite.run.against import (
    NoSideAError,
    Sides,
    by_source,
    is_same_code,
    open_sides,
    python_of,
    sources_of,
)
from perfsuite.run.config import Config
from perfsuite.run.expected import find_expected
from perfsuite.run.expected import source_of as source_of_run
from perfsuite.run.run import Outcome, execute
from perfsuite.store import git as store
from perfsuite.store.baselines import RunFacts, read_runs
from perfsuite.workers.units import Panels

SERVERS = Panels()
FEW = Settings(samples=8, processes=1, confirm_processes=1)
PAIRS = Settings(samples=8, processes=2, confirm_processes=4)


@pytest.fixture(autouse=True)
def _servers() -> Iterator[None]:
    """Servers know where modules were when they began: each test has its own."""
    with SERVERS:
        yield


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = repository_at(tmp_path / "project")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    return folder


def measure(folder: Path, **fields: Any) -> Outcome:
    return execute(asked(folder, **{"settings": FEW, **fields}), Log(), SERVERS)


def source_of(pack: Pack, config: Config) -> Source:
    return sources_of(replace(config, packs=(pack,)), [])[0][pack.name]


def now(folder: Path, **fields: Any) -> Source:
    config = asked(folder, **fields)
    return source_of(config.packs[0], config)


def refs(folder: Path) -> dict[str, str]:
    told = git(folder, "for-each-ref", "--format=%(refname) %(objectname)", "refs/perfsuite")
    pairs = (each.partition(" ") for each in told.splitlines())
    return {name.rpartition("/")[2]: sha for name, _, sha in pairs}


def sides(config: Config, source: Source) -> Sides:
    with ExitStack() as stack:
        return open_sides(replace(config, source=source), config.variants, stack)


def refused(config: Config, source: Source) -> dict[str, Any]:
    """Return the kind and facts of why a source can be nobody's side A."""
    with pytest.raises(NoSideAError) as caught:
        sides(config, source)
    reason = caught.value.reason
    assert str(reason.facts["remedy"]) in str(caught.value)
    return {"kind": reason.kind, **reason.facts}


# What is known of the code.


def test_a_clean_commit_and_a_changed_tree_are_told_apart(project: Path) -> None:
    clean = now(project)
    assert clean == Source(commit=git(project, "rev-parse", "HEAD"), tree=clean.tree)
    # What a run writes, or any file that is no code, is no change.
    (project / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    (project / "baselines" / "cpu").mkdir(parents=True)
    (project / "baselines/cpu/acme.json").touch()
    clean = Source.at(commit(project))
    for name in ("reports/index.html", ".perfsuite/x.py", "baselines/new.py", "notes.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / "baselines/cpu/acme.json").write_text("{}", encoding="utf-8")
    assert not now(project, report=project / "reports").is_changed
    write(project, speed=PLANTED)
    (project / "new.py").write_text("x = 1\n", encoding="utf-8")
    (project / "odd *[name]\n.py").touch()
    repository_at(project / "nested")
    found = now(project, report=project / "reports")
    names = {*git(project, "ls-tree", "-rz", "--name-only", found.commit).split("\0")[:-1]}
    assert found.is_changed
    tracked = {".gitignore", "acme.py", "baselines/cpu/acme.json", "speed.py"}
    assert names == {*tracked, "new.py", "notes.txt", "odd *[name]\n.py"}
    assert git(project, "show", f"{found.commit}:speed.py") == PLANTED.strip()
    assert git(project, "rev-parse", f"{found.commit}^") == git(project, "rev-parse", "HEAD")
    # The same tree is the same commit, and the same code as a commit of it.
    assert now(project, report=project / "reports") == found
    git(project, "checkout", "--quiet", "baselines")
    git(project, "--literal-pathspecs", "add", *names)
    git(project, "commit", "--quiet", "-m", "made up")
    assert not now(project).is_changed
    report = project / "reports"
    assert not now(project, report=report).is_changed
    assert is_same_code(now(project, report=report), found)
    assert not is_same_code(now(project, report=report), clean)


ENTRY = "[project.entry-points.perfsuite]"


def test_a_packs_code_is_its_repository_but_for_other_packs_that_it_does_not_name(
    project: Path,
) -> None:
    packs = [Pack(name="top", origin=f"file:{project}/acme.py")]
    texts = {"alone": "", "user": "import used", "used": "import base", "base": ""}
    for name, text in texts.items():
        home = project / "plugins" / name
        home.mkdir(parents=True)
        home.joinpath("pyproject.toml").write_text(f'{ENTRY}\na = "{name}"', "utf-8")
        write(home, **{name: text})
        packs.append(Pack(name=name, origin=f"module:{name}@{home}"))
    packs.append(structs.replace(packs[1], name="all", wants_kernels=True))
    (project / "tests").mkdir()
    (project / "tests/perf.py").touch()
    tested = Pack(name="tested", origin=f"file:{project}/tests/perf.py")
    packs += [tested, structs.replace(tested, name="kernels", wants_kernels=True)]
    commit(project)

    def changed(name: str, *, commits: bool = False) -> set[str]:
        before = sources_of(replace(asked(project), packs=(*packs,)), [])[0]
        with (project / name).open("a", encoding="utf-8") as file:
            file.write("# more\n")
        if commits:
            commit(project)
        found = sources_of(replace(asked(project), packs=(*packs,)), [])[0]
        return {name for name in found if not is_same_code(before[name], found[name])}

    wide = {"all", "kernels", "tested", "top"}
    assert changed("plugins/alone/alone.py") == {"alone", *wide}
    assert changed("plugins/base/base.py") == {"base", "used", "user", *wide}
    assert changed("speed.py") == {"alone", "base", "used", "user", *wide}
    # What is accepted or written, documents, tests and a workflow are code of none.
    others = ("baselines/a.json", "docs/conf.py", "README.md", "plugins/user/tests/test_a.py")
    for name in (*others, ".github/run.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        assert changed(name) == set()
    # A pack in a folder of its own uses helpers there only if something is imported from there.
    assert changed("tests/helper.py") == {"all", "kernels", "tested", "top"}
    assert changed("baselines/model.py", commits=True) == {"alone", "base", "used", "user", *wide}
    commit(project, more="from tests.helper import x")
    assert changed("tests/helper.py") == {"alone", "base", "used", "user", *wide}
    assert changed("tests/test_a.py") == {"tested"}
    every = sources_of(replace(asked(project), packs=(*packs,)), [])[0]
    assert sources_of(replace(asked(project), packs=(packs[2],)), [])[0] == {"user": every["user"]}
    # A folder that declares no pack is no pack's own.
    (project / "plugins/alone/pyproject.toml").write_text("", "utf-8")
    assert changed("plugins/user/user.py") == {"alone", "user", *wide}
    packs.append(Pack(name="beside", origin=f"file:{project}/baselines/perf.py"))
    (project / "baselines/perf.py").touch()
    commit(project)
    assert "beside" in changed("baselines/perf.py")


def test_a_code_file_alone_that_git_does_not_know_changes_the_tree(project: Path) -> None:
    (project / "new.py").touch()
    assert now(project).is_changed
    (project / "new.py").rename(project / "new.txt")
    assert not now(project).is_changed


def test_keeping_a_tree_leaves_all_of_the_user_s_as_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, speed=PLANTED)
    git(project, "stash")
    (project / "staged.py").write_text("x = 1\n", encoding="utf-8")
    git(project, "add", "staged.py")
    (project / "staged.py").write_text("x = 2\n", encoding="utf-8")
    (project / "speed.py").write_text("# later\n", encoding="utf-8")
    for name in ("pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        hook = project / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {project}/ran\nexit 1\n", encoding="utf-8")
        hook.chmod(0o755)
    monkeypatch.setenv("GIT_INDEX_FILE", str(project / "other-index"))
    names = ("HEAD", "index", "logs/HEAD", "refs/stash", "refs/heads/main")
    before = {name: (project / ".git" / name).read_bytes() for name in names}
    times = (project / ".git" / "index").stat().st_mtime_ns
    source = now(project)
    store.hold(project, "20260101-000000-aaaa", source.commit)
    assert {name: (project / ".git" / name).read_bytes() for name in names} == before
    assert (project / ".git" / "index").stat().st_mtime_ns == times
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert refs(project) == {"20260101-000000-aaaa": source.commit}
    assert not (project / "ran").exists()
    assert git(project, "show", f"{source.commit}:staged.py") == "x = 2"


def test_a_repository_without_a_commit_has_a_changed_tree(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    (folder / "acme.py").write_text(PACK, encoding="utf-8")
    (folder / "speed.py").write_text(BEFORE, encoding="utf-8")
    found = store.source_in(folder, ())
    assert found.is_changed
    assert git(folder, "ls-tree", "--name-only", found.commit).split() == ["acme.py", "speed.py"]


def test_what_cannot_be_kept_is_noted_and_costs_no_verdict(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_UNKNOWN_BYTES", (1 << 20) - 1)
    (project / "weights.bin").write_bytes(b"0" * (1 << 20))
    assert not measure(project).run.sources["acme"].is_changed
    write(project, speed=PLANTED)
    run = measure(project).run
    assert run.sources["acme"] == Source(is_changed=True)
    assert run.verdicts
    (note,) = (note for note in run.notes if "is not kept" in note)
    assert "1 MiB are in files that git does not know" in note
    assert ".gitignore" in note
    assert refs(project) == {}
    assert refused(asked(project), run.sources["acme"])["kind"] == "squashed"


def test_a_change_in_a_submodule_is_a_change_that_cannot_be_kept(project: Path) -> None:
    inner = repository_at(project.parent / "inner")
    allowed = ("-c", "protocol.file.allow=always")
    git(project, *allowed, "submodule", "--quiet", "add", str(inner), "part")
    commit(project)
    assert not now(project).is_changed
    (project / "part" / "speed.py").write_text(PLANTED, encoding="utf-8")
    for ignored, beside in (("none", {}), ("all", {}), ("none", {"todo": ""})):
        git(project, "config", "diff.ignoreSubmodules", ignored)
        write(project, **beside)
        notes = list[str]()
        found, _ = sources_of(asked(project), notes)
        assert found == {"acme": Source(is_changed=True)}
        assert "lies in a submodule" in notes[0]


def test_refs_of_the_newest_runs_stay(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_REFS", 2)
    commit = git(project, "rev-parse", "HEAD")
    for second in (3, 1, 2):
        store.hold(project, f"20260101-00000{second}-aaaa", commit)
    assert [*refs(project)] == ["20260101-000002-aaaa", "20260101-000003-aaaa"]


# What is accepted.


def test_a_changed_tree_is_accepted_only_by_who_says_so(project: Path) -> None:
    baselines = project / "baselines"
    refuse_changed(measure(project).run)
    write(project, speed=PLANTED)
    run = measure(project).run
    with pytest.raises(UsageError, match=f"since {run.commit}, and in no commit") as caught:
        refuse_changed(run, ["acme"])
    assert "--allow-dirty" in caught.value.remedy
    refuse_changed(structs.replace(run, sources={"acme": Source(wheel=Wheel("a", "1", "c"))}))
    with pytest.raises(UsageError, match="in no commit"):  # of before, or of no repository
        refuse_changed(structs.replace(run, sources={}))
    with pytest.raises(UsageError, match=r"^the code of acme is in no commit"):  # there is none
        refuse_changed(structs.replace(run, commit=""))
    accept(run, baselines, reason="made up", by="t")
    (folder,) = baselines.iterdir()
    facts: RunFacts = read_runs(folder, [run.id])[run.id]
    assert facts.sources["acme"].commit == refs(project)[run.id]
    # Accepted numbers that are not committed yet change no code.
    git(project, "checkout", "--quiet", "speed.py")
    refuse_changed(measure(project).run)


# Side A.


def test_side_a_is_the_code_that_an_entry_comes_from(project: Path) -> None:
    first = measure(project).run
    # Of another length: Python takes a file that was written twice in a second for the same.
    write(project, speed=BEFORE.replace('"two": 100.0', '"two": 120.00'))
    changed = measure(project).run
    write(project, speed=PLANTED)
    config = asked(project)
    for run in (first, changed):
        source = run.sources["acme"]
        found = sides(config, source)
        assert len(found.compared) == 2
        tree = found.code[Side.A].tree
        assert tree
        assert ("120" in Path(tree.root, "speed.py").read_text("utf-8")) is (run is changed)
        assert git(Path(tree.root), "status", "--porcelain") == ""
    assert str(found.revision) == f"revision {source.commit[:7]} (a changed tree)"
    run = measure(project).run
    held = find_expected((), config.folder, run=run).hold(run)
    assert {one.expected.source_a for one in held.variants} == {first.sources["acme"]}
    ((source, own),) = by_source(held.variants)
    assert (source, len(own)) == (first.sources["acme"], 2)
    one, two = held.variants
    short = structs.replace(one.expected, source_a=Source.at(source.commit[:12]))
    none = structs.replace(one.expected, source_a=None)
    other = structs.replace(one.expected, source_a=changed.sources["acme"])
    for expected, counts in ((short, [2]), (none, [1]), (other, [1, 1])):
        mixed = structs.replace(held, variants=(structs.replace(one, expected=expected), two))
        assert [len(variants) for _, variants in by_source(mixed.variants)] == counts


def test_on_a_host_stored_times_decide_nothing_and_pairs_with_changed_code_do(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        BUILT_IN_DEVICES, "fake", structs.replace(BUILT_IN_DEVICES["fake"], is_host=True)
    )

    assert set(words(measure(project, settings=PAIRS).run).values()) == {"new"}
    again = measure(project, settings=PAIRS).run
    assert words(again) == {"one": "same-code", "two": "same-code"}
    assert not any(each.changes for each in again.verdicts)
    assert {len(each.last.evidence) for each in again.variants if each.last} == {1}
    assert "2 variants: same code, not timed against it" in again.notes
    # No number was held against one of before.
    assert (source_of_run(again), [n for n in again.notes if "first run" in n]) == ("", [])
    broken = commit(project, acme=PACK.replace("[2 * value", "[broken * value"))
    git(project, "reset", "--quiet", "--hard", "HEAD~")
    beside = measure(project, settings=PAIRS, against=broken).run
    assert [each.reasons[-1].kind for each in beside.verdicts] == ["unmeasured", "unmeasured"]
    write(project, speed=PLANTED)
    planted = measure(project, settings=PAIRS).run
    assert words(planted) == {"one": "same", "two": "slower"}
    assert all(each.in_turns for each in planted.verdicts)
    assert source_of_run(planted) == planted.verdicts[0].source
    shutil.rmtree(project / ".git")
    bare = measure(project, settings=PAIRS).run
    assert words(bare) == {"one": "unclear", "two": "unclear"}
    for each in bare.verdicts:
        assert [reason.kind for reason in each.reasons] == ["stored_time", "no_git"]


@pytest.mark.parametrize("is_host", [False, True])
def test_a_count_that_the_same_code_changed_is_the_environment_s(
    project: Path, monkeypatch: pytest.MonkeyPatch, *, is_host: bool
) -> None:
    row = structs.replace(BUILT_IN_DEVICES["fake"], is_host=is_host)
    monkeypatch.setitem(BUILT_IN_DEVICES, "fake", row)
    monkeypatch.setenv("OPS", "10")
    counts = "    import os\n    return Workload(exact=lambda: {'ops': float(os.environ['OPS'])},"
    declared = 'metrics=[perfsuite.Metric("ops", "count")], source="made up")'
    pack = PACK.replace("    return Workload(", counts).replace('source="made up")', declared)
    commit(project, acme=pack)
    accept(measure(project, settings=PAIRS).run, project / "baselines", reason="made up", by="t")
    for text, ops in (("", "11"), ("", "9"), ("# later\n", "11"), ("# later\n", "9")):
        monkeypatch.setenv("OPS", ops)
        SERVERS.close()
        if text:
            commit(project, speed=BEFORE + text)
        assert {*words(measure(project, settings=PAIRS).run).values()} == {"environment"}, ops


def test_short_commits_of_old_files_are_found_and_names_are_none(project: Path) -> None:
    config, sha = asked(project), git(project, "rev-parse", "HEAD")
    found = sides(config, Source.at(sha[:12]))
    assert found.revision
    assert found.revision.commit == sha
    for name in ("main", "HEAD", "--upload-pack=x", "\x1b[2J", "f" * 40, f"{sha[:12]}-dirty"):
        assert refused(config, Source.at(name))["kind"] == "squashed"


def test_a_shallow_clone_and_one_that_lacks_the_commit_differ(project: Path) -> None:
    old = Source.at(git(project, "rev-parse", "HEAD"))
    commit(project, speed=PLANTED)
    for name, depth, kind, remedy in (
        ("shallow", ("--depth=1",), "shallow", "git fetch --unshallow"),
        ("whole", (), "", ""),
    ):
        clone = project.parent / name
        git(project.parent, "clone", "--quiet", *depth, f"file://{project}", str(clone))
        config = asked(clone)
        if kind:
            told = refused(config, old)
            assert (told["kind"], told["code"]) == (kind, str(old))
            assert remedy in told["remedy"]
            assert "fetch-depth: 0" in told["remedy"]
            # A changed tree is in no other clone: nothing deeper has it.
            assert refused(config, Source(commit="c" * 40, is_changed=True))["kind"] == "squashed"
        else:
            assert sides(config, old).compared
            told = refused(config, Source.at("c" * 40))
            assert (told["kind"], told["code"]) == ("squashed", "commit ccccccc")
            assert "fetch the branch" in told["remedy"]


def test_what_lies_in_no_repository_is_told(project: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    shutil.copy(project / "acme.py", plain)
    config = asked(project, pack=plain / "acme.py")
    assert source_of(config.packs[0], config) == Source()
    known = Source.at(git(project, "rev-parse", "HEAD"))
    for source in (known, Source()):
        told = refused(config, source)
        assert (told["kind"], told["pack"]) == ("no_git", "acme")
        assert "pip install -e" in told["remedy"]
    assert refused(asked(project), Source())["kind"] == "no_git"


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("from perfsuite import Gone\n", "old_front_door", "cannot import name 'Gone' from"),
        ("import perfsuite\nperfsuite.gone\n", "old_front_door", "has no attribute 'gone'"),
        ("import perfsuite.gone\n", "old_front_door", "No module named 'perfsuite.gone'"),
        (PACK.replace('source="', 'gone=1, source="'), "old_front_door", "argument 'gone'"),
        (PACK.replace("def perf_cases():", "def perf_cases(gone):"), "old_front_door", "hook"),
        ("import perfsuite_gone\n", "no_build", "No module named 'perfsuite_gone'"),
        ("raise ValueError('not today')\n", "no_build", "not today"),
    ],
)
def test_a_pack_that_cannot_be_listed_there_says_why(
    project: Path, text: str, kind: str, told: str
) -> None:
    old = Source.at(commit(project, acme=text))
    (project / "acme.py").write_text(PACK, encoding="utf-8")
    found = refused(asked(project), old)
    assert (found["kind"], told in found["why"]) == (kind, True)
    assert found["code"] == str(old)
    assert "\n" not in found["why"]


def test_of_several_packs_one_that_cannot_be_listed_stays_out(project: Path) -> None:
    second = PACK.replace("def double(", "def twice(").replace("[double]", "[twice]")
    old = Source.at(commit(project, other=f"import gone\n{second}"))
    (project / "other.py").write_text(second, encoding="utf-8")
    both = (str(project / "acme.py"), str(project / "other.py"))
    found = sides(Config(root=project, device="fake", only=both).chosen(), old)
    assert {name.partition(".")[0] for name in found.compared} == {"acme"}
    assert {each.kind for each in found.missing.values()} == {"no_build"}
    assert {name.partition(".")[0] for name in found.missing} == {"other"}


# Wheels.


def wheel_at(folder: Path, version: str, **modules: str) -> Path:
    """Write a wheel of a pack as ``pip wheel`` does."""
    info = f"acme_perf-{version}.dist-info"
    files = {f"{name.replace('__in__', '/')}.py": text for name, text in modules.items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: acme-perf\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = "[perfsuite]\nacme = acme_perf\n"
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{name},sha256={digest.decode()},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"acme_perf-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


PACKAGE = {"acme_perf": PACK.replace("import speed", "import acme_speed as speed")}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that wheels are installed into, as pip does it."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    # Other tests import a package of that name from elsewhere.
    for name in [each for each in sys.modules if each.partition(".")[0] == "acme_perf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(folder)]))
    return folder


def install(site: Path, wheel: Path) -> None:
    for old in site.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)


def installed(folder: Path, **fields: Any) -> Config:
    config = Config(root=folder, device="fake", only=("acme",), settings=FEW, **fields).chosen()
    return config.narrowed(config.variants, config.claims)


def test_a_wheel_is_known_by_its_record_and_another_is_unpacked_from_a_folder(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wheels = tmp_path / "wheels"
    old = wheel_at(wheels, "1.0", **PACKAGE, acme_speed=BEFORE)
    install(site, old)
    config = installed(tmp_path)
    (pack,) = config.packs
    before = source_of(pack, config)
    assert before.wheel
    assert (before.wheel.name, before.wheel.version) == ("acme-perf", "1.0")
    # Identical code needs no folder.
    assert sides(config, before).compared
    # Nor do pip's own files make a difference.
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--upgrade", "--quiet", "--target", site, old], check=True)
    assert "INSTALLER" in next(site.glob("*.dist-info/RECORD")).read_text("utf-8")
    assert is_same_code(source_of(pack, config), before)
    install(site, wheel_at(tmp_path / "new", "1.1", **PACKAGE, acme_speed=PLANTED))
    config = installed(tmp_path)
    assert not is_same_code(before, source_of(config.packs[0], config))
    told = refused(config, before)
    assert (told["kind"], told["code"]) == ("no_wheel", "acme-perf 1.0")
    assert "pip download --no-deps acme-perf==1.0 -d wheels" in told["remedy"]
    # The same version, built anew of other files, is another wheel.
    wheel_at(tmp_path / "rebuilt", "1.0", **PACKAGE, acme_speed=PLANTED)
    rebuilt = installed(tmp_path, wheels=(tmp_path / "none", tmp_path / "rebuilt"))
    assert refused(rebuilt, before)["kind"] == "no_wheel"
    unzipped = tmp_path / "folders" / "acme_perf-1.0"
    with zipfile.ZipFile(old) as packed:
        packed.extractall(unzipped)
    for folder in (wheels, unzipped.parent, unzipped):
        found = sides(installed(tmp_path, wheels=(folder,)), before)
        assert str(found.revision) == "acme-perf 1.0"
        assert len(found.compared) == 2
    config = replace(installed(tmp_path, wheels=(wheels,)), settings=PAIRS)
    beside = execute(replace(config, source=before), Log(), SERVERS)
    assert words(beside.run) == {"one": "same", "two": "slower"}


def test_a_wheel_that_leads_elsewhere_is_not_unpacked(tmp_path: Path, site: Path) -> None:
    config = None
    for number, name in enumerate(("../evil.py", "/evil.py", "a/../../evil.py")):
        wheels = tmp_path / f"wheels{number}"
        bad = wheel_at(wheels, "1.0", **PACKAGE, acme_speed=BEFORE)
        install(site, bad)
        config = config or installed(tmp_path)
        source = source_of(config.packs[0], config)
        install(site, wheel_at(tmp_path / "new", "1.1", **PACKAGE, acme_speed=PLANTED))
        with zipfile.ZipFile(bad, "a") as packed:
            packed.writestr(name, "raise SystemExit")
        told = refused(replace(config, wheels=(wheels,)), source)
        assert told["kind"] == "no_build"
        assert "a file of another folder" in told["why"]
        assert not [*tmp_path.rglob("evil.py")]


def test_what_is_installed_editable_is_no_wheel(project: Path, site: Path) -> None:
    """Its distribution lists other files, such as a finder."""
    install(site, wheel_at(project.parent / "w", "1.0", acme_speed=BEFORE))
    commit(project, acme_perf=PACKAGE["acme_perf"])
    config = Config(root=project, device="fake")
    pack = Pack(name="acme", origin="module:acme_perf@")
    assert source_of(pack, config).commit == git(project, "rev-parse", "HEAD")


# One code or another.


def test_sources_are_the_same_code_by_commit_tree_or_wheel() -> None:
    one = Source(commit="a" * 40, tree="1" * 40)
    wheel = Source(wheel=Wheel("acme", "1.0", "c0ffee"))
    for other, is_same in (
        (one, True),
        (Source.at("a" * 12), True),
        (Source.at("a" * 6), False),
        (Source.at("a" * 11 + "b"), False),
        (Source(commit="b" * 40, tree="1" * 40, is_changed=True), True),
        (Source(commit="b" * 40, tree="2" * 40), False),
        (Source(is_changed=True), False),
        (Source(), False),
        (wheel, False),
    ):
        assert is_same_code(one, other) is is_same
        assert is_same_code(other, one) is is_same
    assert is_same_code(wheel, structs.replace(wheel))
    for changed in (("beta", "1.0", "c0ffee"), ("acme", "1.1", "c0ffee"), ("acme", "1.0", "")):
        assert not is_same_code(wheel, Source(wheel=Wheel(*changed)))
    assert not is_same_code(Source(), Source())


# Another environment.


def test_an_environment_is_made_once_of_requirements(tmp_path: Path) -> None:
    wheel = wheel_at(tmp_path / "wheels", "1.0", acme_perf=PACK)
    place = f"'acme-perf @ {wheel.as_uri()}'"
    python = Path(python_of(place, tmp_path))
    assert [*python.parents[1].glob("lib/python*/site-packages/acme_perf-1.0.dist-info")]
    wheel.unlink()
    assert python_of(place, tmp_path) == str(python)
    with pytest.raises(UsageError, match=r"cannot be used: .*acme_perf"):
        python_of(place.replace("1.0", "2.0"), tmp_path)


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder and no requirement: "):
        python_of("triton=3", tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        python_of(str(tmp_path), tmp_path)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 3.9\n", encoding="utf-8")
    python.chmod(0o700)
    with pytest.raises(UsageError, match=r"has Python 3\.9, and perfsuite runs in Python 3"):
        python_of(str(tmp_path), tmp_path)


def test_a_run_beside_an_environment_goes_on_where_it_stopped(project: Path) -> None:
    place: dict[str, Any] = {"against_env": sys.prefix}
    whole = measure(project, **place)
    lines = whole.run_file.read_bytes().splitlines(keepends=True)
    first, *_, last = [n for n, line in enumerate(lines) if b'"kind":"result"' in line]
    whole.run_file.write_bytes(b"".join(lines[: first + 2]))
    assert last > first + 1
    resumed = measure(project, resume="always", **place)
    assert resumed.run.id == whole.run.id
    assert words(resumed.run) == words(whole.run)
    assert resumed.run.against == whole.run.against
    assert resumed.run.aside[0] in whole.run.aside


def test_a_broken_environment_is_named_and_not_this_one(project: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (site,) = env.glob("lib/python*/site-packages")
    # As where a library that a device's server imports does not load.
    broken = "import os, sys; os._exit(3) if 'server' in str(sys.orig_argv) else None\n"
    (site / "broken.pth").write_text(broken, encoding="utf-8")
    with pytest.raises(DeviceError, match="exit code 3") as caught:
        measure(project, against_env=str(env))
    assert caught.value.where.startswith(str(env / "bin" / "python"))
    assert "doctor" not in caught.value.remedy
