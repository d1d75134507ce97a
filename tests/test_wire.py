"""Messages arrive as they were sent, and nothing else does."""

from __future__ import annotations

import math
import socket

import pytest

from perfsuite.boundary import PerfError, plain
from perfsuite.model import (
    Block,
    Code,
    DeviceFacts,
    Evidence,
    Health,
    Settings,
    Status,
    TracedKernel,
)
from perfsuite.workers import messages as wire

LIMIT_S = 20
JOB = wire.Job(
    pack="memory",
    origin="file:/packs/memory.py",
    case="copy",
    axes={"n": 1024, "impl": "plain", "share": 0.5, "flag": True, "whole": 2.0},
    device="fake",
    settings=Settings(rounds=2),
    seed=7,
    slot=1,
)
EVIDENCE = Evidence(
    slot=1,
    seed=7,
    blocks=(Block(time_us=(1.0, 2.5), cycles=(3.0,), health=Health(reasons=("idle",))),),
    exact={"peak_bytes": 4096.0},
)
MESSAGES: list[wire.Message] = [
    wire.Ping(),
    wire.Hello(1),
    wire.Fork(),
    wire.Forked(2),
    wire.Reap(2, 0.5),
    wire.Exited(2, -11, is_forced=True),
    wire.Exited(2, None),
    wire.Describe("fake"),
    wire.Described(DeviceFacts(device="fake", name="x", unit="u", identity={"vendor": "v"})),
    wire.Start(JOB),
    wire.Ready(),
    wire.Check(),
    wire.Checked(),
    wire.Prepare(),
    wire.Progress("build"),
    wire.Prepared(),
    wire.Measure(),
    wire.Measured(),
    wire.Finish(),
    wire.Finished(EVIDENCE),
    wire.TraceOne(JOB, 3),
    wire.Traced(
        (TracedKernel(name="f", count=2, duration_us=1.5, grid=(4, 1, 1), registers=32),),
        (Code(name="f", ptx="ab", facts={"registers": 32.0}),),
        {"ab": "ret;"},
        "because",
    ),
    wire.Failed(Status.WRONG, "because"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_message_arrives_as_it_was_sent(message: wire.Message) -> None:
    assert wire.decode(wire.encode(message)) == message


def test_every_kind_of_message_is_covered_above() -> None:
    assert {type(message) for message in MESSAGES} == set(wire.Message.__args__)


def test_axis_values_keep_their_types() -> None:
    start = wire.decode(wire.encode(wire.Start(JOB)))
    assert isinstance(start, wire.Start)
    assert {name: type(value) for name, value in start.job.axes.items()} == {
        "n": int,
        "impl": str,
        "share": float,
        "flag": bool,
        "whole": float,
    }


def test_messages_travel_over_a_connection() -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        ours.send(wire.Progress("check"))
        assert theirs.await_message() == wire.Progress("check")


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


def test_what_the_other_side_does_not_take_is_not_sent_for_ever() -> None:
    ours, theirs = wire.pair()
    with ours, theirs, pytest.raises(TimeoutError):
        ours.send(wire.Progress("x" * (8 << 20)), 0.01)


def test_a_message_that_is_too_long_is_refused_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, theirs = socket.socketpair()
    with wire.Channel(left) as ours, theirs:
        theirs.sendall(b"\xff\0\0\0")
        with pytest.raises(PerfError, match="message of 4080 MiB; the limit is 256 MiB"):
            ours.receive(LIMIT_S)
    monkeypatch.setattr("perfsuite.workers.messages.MESSAGE_BYTES", 1 << 20)
    with pytest.raises(PerfError, match="message of 2 MiB; the limit is 1 MiB"):
        wire.encode(wire.Progress("x" * (2 << 20)))


def test_texts_that_arrive_are_plain() -> None:
    told = wire.decode(wire.encode(wire.Failed(Status.ERROR, "red \x1b[31m \u202e\r\x7f\nµ")))
    assert told == wire.Failed(Status.ERROR, "red \ufffd[31m \ufffd\ufffd\ufffd\nµ")
    kernel = TracedKernel(name="\x1bf", count=1, duration_us=1.5, grid=(4, 1, 1))
    traced = wire.decode(wire.encode(wire.Traced((kernel,), texts={"ab": "ret;\x00"})))
    assert isinstance(traced, wire.Traced)
    assert (traced.kernels[0].name, traced.kernels[0].grid) == ("\ufffdf", (4, 1, 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 100_000,
        b'["Ping",' + b"[" * 5000,
        b"[]",
        b"{}",
        b'["Nobody",{}]',
        b'["Hello",{}]',
        b"\xff",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(PerfError, match="damaged message"):
        wire.decode(data)


class Version(str):  # as torch has one
    """Text of a type of its own."""

    __slots__ = ()


class Scalar(float):  # as numpy has them
    """A number of a type of its own."""

    __slots__ = ()


def test_values_of_libraries_own_types_travel_as_plain_ones() -> None:
    evidence = Evidence(slot=0, seed=0, artefact=Version("2.0"), exact={"bytes": Scalar(3.0)})
    finished = wire.decode(wire.encode(wire.Finished(evidence)))
    assert finished == wire.Finished(Evidence(slot=0, seed=0, artefact="2.0", exact={"bytes": 3.0}))


def test_what_cannot_travel_is_named() -> None:
    with pytest.raises(TypeError, match="of type object cannot travel"):
        wire.encode(wire.Progress(object()))  # type: ignore[arg-type]  # the mistake under test


def test_nan_among_samples_is_refused() -> None:
    evidence = Evidence(slot=0, seed=0, blocks=(Block(time_us=(1.0, math.nan)),))
    with pytest.raises(PerfError, match="time_us"):
        wire.decode(wire.encode(wire.Finished(evidence)))


def test_text_of_cases_is_made_plain() -> None:
    assert plain("a\tb\nc") == "a\tb\nc"
    assert plain("red \x1b[31m\x00") == "red \ufffd[31m\ufffd"
    assert plain("left \u202e turn") == "left \ufffd turn"
    assert plain("1\u202f000 ok") == "1\u202f000 ok"
    wire.encode(wire.Failed(Status.ERROR, plain("half \ud800")))


def test_a_long_text_loses_its_middle_and_says_so() -> None:
    assert plain("a" * 50 + "b" * 50, most=20) == "a" * 10 + " [80 characters left out] " + "b" * 10
