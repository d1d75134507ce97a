"""Which product a device is, what keeps two results apart, and which code was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from against_data import commit, git
from msgspec.structs import replace

from perfsuite.boundary import DeviceError
from perfsuite.model import DeviceFacts, Pack
from perfsuite.store.git import code_digest, commit_of, remote_of
from perfsuite.store.sku import differs, sku_of

H200 = DeviceFacts(
    device="cuda",
    name="NVIDIA H200",
    unit="0123456789ab",
    identity={"vendor": "nvidia", "sm_count": "132", "memory_gib": "140", "mig": "off"},
    state={"ecc": "on", "enforced_power_limit_w": "700"},
    gpus=8,
    memory_bytes=150_109_880_320,
)
CPU = {"device": "cpu", "identity": {"vendor": "cpu", "cores": "2"}, "memory_bytes": 1 << 33}
BOARD = {**H200.identity, "board": "692-2G520-0282-001"}


@pytest.mark.parametrize(
    ("changed", "gpus", "slug"),
    [
        ({}, 1, "nvidia-h200"),
        ({}, 2, "nvidia-h200-x2"),
        ({"identity": BOARD}, 1, "nvidia-h200"),
        ({"identity": BOARD}, 2, "nvidia-h200-x2"),
        ({"identity": {"mig": " 1g.18gb "}}, 1, "nvidia-h200-mig-1g.18gb"),
        ({"name": "NVIDIA H100 80GB HBM3"}, 1, "nvidia-h100-80gb-hbm3"),
        ({"name": "Fake Device", "device": "fake"}, 1, "fake"),
        ({**CPU, "name": "AMD EPYC™ 7B12"}, 1, "cpu-amd-epyc-7b12-2c"),
        (
            {**CPU, "name": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"},
            1,
            "cpu-intel-xeon-platinum-8481c-2c",
        ),
    ],
)
def test_a_product_has_a_plain_name(changed: dict[str, object], gpus: int, slug: str) -> None:
    assert sku_of(replace(H200, **changed), gpus=gpus).slug == slug


def test_device_without_a_name_is_refused() -> None:
    with pytest.raises(DeviceError, match="'!'"):
        sku_of(replace(H200, name="!"))


def test_what_differs_is_named_where_both_sides_know_it() -> None:
    # A driver may report a little less memory.
    less = replace(H200, memory_bytes=149_700_000_000)
    assert differs(sku_of(less).facts, sku_of(H200).facts) == ""
    assert "memory_gib" not in sku_of(H200).facts
    # A board is a fact of a card: products have several.
    assert sku_of(replace(H200, identity=BOARD)) == sku_of(H200)
    half = sku_of(replace(H200, memory_bytes=H200.memory_bytes // 2))
    assert differs(sku_of(H200).facts, half.facts).startswith("memory was 136-152 GiB")
    assert "memory" not in sku_of(replace(H200, memory_bytes=0)).facts
    assert sku_of(replace(H200, memory_bytes=24 << 30)).facts["memory"] == "22-26 GiB"
    other = sku_of(replace(H200, identity={**H200.identity, "sm_count": "114"}))
    assert differs(sku_of(H200).facts, other.facts) == "sm count was 132 and is 114"
    assert differs({"ecc": "on", "mig": "on"}, H200.state) == ""
    said = "enforced power limit w was 500 and is 700"
    assert differs({"enforced_power_limit_w": "500", "ecc": "on"}, H200.state) == said


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "kernel.cu").write_text("one")
    (folder / ".gitignore").write_text("build")
    git(folder, "init")
    commit(folder)
    return folder


def test_an_edit_of_code_changes_the_digest_committed_or_not(project: Path) -> None:
    found = [code_digest(project, ())]
    data = ("pack/__init__.py", "pack/shapes/of.json", "pack/limits.toml")
    for name in ("src/kernel.cu", "src/new.py", "top.py", "gemm.hip", "tile.inl", *data):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("two")
        found.append(code_digest(project / "src", ()))
        commit(project)
        assert code_digest(project, ()) == found[-1]
    assert len(set(found)) == 9
    for name in ("README.md", "build/x.py", "reports/x.json", "pack/baselines/h200/acme.json"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("new")
    assert code_digest(project, ()) == found[-1], "no code, or ignored"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("git@github.com:own/na.me.git", "https://github.com/own/na.me"),
        ("ssh://git@host.org:2222/a/b/c.git", "https://host.org/a/b/c"),
        ("https://me:secret@host.org:8443/own/name/", "https://host.org:8443/own/name"),
        *((each, "") for each in ("/srv/x.git", "http://x.org/a/b", "git@alias:a/b", "")),
        *((f"https://x.org/{each}", "") for each in ("a", "a/b?c", "a/<b>", "../a/b", "a/b\nc")),
    ],
)
def test_a_remote_is_a_web_address_without_credentials(project: Path, url: str, told: str) -> None:
    git(project, "config", "remote.origin.url", url)
    assert remote_of(project, project / "src") == told
    git(project, "init", "src")
    assert remote_of(project, project / "src") == "", "the code is of another repository"


def test_packs_count_wherever_they_lie(project: Path) -> None:
    folder = project.parent / "other"
    folder.mkdir()
    edited = (project / "build" / "acme.py", folder / "perf_other.py")
    packs = (
        Pack(name="acme", origin=f"file:{edited[0]}"),
        Pack(name="other", origin=f"module:perf_other@{folder}"),
        Pack(name="installed", origin="module:perf_installed@"),
    )
    found = set()
    edited[0].parent.mkdir()
    for file in edited:
        for text in ("one", "two"):
            file.write_text(text)
            found.add(code_digest(project, packs))
    assert len(found) == 4
    moved = project.rename(project.parent / "moved")
    packs = (Pack(name="acme", origin=f"file:{moved}/build/acme.py"), *packs[1:])
    assert code_digest(moved, packs) in found
    assert code_digest(folder, ()) == "", "outside of git and without packs there is none"


def test_the_folder_decides_which_repository_is_meant(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = commit_of(project), code_digest(project, ())
    assert known[0][1] == ""
    assert commit_of(tmp_path) == ("", "")
    git(tmp_path, "init", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert (commit_of(project), code_digest(project, ())) == known
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    commit, why = commit_of(project)
    assert (commit, why[:51]) == ("", "the run has no commit: git describe: detected dubio")
