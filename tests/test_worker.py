"""A worker's conversation with its panel, held inside this process; and how messages arrive."""

from __future__ import annotations

import importlib
import math
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfsuite.boundary import (
    CaseError,
    DeviceError,
    DisturbedError,
    PerfError,
    WrongResultError,
    plain,
)
from perfsuite.devices.protocol import Gang
from perfsuite.engine.trace import Anatomy
from perfsuite.model import Axes, Block, Code, Evidence, Settings, Status, TracedKernel
from perfsuite.testing.fake import FakeDevice
from perfsuite.workers import messages as wire
from perfsuite.workers import process
from perfsuite.workers.server import Late, Worker, types_of

LIMIT_S = 20


def test_a_server_imports_what_a_worker_had_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from functools import cache\n@cache\ndef key():\n    return 1\n"
    (tmp_path / "slow_to_import.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    late = Late(["slow_to_import", "no_such_module", "slow_to_import:key", "slow_to_import:none"])
    for imports in (False, True):
        late.catch_up()
        assert "slow_to_import" not in sys.modules
        if not (worker := os.fork()):
            if imports:
                importlib.import_module("slow_to_import")
            late.tell()
            os._exit(0)
        os.waitpid(worker, 0)
    late.catch_up()
    slow = sys.modules["slow_to_import"]
    assert slow.key.cache_info().currsize == 0
    slow.key()
    late.tell()
    slow.key.cache_clear()
    late.catch_up()
    assert slow.key.cache_info().currsize == 1
    del sys.modules["slow_to_import"]
    late.tell()
    late.catch_up()
    assert "slow_to_import" not in sys.modules  # once


def value_of(message: wire.Message | None) -> Any:
    assert isinstance(message, wire.Done)
    return wire.read(message.value, types_of(message.step)[1])


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
        (MemoryError(), Status.ERROR, "MemoryError", None, None),
        (ValueError("bad"), Status.CRASHED, LOST, LostDevice(), None),
        # A rank does not wait for work in flight.
        (ValueError("bad\nworse"), Status.ERROR, "ValueError: bad", LostDevice(), Gang(0, 2)),
    ],
)
def test_failure_is_one_line(
    error: Exception, status: Status, reason: str, device: FakeDevice | None, gang: Gang | None
) -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        worker = Worker(theirs, bool)
        worker._device, worker._gang = device, gang
        assert worker.failure(error) == wire.Failed(status, reason)


def test_a_rank_that_failed_stays_until_it_is_let_go() -> None:
    ours, theirs = wire.pair()
    worker = Worker(theirs, bool)
    worker._gang = Gang(1, 2)
    lingering = threading.Thread(target=worker.linger)
    with theirs:
        lingering.start()
        lingering.join(0.1)
        assert lingering.is_alive()
        ours.close()
        lingering.join(LIMIT_S)
    assert not lingering.is_alive()


def test_what_a_step_takes_and_gives_arrives_as_it_was_sent() -> None:
    axes: Axes = {"n": 1024, "impl": "plain", "share": 0.5, "flag": True, "whole": 2.0}
    job = wire.Job(
        pack="memory",
        origin="file:memory.py",
        case="copy",
        axes=axes,
        device="fake",
        settings=Settings(rounds=2),
        seed=11,
        slot=2,
    )
    given = (job, 3)
    found = Anatomy(
        (TracedKernel(name="f", count=2, duration_us=1.5, grid=(4, 1, 1), registers=32),),
        (Code(name="f", ptx="ab", facts={"registers": 32.0}),),
        {"ab": "ret;" * 20_000},  # more than a packet holds
        "because",
    )
    call = arrived(wire.Call("trace", wire.raw(given)))
    assert isinstance(call, wire.Call)
    told = wire.read(call.given, types_of(call.step)[0])
    assert told == given
    assert [type(each) for each in told[0].axes.values()] == [int, str, float, bool, float]
    assert value_of(arrived(wire.Done(wire.raw(found), "trace"))) == found


def test_what_is_too_long_or_is_not_taken_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        assert ours.receive(0.01) is None
        sent = wire.Progress("x" * 30_000)
        with pytest.raises(TimeoutError):
            any(map(ours.send, [sent] * 1000, [0.01] * 1000))
        monkeypatch.setattr("perfsuite.workers.messages.MESSAGE_BYTES", 1 << 20)
        with pytest.raises(PerfError, match="message of 2 MiB; the limit is 1 MiB"):
            ours.send(wire.Progress("x" * (2 << 20)))
        ours.close()
        with pytest.raises(EOFError):
            all(map(theirs.receive, [LIMIT_S] * 1000))


def arrived(message: wire.Message) -> wire.Message | None:
    ours, theirs = wire.pair()
    with ours, theirs:
        ours.send(message)
        return theirs.receive(LIMIT_S)


def test_texts_that_arrive_are_plain() -> None:
    kernel = TracedKernel(name="\x1bf", count=1, duration_us=1.5, grid=(4, 1, 1))
    found = value_of(
        arrived(wire.Done(wire.raw(Anatomy((kernel,), texts={"ab": "ret;\x00"})), "trace"))
    )
    assert (found.kernels[0].name, found.kernels[0].grid) == ("\ufffdf", (4, 1, 1))
    assert arrived(wire.Failed(Status.ERROR, plain("half \ud800")))


class Version(str):  # as torch has one
    """Text of a type of its own."""

    __slots__ = ()


def test_values_travel_as_plain_ones_or_not_at_all() -> None:
    odd = Evidence(slot=0, seed=0, artefact=Version("2.0"), exact={"bytes": np.float64(3.0)})
    (found,) = wire.read(wire.raw((odd,)), tuple[Evidence, ...])
    assert found == Evidence(slot=0, seed=0, artefact="2.0", exact={"bytes": 3.0})
    with pytest.raises(TypeError, match="of type object is not plain data"):
        wire.raw(object())
    bad = Evidence(slot=0, seed=0, blocks=(Block(time_us=(1.0, math.nan)),))
    with pytest.raises(PerfError, match="time_us"):
        wire.read(wire.raw((bad,)), tuple[Evidence, ...])
    for garbage, said in ((b"[" * 9999, "recursion"), (b"\xff", "can't decode")):
        with pytest.raises(PerfError, match=said):
            wire.read(garbage, Any)


def test_a_process_whose_pages_are_not_counted_yet_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for fields, is_alive in (("3000 0 0 1 0 40 0", True), ("0 0 0 0 0 0 0", False)):
        monkeypatch.setattr(Path, "read_text", lambda *_, said=fields, **__: said)
        assert bool(process.resident_bytes(1)) == is_alive
