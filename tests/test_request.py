"""From options to a request: settings, policy, selection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from options_data import OPTIONS

from perfsuite.boundary import UsageError
from perfsuite.run.config import against_of, choose, policy_of, request_of, settings_of

PACK = Path(__file__).parent / "packs" / "steady.py"


def test_more_processes_also_confirm() -> None:
    settings = settings_of(replace(OPTIONS, processes=9, seed=3, check=True))
    assert (settings.processes, settings.confirm_processes) == (9, 9)
    assert settings.seed == 3
    assert settings.check_only


def test_the_judge_is_told_its_own_words_only() -> None:
    policy = policy_of(replace(OPTIONS, fail_on=("slower", "wrong"), gate=0.05))
    assert policy.fail_on == ("slower",)
    assert policy.gate == 0.05


def test_what_is_accepted_fails_by_no_verdict() -> None:
    assert policy_of(replace(OPTIONS, accept=True)).fail_on == ()


def test_an_unknown_word_to_fail_on_is_named() -> None:
    with pytest.raises(UsageError, match="'sluggish'") as caught:
        policy_of(replace(OPTIONS, fail_on=("slower", "sluggish")))
    assert "timed-out" in caught.value.remedy


def test_a_request_holds_the_chosen_variants_only() -> None:
    options = replace(OPTIONS, pack=(PACK,), packs=("steady",), tier="nightly", select="n>=200")
    chosen = choose(options)
    assert {variant.axes["n"] for variant in chosen.variants} == {200, 400}
    request = request_of(options, chosen, variants=chosen.variants[:1], claims=())
    assert request.variants == chosen.variants[:1]
    assert request.folder == Path("/project/.perfsuite")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"against": "main", "check": True}, "cannot go with --perf-check"),
        ({"against": "main", "accept": True}, "cannot go with --perf-accept"),
        ({"against_build": "make"}, "say nothing by themselves"),
        ({"repo": Path("/")}, "say nothing by themselves"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        against_of(replace(OPTIONS, **given))
