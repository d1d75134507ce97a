"""A server as a real process, driven by hand: it forks, reaps, and leaves with its controller."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from perfsuite.model import DeviceFacts
from perfsuite.workers import messages as wire
from perfsuite.workers.process import Site

LIMIT_S = 20
ENDING = tuple[int | None, bool]
DESCRIBE = wire.Call("describe", wire.raw(("fake", None)))


@contextmanager
def server(device: str = "fake") -> Iterator[tuple[subprocess.Popen[bytes], wire.Channel]]:
    ours, theirs = wire.pair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "perfsuite.workers.server", str(theirs.fileno()), device],
            pass_fds=[theirs.fileno()],
            env=Site(device=device).environment(),
            start_new_session=True,
        )
    with process, ours as control:
        assert answer(control, int) == process.pid
        yield process, control


def answer(control: wire.Channel, kind: Any) -> Any:
    done = control.receive(LIMIT_S)
    assert isinstance(done, wire.Done)
    return wire.read(done.value, kind)


def ask(control: wire.Channel, request: wire.Message, kind: Any) -> Any:
    control.send(request)
    return answer(control, kind)


@contextmanager
def worker(control: wire.Channel) -> Iterator[tuple[int, wire.Channel, IO[bytes]]]:
    ours, theirs = wire.pair()
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    with theirs:
        control.send(wire.Fork())
        control.send_handles(theirs.fileno(), output.fileno())
        pid = answer(control, int)
    with ours as link, output:
        yield pid, link, output


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], LIMIT_S)[0])


def test_a_server_forks_and_reaps_and_is_light() -> None:
    with server() as (process, control):
        assert ask(control, wire.Call("hello"), int) == process.pid
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        assert "libtorch" not in maps
        with worker(control) as (pid, link, _):
            assert ask(link, DESCRIBE, DeviceFacts).device == "fake"
            assert os.getsid(process.pid) == process.pid
            assert os.getpgid(pid) == pid
            link.close()
            assert ask(control, wire.Reap(pid, LIMIT_S), ENDING) == (0, False)
        with worker(control) as (pid, _, _):  # it does not leave
            assert ask(control, wire.Reap(pid), ENDING) == (-9, True)
        assert ask(control, wire.Reap(os.getpid()), ENDING) == (None, False)
        with worker(control) as (pid, link, output):
            link.send(wire.Call("describe", wire.raw(("nothing", None))))
            assert isinstance(link.receive(LIMIT_S), wire.Failed)
            ask(control, wire.Reap(pid, LIMIT_S), ENDING)
            output.seek(0)
            assert b"unknown device 'nothing'" in output.read()


@pytest.mark.parametrize("is_killed", [False, True])
def test_workers_leave_with_their_server_and_it_with_its_controller(*, is_killed: bool) -> None:
    with server() as (process, control), worker(control) as (pid, link, _):
        ask(link, DESCRIBE, DeviceFacts)  # it has asked the kernel by now
        pidfd = os.pidfd_open(pid)
        if is_killed:
            process.kill()
        else:
            control.close()
            assert process.wait(LIMIT_S) == 0
        assert has_ended(pidfd)
        os.close(pidfd)


def test_server_that_cannot_start_shows_why() -> None:
    child = subprocess.run(
        [sys.executable, "-P", "-m", "perfsuite.workers.server", "999", "fake"],
        env=Site(device="fake").environment(),
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert child.returncode == 1
    assert b"OSError" in child.stderr


def test_hash_seed_is_not_handed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert "PYTHONHASHSEED" not in Site(device="fake").environment()
