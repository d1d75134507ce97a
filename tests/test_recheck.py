"""Results that become wrong once they are timed, as a run tells of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PACK = Path(__file__).with_name("packs") / "later.py"
HONEST = {"writes", "returns", "clamps_in_place"}
CHANGED = {"changes_its_input", "sorts_its_input"}
CHEATING = CHANGED | {
    "wrong_later",
    "wrong_once_in_20",
    "nan_later",
    "left_out_later",
    "kept_by_address",
    "kept_from_the_last_call",
    "kept_on_the_host",
    "adds_in_place",
    "joins_nothing_later",
}
NEEDS_GPU = pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="needs a GPU")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[str, str]]:
    """Return how each variant of the pack ended in a run, and why."""
    place = tmp_path_factory.mktemp("project")
    options = (f"--perf-device={request.param}", f"--perf-pack={PACK}", "--perf-packs=later")
    command = (sys.executable, "-m", "pytest", "--perf", "-q", *options, "--perf-processes=3")
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    (told,) = place.glob("reports/*/verdict.json") or [pytest.fail(done.stdout + done.stderr)]
    assert done.returncode == 1
    found = json.loads(told.read_text(encoding="utf-8"))["variants"]
    return {
        each["variant"][len("later.later[how=") : -1]: (each["word"], each["reason"])
        for each in found
    }


@pytest.mark.parametrize("how", sorted(CHEATING))
def test_what_is_wrong_only_while_it_is_timed_is_wrong(
    ended: Mapping[str, tuple[str, str]], how: str
) -> None:
    word, reason = ended[how]
    assert word == "wrong"
    assert " launches" in reason
    assert ("changed their input" in reason) == (how in CHANGED)


@pytest.mark.parametrize("how", sorted(HONEST))
def test_what_is_right_is_not_called_wrong(ended: Mapping[str, tuple[str, str]], how: str) -> None:
    word, reason = ended[how]
    assert word in {"new", "disturbed"}, reason  # others may take this machine
