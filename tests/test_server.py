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
from typing import IO

import pytest

from perfsuite.workers import messages as wire
from perfsuite.workers.process import Site

LIMIT_S = 20


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
        assert control.receive(LIMIT_S) == wire.Hello(process.pid)
        yield process, control


def ask(control: wire.Channel, request: wire.Message) -> wire.Message:
    control.send(request)
    answer = control.receive(LIMIT_S)
    assert answer is not None
    return answer


@contextmanager
def worker(control: wire.Channel) -> Iterator[tuple[int, wire.Channel, IO[bytes]]]:
    ours, theirs = wire.pair()
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    with theirs:
        control.send(wire.Fork())
        control.send_handles(theirs.fileno(), output.fileno())
        forked = control.receive(LIMIT_S)
    assert isinstance(forked, wire.Forked)
    with ours as link, output:
        yield forked.pid, link, output


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], LIMIT_S)[0])


def test_server_says_hello_when_pinged() -> None:
    with server() as (process, control):
        assert ask(control, wire.Ping()) == wire.Hello(process.pid)


def test_worker_answers_and_leaves_with_nothing_left_to_do() -> None:
    with server() as (_, control), worker(control) as (pid, link, _):
        answer = ask(link, wire.Describe("fake"))
        assert isinstance(answer, wire.Described)
        assert ask(control, wire.Reap(pid, LIMIT_S)) == wire.Exited(pid, 0)


def test_worker_leads_a_session_of_its_own() -> None:
    with server() as (process, control), worker(control) as (pid, link, _):
        ask(link, wire.Describe("fake"))
        assert os.getsid(process.pid) == process.pid
        assert os.getpgid(pid) == pid


def test_worker_that_does_not_leave_is_killed() -> None:
    with server() as (_, control), worker(control) as (pid, _, _):
        assert ask(control, wire.Reap(pid)) == wire.Exited(pid, -9, is_forced=True)


def test_reaping_a_stranger_does_nothing() -> None:
    with server() as (_, control):
        assert ask(control, wire.Reap(os.getpid())) == wire.Exited(os.getpid(), None)


def test_output_of_a_failing_worker_is_in_its_file() -> None:
    with server() as (_, control), worker(control) as (pid, link, output):
        assert isinstance(ask(link, wire.Describe("nothing")), wire.Failed)
        ask(control, wire.Reap(pid, LIMIT_S))
        output.seek(0)
        assert b"unknown device 'nothing'" in output.read()


def test_server_and_workers_leave_when_the_controller_is_gone() -> None:
    with server() as (process, control), worker(control) as (pid, _, _):
        pidfd = os.pidfd_open(pid)
        control.close()
        assert process.wait(LIMIT_S) == 0
        assert has_ended(pidfd)
        os.close(pidfd)


def test_workers_die_with_their_server() -> None:
    with server() as (process, control), worker(control) as (pid, link, _):
        ask(link, wire.Describe("fake"))  # it has asked the kernel by now
        pidfd = os.pidfd_open(pid)
        process.kill()
        assert has_ended(pidfd)
        os.close(pidfd)


def test_server_loads_neither_torch_nor_packs_for_the_fake_device() -> None:
    with server() as (process, _):
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")


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
