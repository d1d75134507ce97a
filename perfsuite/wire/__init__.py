"""The messages between panel, server and worker: tagged JSON of frozen dataclasses, no pickle."""

from __future__ import annotations

from typing import TypeVar

from perfsuite.wire.channel import Channel, pair
from perfsuite.wire.coding import decode, encode
from perfsuite.wire.messages import (
    Check,
    Checked,
    Describe,
    Described,
    Exited,
    Failed,
    Finish,
    Finished,
    Fork,
    Forked,
    Hello,
    Job,
    Measure,
    Measured,
    Message,
    Ping,
    Prepare,
    Prepared,
    Progress,
    Ready,
    Reap,
    Rival,
    Start,
    Traced,
    TraceOne,
)

__all__ = [
    "Channel",
    "Check",
    "Checked",
    "Describe",
    "Described",
    "Exited",
    "Failed",
    "Finish",
    "Finished",
    "Fork",
    "Forked",
    "Hello",
    "Job",
    "Measure",
    "Measured",
    "Message",
    "Ping",
    "Prepare",
    "Prepared",
    "Progress",
    "Ready",
    "Reap",
    "Reply",
    "Rival",
    "Start",
    "TraceOne",
    "Traced",
    "decode",
    "encode",
    "pair",
]

Reply = TypeVar("Reply", bound=Message)
