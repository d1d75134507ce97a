"""A worker's conversation with its panel, held inside this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfsuite.boundary import (
    CaseError,
    DeviceError,
    DisturbedError,
    PackError,
    PerfError,
    WrongResultError,
)
from perfsuite.devices.protocol import Gang
from perfsuite.model import Evidence, Settings, Status
from perfsuite.testing.fake import FakeDevice
from perfsuite.workers import messages as wire
from perfsuite.workers.server import Worker

PACKS = Path(__file__).parent / "packs"
LIMIT_S = 20
SETTINGS = Settings(rounds=2, samples=4, settle_s=0.1)
STEPS = ("prepare", "measure", "finish")


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


def start(pack: str, case: str, **axes: str | int) -> wire.Call:
    return wire.Call("start", wire.raw(job(pack, case, **axes)))


@contextmanager
def conversation(*requests: wire.Message | str) -> Iterator[tuple[Worker, wire.Channel]]:
    """A worker in this very process whose requests all lie in its socket already."""
    ours, theirs = wire.pair()
    with ours, theirs:
        for request in requests:
            ours.send(wire.Call(request) if isinstance(request, str) else request)
        yield Worker(theirs), ours


def ended(worker: Worker, link: wire.Channel) -> list[wire.Message]:
    """Run a worker to the end of its requests, and return what it said."""
    link._end.shutdown(socket.SHUT_WR)
    worker.run()
    said: list[wire.Message] = []
    while (message := link.receive(0)) is not None:
        said.append(message)
    return said


def value_of(message: wire.Message) -> Any:
    assert isinstance(message, wire.Done)
    return wire.read(message.value, wire.STEPS[message.step][1])


def test_variant_is_answered_step_by_step() -> None:
    check = wire.Call("check", wire.raw(True))
    begun = start("steady", "double", n=100)
    with conversation(begun, check, "prepare", "measure", "finish") as (worker, link):
        said = ended(worker, link)
    done = [each.step for each in said if isinstance(each, wire.Done)]
    assert done == ["start", "check", "prepare", "measure", "finish"]
    assert said[1] == wire.Progress("build")
    (evidence,) = value_of(said[-1])
    assert isinstance(evidence, Evidence)
    assert (evidence.slot, evidence.seed, len(evidence.blocks)) == (2, 11, 1)
    assert evidence.phases_s["start"] > 0


def test_device_is_described() -> None:
    with conversation(wire.Call("describe", wire.raw(("fake", None)))) as (worker, link):
        (answer,) = ended(worker, link)
    assert value_of(answer).device == "fake"


@pytest.mark.parametrize(
    ("requests", "error", "status", "said"),
    [
        ([start("steady", "missing")], PackError, Status.ERROR, "'steady' has no case 'missing'"),
        ([start("nasty", "fail", how="wrong"), "prepare"], WrongResultError, Status.WRONG, "rel"),
        (["measure"], PerfError, Status.ERROR, "not started"),
        (["dance"], PerfError, Status.ERROR, "cannot answer"),
        ([wire.Progress("over")], PerfError, Status.ERROR, "cannot answer"),
    ],
)
def test_what_a_worker_cannot_do_is_its_failure(
    requests: list[wire.Message | str], error: type[PerfError], status: Status, said: str
) -> None:
    with conversation(*requests) as (worker, _):
        with pytest.raises(error, match=said) as caught:
            worker.run()
        assert worker.failure(caught.value).status is status


class LostDevice(FakeDevice):
    """A device whose context does not survive the first error."""

    def synchronize(self) -> None:
        """Report the error again and again, as CUDA does."""
        raise DeviceError("an illegal memory access was encountered")


LOST = "ValueError: bad (the device is lost: an illegal memory access was encountered)"


@pytest.mark.parametrize(
    ("error", "status", "reason", "device", "gang"),
    [
        (WrongResultError("off by one"), Status.WRONG, "off by one", None, None),
        (DisturbedError("too hot"), Status.DISTURBED, "too hot", None, None),
        (CaseError("no workload\nsecond line"), Status.ERROR, "no workload", None, None),
        (ValueError("bad\nworse"), Status.ERROR, "ValueError: bad", None, None),
        (MemoryError(), Status.ERROR, "MemoryError", None, None),
        (ValueError("bad"), Status.CRASHED, LOST, LostDevice(), None),
        # A rank does not wait for work in flight.
        (ValueError("bad"), Status.ERROR, "ValueError: bad", LostDevice(), Gang(0, 2)),
    ],
)
def test_failure_is_one_line(
    error: Exception, status: Status, reason: str, device: FakeDevice | None, gang: Gang | None
) -> None:
    with conversation() as (worker, _):
        worker._device, worker._gang = device, gang
        assert worker.failure(error) == wire.Failed(status, reason)


def test_panel_that_is_gone_ends_the_worker() -> None:
    with conversation(start("steady", "double", n=100), "prepare") as (worker, link):
        link.close()
        with pytest.raises(OSError, match="Broken pipe"):
            worker.run()


def rank(case: str, **axes: str | int) -> wire.Call:
    own = replace(job("gang", case, **axes), rank=1, ranks=2, rendezvous="nowhere")
    return wire.Call("start", wire.raw(own))


def test_rank_serves_one_variant_after_the_other_until_it_is_let_go() -> None:
    begun = rank("lag", ranks=2, us=100)
    with conversation(begun, *STEPS, begun, *STEPS) as (worker, link):
        said = ended(worker, link)
    phases = [each.phase for each in said if isinstance(each, wire.Progress)]
    assert phases[:3] == ["join", "load", "build"]
    assert phases.count("join") == 1
    (evidence,) = value_of(said[-1])
    assert min(min(evidence.samples("time_us"))) == pytest.approx(200, rel=0.05)


def test_failed_rank_stays_until_it_is_let_go() -> None:
    with conversation(rank("missing")) as (worker, link):
        with pytest.raises(PackError):
            worker.run()
        lingering = threading.Thread(target=worker.linger)
        lingering.start()
        lingering.join(0.1)
        assert lingering.is_alive()
        link.close()
        lingering.join(LIMIT_S)
        assert not lingering.is_alive()
