"""One end of a socket between our processes: a whole message within a time, or none.

Nothing here waits for the rest of a message longer than it was told to wait, whoever is at the
other end: a workload can write to its worker's socket, and any process can be stopped.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import Self

from perfsuite.boundary import MESSAGE_BYTES
from perfsuite.wire.coding import decode, encode, too_long
from perfsuite.wire.messages import Message

# A message comes behind its length.
_HEAD_BYTES = 4
_CHUNK_BYTES = 1 << 20
# For how long what is there already is read beyond the time: a sender may never pause.
_BURST_S = 0.01


class Channel:
    """Sends and receives messages; both raise OSError or EOFError when the other side is gone."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._begun = bytearray()

    @classmethod
    def at(cls, number: int) -> Self:
        """Return a channel of an open socket that was handed to this process."""
        return cls(socket.socket(fileno=number))

    @property
    def is_closed(self) -> bool:
        """Say whether this end was closed."""
        return self._end.fileno() < 0

    def fileno(self) -> int:
        """Return the socket's number, so that several can be waited for at once."""
        return self._end.fileno()

    def send(self, message: Message, limit_s: float | None = None) -> None:
        """Send a message; raises TimeoutError if the other side does not take it in time."""
        data = encode(message)
        self._put(memoryview(len(data).to_bytes(_HEAD_BYTES) + data), _end_of(limit_s))

    def receive(self, limit_s: float) -> Message | None:
        """Return the next message, None if it has not come as a whole in time.

        Raises PerfError for what is no message.
        """
        return self._received(time.monotonic() + limit_s)

    def await_message(self) -> Message:
        """Return the next message, however long it takes; raises PerfError like ``receive``."""
        message = self._received(None)
        assert message is not None  # noqa: S101 - there is no time limit
        return message

    def has_news(self, limit_s: float) -> bool:
        """Wait until more has come or the other side is gone; say whether it has."""
        return self._is_ready(select.POLLIN, time.monotonic() + limit_s)

    def send_handles(self, *handles: int) -> None:
        """Send open files behind a message that announces them."""
        socket.send_fds(self._end, [b"\0"], handles)

    def receive_handles(self, count: int) -> list[int]:
        """Return the open files that a message announced; raises OSError if they are not all."""
        self._is_ready(select.POLLIN, None)
        _, handles, *_ = socket.recv_fds(self._end, 1, count, socket.MSG_CMSG_CLOEXEC)
        if len(handles) < count:
            raise OSError(f"{len(handles)} of {count} open files arrived: too many are open here")
        return handles

    def close(self) -> None:
        """Close this end, which the other side notices."""
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _put(self, left: memoryview, deadline: float | None) -> None:
        while left:
            if not self._is_ready(select.POLLOUT, deadline):
                raise TimeoutError
            with suppress(BlockingIOError):
                left = left[self._end.send(left) :]

    def _received(self, deadline: float | None) -> Message | None:
        while missing := self._missing():
            is_over = deadline is not None and time.monotonic() > deadline + _BURST_S
            if is_over or not self._is_ready(select.POLLIN, deadline):
                return None
            with suppress(BlockingIOError):
                # Never more than this message: what follows may be open files.
                chunk = self._end.recv(min(missing, _CHUNK_BYTES))
                if not chunk:
                    raise EOFError
                self._begun += chunk
        data, self._begun = bytes(self._begun[_HEAD_BYTES:]), bytearray()
        return decode(data)

    def _missing(self) -> int:
        """Return how many bytes are known to be missing of the message that has begun."""
        if len(self._begun) < _HEAD_BYTES:
            return _HEAD_BYTES - len(self._begun)
        size = int.from_bytes(self._begun[:_HEAD_BYTES])
        if size > MESSAGE_BYTES:
            raise too_long(size)
        return _HEAD_BYTES + size - len(self._begun)

    def _is_ready(self, event: int, deadline: float | None) -> bool:
        if self.is_closed:
            raise OSError("this end is closed")
        poller = select.poll()
        poller.register(self._end, event)
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        return bool(poller.poll(None if left_s is None else 1e3 * left_s))


def pair() -> tuple[Channel, Channel]:
    """Return both ends of a new socket; one of them is for another process."""
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def _end_of(limit_s: float | None) -> float | None:
    return None if limit_s is None else time.monotonic() + limit_s
