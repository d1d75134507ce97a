"""The priors, and which variant gets which."""

from __future__ import annotations

import pytest

from perfsuite.judge import noise
from perfsuite.judge.noise import NoisePrior, prior_for
from perfsuite.model import Regime

ALL = [*noise.BY_CLASS.values(), noise.ONE_CLOCK, noise.CPU]


def chosen(device: str = "cuda", work_class: str = "compute", **fields: object) -> NoisePrior:
    settings = {"regime": Regime.PACED, "time_us": 200.0, "has_cycles": True, **fields}
    return prior_for(device, work_class, **settings)  # type: ignore[arg-type]


def test_compute_follows_the_sm_clock_and_memory_does_not() -> None:
    assert (chosen().beta, chosen(work_class="memory").beta) == (1.0, 0.0)
    assert chosen(work_class="mixed").beta_sd > chosen().beta_sd


@pytest.mark.parametrize("regime", [Regime.PACED, Regime.SUSTAINED])
def test_two_clocks_are_less_noisy_than_one(regime: Regime) -> None:
    one = chosen(regime=regime, has_cycles=False)
    assert chosen(regime=regime).unit < one.unit
    assert one.beta == one.beta_sd == 0.0


def test_end_to_end_is_judged_by_time_alone() -> None:
    assert chosen(regime=Regime.END_TO_END) == noise.HOST
    assert chosen(has_cycles=False) == noise.ONE_CLOCK


def test_cpu_has_one_prior_whatever_the_work() -> None:
    assert chosen("cpu", "memory", has_cycles=False) == noise.CPU
    assert chosen("cpu", regime=Regime.END_TO_END) == noise.CPU


def test_transfers_keep_their_own_prior_without_cycles() -> None:
    assert chosen(work_class="transfer", has_cycles=False) == noise.BY_CLASS["transfer"]


def test_short_launches_are_noisier() -> None:
    short, long = chosen(work_class="memory", time_us=5.0), chosen(work_class="memory")
    assert short.between > long.between
    assert short.unit > long.unit
    assert short.beta == long.beta


@pytest.mark.parametrize("prior", ALL)
def test_no_prior_asks_for_a_threshold_beyond_its_gate(prior: NoisePrior) -> None:
    assert 2 * prior.threshold <= prior.gate
    assert 0 < prior.run <= prior.unit
    assert prior.between > 0
