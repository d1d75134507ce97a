"""A worker's conversation with its panel, held inside this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from perfsuite.boundary import (
    CaseError,
    DeviceError,
    DisturbedError,
    PackError,
    PerfError,
    WrongResultError,
)
from perfsuite.devices.fake import FakeDevice
from perfsuite.devices.protocol import Gang
from perfsuite.model import Settings, Status
from perfsuite.workers import messages as wire
from perfsuite.workers.server import Worker

PACKS = Path(__file__).parent / "packs"
LIMIT_S = 20
SETTINGS = Settings(rounds=2, samples=4, settle_s=0.1)


def job(pack: str, case: str, **axes: str | int) -> wire.Job:
    return wire.Job(
        pack=pack,
        origin=f"file:{PACKS / pack}.py",
        case=case,
        axes=axes,
        device="fake",
        settings=SETTINGS,
        seed=11,
        slot=2,
    )


@contextmanager
def conversation(*requests: wire.Message) -> Iterator[tuple[Worker, wire.Channel]]:
    """A worker in this very process whose requests all lie in its socket already."""
    ours, theirs = wire.pair()
    with ours, theirs:
        for request in requests:
            ours.send(request)
        yield Worker(theirs), ours


def heard(connection: wire.Channel) -> list[wire.Message]:
    messages = []
    while (message := connection.receive(0)) is not None:
        messages.append(message)
    return messages


def test_variant_is_answered_step_by_step() -> None:
    requests = (wire.Check(), wire.Prepare(), wire.Measure(), wire.Measure(), wire.Finish())
    with conversation(wire.Start(job("steady", "double", n=100)), *requests) as (worker, link):
        worker.run()
        answers = heard(link)
    steps = [type(each) for each in answers if not isinstance(each, wire.Progress)]
    measured = [wire.Measured, wire.Measured]
    assert steps == [wire.Ready, wire.Checked, wire.Prepared, *measured, wire.Finished]
    assert answers[1] == wire.Progress("build")


def test_evidence_names_slot_seed_and_start() -> None:
    requests = (wire.Prepare(), wire.Measure(), wire.Finish())
    with conversation(wire.Start(job("steady", "double", n=100)), *requests) as (worker, link):
        worker.run()
        finished = heard(link)[-1]
    assert isinstance(finished, wire.Finished)
    assert (finished.evidence.slot, finished.evidence.seed) == (2, 11)
    assert finished.evidence.phases_s["start"] > 0
    assert len(finished.evidence.blocks) == 1


def test_device_is_described() -> None:
    with conversation(wire.Describe("fake")) as (worker, link):
        worker.run()
        (answer,) = heard(link)
    assert isinstance(answer, wire.Described)
    assert answer.facts.device == "fake"


def test_unknown_case_is_named_with_its_pack() -> None:
    with conversation(wire.Start(job("steady", "missing"))) as (worker, _):
        with pytest.raises(Exception, match="'steady' has no case 'missing'") as caught:
            worker.run()
        assert worker.failure(caught.value).status is Status.ERROR


def test_wrong_result_is_told_from_an_error() -> None:
    start = wire.Start(job("nasty", "fail", how="wrong"))
    with conversation(start, wire.Prepare()) as (worker, _):
        with pytest.raises(WrongResultError) as caught:
            worker.run()
        assert worker.failure(caught.value).status is Status.WRONG


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (WrongResultError("off by one"), Status.WRONG, "off by one"),
        (DisturbedError("too hot"), Status.DISTURBED, "too hot"),
        (CaseError("no workload\nsecond line"), Status.ERROR, "no workload"),
        (DeviceError("no such device"), Status.ERROR, "no such device"),
        (ValueError("bad\nworse"), Status.ERROR, "ValueError: bad"),
        (MemoryError(), Status.ERROR, "MemoryError"),
    ],
)
def test_failure_is_one_line(error: Exception, status: Status, reason: str) -> None:
    with conversation() as (worker, _):
        assert worker.failure(error) == wire.Failed(status, reason)


class LostDevice(FakeDevice):
    """A device whose context does not survive the first error."""

    def synchronize(self) -> None:
        """Report the error again and again, as CUDA does."""
        raise DeviceError("an illegal memory access was encountered")


def test_device_that_stays_broken_makes_a_crash_of_an_error() -> None:
    with conversation() as (worker, _):
        worker._device = LostDevice()
        failed = worker.failure(ValueError("launch failed"))
    assert failed.status is Status.CRASHED
    assert failed.reason == (
        "ValueError: launch failed (the device is lost: an illegal memory access was encountered)"
    )


def test_message_out_of_order_is_refused() -> None:
    with conversation(wire.Measure()) as (worker, _), pytest.raises(Exception, match="Measure"):
        worker.run()


def test_panel_that_is_gone_ends_the_worker() -> None:
    with conversation(wire.Start(job("steady", "double", n=100))) as (worker, link):
        link.close()
        with pytest.raises((OSError, EOFError)):
            worker.run()


def rank_job(case: str, **axes: str | int) -> wire.Job:
    return replace(job("gang", case, **axes), rank=1, ranks=2, rendezvous="nowhere")


def test_rank_serves_one_variant_after_the_other_until_it_is_let_go() -> None:
    steps = (wire.Prepare(), wire.Measure(), wire.Finish())
    start = wire.Start(rank_job("lag", ranks=2, us=100))
    with conversation(start, *steps, start, *steps) as (worker, link):
        running = threading.Thread(target=worker.run)
        running.start()
        answers: list[wire.Message] = []
        while sum(isinstance(each, wire.Finished) for each in answers) < 2:
            answer = link.receive(LIMIT_S)
            assert answer is not None
            answers.append(answer)
        link.close()
        running.join(LIMIT_S)
        assert not running.is_alive()
    phases = [each.phase for each in answers if isinstance(each, wire.Progress)]
    assert phases[:3] == ["join", "load", "build"]
    assert phases.count("join") == 1
    evidences = [each.evidence for each in answers if isinstance(each, wire.Finished)]
    assert min(min(evidences[1].samples("time_us"))) == pytest.approx(200, rel=0.05)


def test_rank_that_is_asked_out_of_order_says_so() -> None:
    steps = (wire.Prepare(), wire.Finish(), wire.Measure())
    start = wire.Start(rank_job("lag", ranks=2, us=100))
    refusal = pytest.raises(PerfError, match="between two variants cannot answer Measure")
    with conversation(start, *steps) as (worker, _), refusal:
        worker.run()


def test_failed_rank_stays_until_it_is_let_go() -> None:
    with conversation(wire.Start(rank_job("missing"))) as (worker, link):
        with pytest.raises(PackError):
            worker.run()
        lingering = threading.Thread(target=worker.linger)
        lingering.start()
        lingering.join(0.1)
        assert lingering.is_alive()
        link.close()
        lingering.join(LIMIT_S)
        assert not lingering.is_alive()


def test_failed_rank_does_not_wait_for_work_in_flight() -> None:
    with conversation() as (worker, _):
        worker._device, worker._gang = LostDevice(), Gang(0, 2)
        assert worker.failure(ValueError("bad")) == wire.Failed(Status.ERROR, "ValueError: bad")
