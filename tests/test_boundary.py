"""What comes in from outside: ids, paths, stored files, and words of a command line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from perfsuite.boundary import FILE_BYTES, PerfError, StoreError, hidden, is_plain, plain, user_name
from perfsuite.run.config import kept_words
from perfsuite.store.files import inside, read, replace_file, unpacked

LONG = "x" * 200


def test_what_an_id_is(tmp_path: Path) -> None:
    for name in ("20261121-103000-3f2a", "sm_90a", "a.json", "a+b", "A", LONG):
        assert inside(tmp_path, name).name == name
    for name in ("", ".", "..", ".x", "-x", "/x", "a/b", "a\\b", "a\n", "a b", "\xe9", LONG * 2):
        with pytest.raises(StoreError, match="cannot be a file name"):
            inside(tmp_path, name, "index.html")


def test_a_link_out_of_a_folder_is_refused_and_one_inside_it_is_not(tmp_path: Path) -> None:
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    (home / "real").mkdir(parents=True)
    for name, to in (("home/away", out), ("home/near", home / "real"), ("named", home)):
        (tmp_path / name).symlink_to(to)
    with pytest.raises(StoreError, match=r"leads out of the folder(?s:.*)do: remove the link"):
        inside(home, "away", "index.html")
    replace_file(inside(home, "near", "index.html"), b"here")
    assert (home / "real" / "index.html").read_bytes() == b"here"
    # The folder that a person names may be a link itself.
    assert inside(tmp_path / "named", "new", "index.html").parent.name == "new"


def test_a_link_in_a_files_place_is_replaced(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "index.html"
    precious.write_text("precious")
    path.symlink_to(precious)
    (tmp_path / f".index.html.{os.getpid()}.tmp").symlink_to(precious)
    replace_file(path, b"page")
    assert (precious.read_text(), path.read_text()) == ("precious", "page")
    assert not path.is_symlink()


def test_what_is_no_file_or_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge, packed = (tmp_path / name for name in ("huge", "run.jsonl.gz"))
    with huge.open("wb") as file:
        file.truncate(FILE_BYTES + 1)
    for path, why in ((tmp_path, "directory"), (huge, "more than 512")):
        with pytest.raises(OSError, match=why):
            read(path)
    monkeypatch.setattr("perfsuite.store.files.FILE_BYTES", 1 << 20)
    packed.write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(StoreError, match="holds more than 1 MiB"):
        unpacked(packed)


KEPT = (
    (
        "--perf --perf-tier nightly --perf-packs a.py",
        "--perf --perf-tier=nightly --perf-packs=a.py",
    ),
    ("--perf -k eager -mslow cases tests/x.py::y", "--perf -k eager -mslow cases tests/x.py::y"),
    ("--perf -o perf_history=postgresql://ci:s3cret@host/db", "--perf"),
    ("--perf --override-ini=perf_history=sqlite:///s3cret", "--perf"),
    (
        "--perf -o perf_counters=true -o junit_suite_name=s3cret",
        "--perf --override-ini=perf_counters=true",
    ),
    ("--perf --cloud-token=s3cret --cloud-token s3cret cases", "--perf cases"),
    ("-q -p no:x -n 2 --perf -Ws3cret -operf_history=s3cret", "-p no:x --perf"),
    ("--perf --perfume s3cret --perf-unknown=s3cret", "--perf"),
    ("--perf --perf-select", "--perf --perf-select="),
    ("--perf --perf-resume --perf-wait=10m x", "--perf --perf-resume --perf-wait=10m"),
    ("--perf -operf_seed=7", "--perf --override-ini=perf_seed=7"),
)


@pytest.mark.parametrize(("given", "kept"), KEPT)
def test_what_is_kept_of_a_command_line(given: str, kept: str) -> None:
    assert " ".join(kept_words(given.split(" "), ["cases", "tests/x.py::y"])) == kept


def test_passwords_in_a_build_command_are_hidden() -> None:
    for text in (
        "pip install https://s3cret@host/x",
        "psql postgresql://ci:s3/cr@et@host/db && make",
        "PASSWORD='s3cret and more' make",
        "make --auth-token=s3cret --api-key s3cret",
        "curl https://host/x?password=s3cret&y=1",
    ):
        told = hidden(text)
        assert "***" in told
        assert not any(part in told for part in ("s3", "cret", "and more"))
    for harmless in ("tokens=128,impl=triton", "git+https://github.com/a/b@main", "n>=1e6"):
        assert hidden(harmless) == harmless


def test_nothing_that_a_terminal_obeys_is_told() -> None:
    class Odd(str):
        """A class of text that says of itself what it is not."""

        __slots__ = ()

        def isprintable(self) -> bool:
            return True

    assert type(plain(Odd("a\x1b"))) is str
    assert plain(Odd("a\x1b\tb\nc 1\u202f000")) == "a\ufffd\tb\nc 1\u202f000"
    assert plain("a" * 50 + "b" * 50, most=20) == "a" * 10 + " [80 characters left out] " + "b" * 10
    told = str(PerfError("built:\n\x1b[2Jgone \x9b \u202e", where="/a\x07b", remedy="\x1b]0;x\x07"))
    assert is_plain(told)
    assert told.count("\n") == 3
    assert len(str(PerfError("x" * 1_000_000, remedy="read it"))) < 5000


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no name")])
def test_who_has_no_name_accepts_under_a_number(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def unknown() -> str:
        raise error

    monkeypatch.setattr("getpass.getuser", unknown)
    assert user_name() == f"uid {os.getuid()}"
