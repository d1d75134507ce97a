"""Messages arrive as they were sent, and nothing else does."""

from __future__ import annotations

import math
import socket
from typing import Any

import pytest

from perfsuite.boundary import PerfError, plain
from perfsuite.engine.trace import Anatomy
from perfsuite.model import Block, Code, Evidence, Health, Sampling, Settings, Status, TracedKernel
from perfsuite.workers import messages as wire

LIMIT_S = 20
JOB = wire.Job(
    pack="memory",
    origin="file:/packs/memory.py",
    case="copy",
    axes={"n": 1024, "impl": "plain", "share": 0.5, "flag": True, "whole": 2.0},
    device="fake",
    settings=Settings(rounds=2),
    rival={"n": 1},
)
EVIDENCE = Evidence(
    slot=1,
    seed=7,
    blocks=(Block(time_us=(1.0, 2.5), cycles=(3.0,), health=Health(reasons=("idle",))),),
    exact={"peak_bytes": 4096.0},
)
ANATOMY = Anatomy(
    (TracedKernel(name="f", count=2, duration_us=1.5, grid=(4, 1, 1), registers=32),),
    (Code(name="f", ptx="ab", facts={"registers": 32.0}),),
    {"ab": "ret;"},
    "because",
)


@pytest.mark.parametrize(
    ("step", "given", "value"),
    [
        ("start", JOB, None),
        ("check", True, None),
        ("prepare", Sampling(3, 2), None),
        ("finish", None, (EVIDENCE, EVIDENCE)),
        ("trace", (JOB, 3), ANATOMY),
    ],
)
def test_what_a_step_takes_and_gives_arrives_as_it_was_sent(
    step: str, given: Any, value: Any
) -> None:
    takes, gives = wire.STEPS[step]
    call = wire.decode(wire.encode(wire.Call(step, wire.raw(given))))
    done = wire.decode(wire.encode(wire.Done(step, wire.raw(value))))
    assert isinstance(call, wire.Call)
    assert isinstance(done, wire.Done)
    assert (wire.read(call.given, takes), wire.read(done.value, gives)) == (given, value)
    if step == "start":
        axes = wire.read(call.given, takes).axes.values()
        assert [type(each) for each in axes] == [int, str, float, bool, float]


def test_the_rest_of_a_message_is_waited_for_no_longer_than_was_said() -> None:
    left, theirs = socket.socketpair()
    data = wire.encode(wire.Progress("check"))
    with wire.Channel(left) as ours, theirs:
        theirs.sendall(len(data).to_bytes(4) + data[:5])
        assert ours.receive(0.01) is None
        theirs.sendall(data[5:] + b"\0\0")
        assert ours.receive(LIMIT_S) == wire.Progress("check")
        assert ours.receive(0) is None
        theirs.close()
        with pytest.raises(EOFError):
            ours.receive(LIMIT_S)


def test_what_is_too_long_or_is_not_taken_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = wire.pair()
    with ours, theirs, pytest.raises(TimeoutError):
        ours.send(wire.Progress("x" * (8 << 20)), 0.01)
    left, other = socket.socketpair()
    with wire.Channel(left) as ours, other:
        other.sendall(b"\xff\0\0\0")
        with pytest.raises(PerfError, match="message of 4080 MiB; the limit is 256 MiB"):
            ours.receive(LIMIT_S)
    monkeypatch.setattr("perfsuite.workers.messages.MESSAGE_BYTES", 1 << 20)
    with pytest.raises(PerfError, match="message of 2 MiB; the limit is 1 MiB"):
        wire.encode(wire.Progress("x" * (2 << 20)))


def test_texts_that_arrive_are_plain() -> None:
    told = wire.decode(wire.encode(wire.Failed(Status.ERROR, "red \x1b[31m \u202e\r\x7f\nµ")))
    assert told == wire.Failed(Status.ERROR, "red \ufffd[31m \ufffd\ufffd\ufffd\nµ")
    kernel = TracedKernel(name="\x1bf", count=1, duration_us=1.5, grid=(4, 1, 1))
    sent = wire.Done("trace", wire.raw(Anatomy((kernel,), texts={"ab": "ret;\x00"})))
    done = wire.decode(wire.encode(sent))
    assert isinstance(done, wire.Done)
    (found,) = wire.read(done.value, Anatomy).kernels
    assert (found.name, found.grid) == ("\ufffdf", (4, 1, 1))
    wire.encode(wire.Failed(Status.ERROR, plain("half \ud800")))


@pytest.mark.parametrize(
    "data",
    [b"", b"[" * 100_000, b'{"type":' + b"[" * 5000, b"[]", b"{}", b'{"type":"Nobody"}', b"\xff",
     b'{"type":"Reap"}'],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(PerfError, match="damaged message"):
        wire.decode(data)


class Version(str):  # as torch has one
    """Text of a type of its own."""

    __slots__ = ()


class Scalar(float):  # as numpy has them
    """A number of a type of its own."""

    __slots__ = ()


def test_values_travel_as_plain_ones_or_not_at_all() -> None:
    odd = Evidence(slot=0, seed=0, artefact=Version("2.0"), exact={"bytes": Scalar(3.0)})
    (found,) = wire.read(wire.raw((odd,)), tuple[Evidence, ...])
    assert found == Evidence(slot=0, seed=0, artefact="2.0", exact={"bytes": 3.0})
    with pytest.raises(TypeError, match="of type object cannot travel"):
        wire.raw(object())
    bad = Evidence(slot=0, seed=0, blocks=(Block(time_us=(1.0, math.nan)),))
    with pytest.raises(PerfError, match="time_us"):
        wire.read(wire.raw((bad,)), tuple[Evidence, ...])


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("a\tb\nc", 99, "a\tb\nc"),
        ("red \x1b[31m\x00", 99, "red \ufffd[31m\ufffd"),
        ("left \u202e turn", 99, "left \ufffd turn"),
        ("1\u202f000 ok", 99, "1\u202f000 ok"),
        ("a" * 50 + "b" * 50, 20, "a" * 10 + " [80 characters left out] " + "b" * 10),
    ],
)
def test_text_of_cases_is_made_plain(text: str, most: int, kept: str) -> None:
    assert plain(text, most=most) == kept
