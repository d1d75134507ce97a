"""Tries the planted faults of tests/planted.toml: each must make the tests it names fail.

Run ``python tools/planted.py``, with the ids of faults or ``--room`` to try a few. Each fault is
put into a copy of the checkout's tracked files, wherever its piece of source text is by now.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "planted.toml"
LIMIT_S = 120.0
# Python takes a module's cached code for current by the file's time: no two writes share one.
TIMES = itertools.count(int(time.time()))
PASSED, FAILED, TIMED_OUT = 0, 1, 124


def main() -> int:
    """Try the faults that are asked for and return the exit status."""
    parser = argparse.ArgumentParser(description="Try the planted faults of tests/planted.toml.")
    parser.add_argument("ids", nargs="*", help="the faults to try; all, if none is named")
    parser.add_argument("--room", help="try the faults of this room alone")
    parser.add_argument("--sound", action="store_true", help="run the tests without faults, too")
    asked = parser.parse_args()
    faults = tomllib.loads(FAULTS.read_text())["fault"]
    unknown = set(asked.ids) - {fault["id"] for fault in faults}
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = [
        fault
        for fault in faults
        if (not asked.ids or fault["id"] in asked.ids) and asked.room in {None, fault["room"]}
    ]
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = copied(Path(folder))
        texts = {path: read(path) for path in (copy / "perfsuite").rglob("*") if path.is_file()}
        bad = [fault["id"] for fault in chosen if not is_fine(copy, texts, fault)]
        for tests in {tuple(fault["tests"]) for fault in chosen} if asked.sound else ():
            if run(copy, tests) != PASSED:
                print(f"FAILS ALONE  {' '.join(tests)}", flush=True)
                bad.append(" ".join(tests))
    print(f"{len(chosen)} faults tried, {len(bad)} to look at")
    return 1 if bad else 0


def copied(folder: Path) -> Path:
    """Copy the checkout's tracked files into ``folder`` and return it."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def read(path: Path) -> str:
    """Return a file's text, none of a file that is not text."""
    return path.read_bytes().decode(errors="ignore")


def is_fine(copy: Path, texts: dict[Path, str], fault: dict[str, Any]) -> bool:
    """Try a fault, print what came of it and say whether that is as the list says."""
    places = [path for path, text in texts.items() for _ in range(text.count(fault["find"]))]
    start = time.monotonic()
    if len(places) != 1:
        word = f"anchor lost: found {len(places)} times"
    else:
        write(places[0], texts[places[0]].replace(fault["find"], fault["replace"]))
        status = run(copy, fault["tests"])
        write(places[0], texts[places[0]])
        words = {PASSED: "NOT CAUGHT", FAILED: "caught", TIMED_OUT: "TIMED OUT"}
        word = words.get(status, f"NO ANSWER: pytest ended with {status}")
    expected = "caught" if fault.get("caught", True) else "NOT CAUGHT"
    known = " as expected" if word == expected != "caught" else ""
    seconds = time.monotonic() - start
    print(f"{word}{known}  {fault['room']}/{fault['id']}  {seconds:.1f} s", flush=True)
    return word == expected


def write(path: Path, text: str) -> None:
    """Write a file with a time of its own."""
    path.write_text(text)
    moment = next(TIMES)
    os.utime(path, (moment, moment))


def run(copy: Path, tests: list[str] | tuple[str, ...]) -> int:
    """Run tests in the copy and return pytest's exit status, or ``TIMED_OUT``."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            return TIMED_OUT


if __name__ == "__main__":
    raise SystemExit(main())
