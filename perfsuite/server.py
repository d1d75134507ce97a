"""The process that imports the heavy libraries once and forks a fresh worker for each job."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from perfsuite import wire, worker
from perfsuite.device.speed import SPEED
from perfsuite.isolation import KILL_LIMIT_S, adopt_orphans, end_orphans, has_exited

# No pack: workers must be fresh. Triton only where there is a GPU: without one its interpreter may
# be asked for later, by an environment variable that it reads when it is imported. Of Dynamo's 800
# modules compiled functions, dispatch modes and some gradients make use, seconds in each process.
PRELOAD = {
    "cuda": ("torch", "triton", "perfsuite.device.cuda", "torch._dynamo"),
    "cpu": ("torch", "perfsuite.device.cpu"),
}

_PR_SET_PDEATHSIG = 1


class Server:
    """Forks, kills and reaps the workers of one slot, as its control socket asks."""

    def __init__(self, control: wire.Channel, *, before_fork: Callable[[], object]) -> None:
        self._control = control
        self._before_fork = before_fork
        self._workers: set[int] = set()

    def run(self) -> None:
        """Answer requests until the controller is gone, then leave no process behind."""
        try:
            while True:
                self._control.send(self._answer(self._control.await_message()))
        except (EOFError, OSError):
            pass
        finally:
            for pid in tuple(self._workers):
                self._reap(wire.Reap(pid))

    def _answer(self, request: wire.Message) -> wire.Message:
        match request:
            case wire.Fork():
                return self._fork()
            case wire.Reap():
                return self._reap(request)
            case _:
                return wire.Hello(os.getpid())

    def _fork(self) -> wire.Forked:
        link, output = self._control.receive_handles(2)
        server = os.getpid()
        self._before_fork()
        pid = os.fork()
        if pid == 0:
            self._become_worker(server, link, output)
        self._workers.add(pid)
        # The worker's death must show as end of file on its socket: keep no copy of it here.
        os.close(link)
        os.close(output)
        return wire.Forked(pid)

    def _become_worker(self, server: int, link: int, output: int) -> NoReturn:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # it died before the line above
                os._exit(1)
            self._control.close()
            for stream in (1, 2):
                os.dup2(output, stream)
            os.close(output)
            worker.serve(wire.Channel.at(link))
        finally:
            os._exit(1)

    def _reap(self, request: wire.Reap) -> wire.Exited:
        pid = request.pid
        if pid not in self._workers:
            return wire.Exited(pid, None)
        is_forced = not has_exited(pid, request.grace_s)
        # While it is not waited for, its id cannot be another's: kill its group only now.
        _kill_group(pid)
        if not has_exited(pid, KILL_LIMIT_S):
            return wire.Exited(pid, None, is_forced)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._workers.discard(pid)
        # As a subreaper the server inherits what a dead worker started, even in other sessions.
        end_orphans(self._workers)
        return wire.Exited(pid, code, is_forced)


def _kill_group(pid: int) -> None:
    # A worker that was forked a moment ago may not lead its group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _hash_triton() -> None:
    """Let Triton hash its own files, which each process does anew before its first kernel.

    It reads some 200 MB and takes 0.7 s; the forked workers inherit the result.
    """
    cache = sys.modules.get("triton.runtime.cache")
    key = getattr(cache, "triton_key", None)
    if key is not None:
        key()


def main() -> None:
    """Serve the control socket whose number is the first argument, for the device named second.

    Of a device that a pack brings, the others are its folder and what is to be imported for it.
    """
    control = wire.Channel.at(int(sys.argv[1]))
    folder, *own = sys.argv[3:] or [""]
    sys.path += [folder] if folder else []
    for module in (*PRELOAD.get(sys.argv[2], ()), *own):
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    _hash_triton()
    if sys.argv[2] == "cuda":
        importlib.import_module("perfsuite.device.stopwatch").compile_ahead()
    adopt_orphans()
    # What is imported now is shared with the workers; their collector need not touch it.
    gc.collect()
    gc.freeze()
    control.send(wire.Hello(os.getpid()))
    Server(control, before_fork=SPEED.slowed if sys.argv[2] == "cpu" else int).run()


if __name__ == "__main__":
    main()
