"""The load by others, from a made-up /proc; a GPU's readings put together."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from perfsuite.devices import load
from perfsuite.devices.load import Load, Spent
from perfsuite.devices.nvml import HealthWatch, together
from perfsuite.model import Health

TWO = frozenset({0, 1})


def share(busy_s: float, own_s: float, *, cores: frozenset[int] = TWO) -> float | None:
    """Return the foreign load of a second in which one core is ours."""
    return Load(cores, used=1).foreign_percent(Spent(5.0, 0.0, 0.0), Spent(6.0, busy_s, own_s))


def test_what_fits_on_the_core_left_free_is_no_load() -> None:
    assert share(2.0, 1.0) == 0


def test_what_takes_our_core_counts_in_percent_of_it() -> None:
    assert share(2.0, 0.5) == pytest.approx(50)
    assert share(4.0, 0.5, cores=frozenset(range(4))) == pytest.approx(50)


def test_a_short_time_has_no_share() -> None:
    busy = Load(TWO, used=1)
    assert busy.foreign_percent(Spent(0.0, 0.0, 0.0), Spent(0.05, 0.1, 0.0)) is None
    assert busy.foreign_percent(None, Spent(0.05, 0.1, 0.0)) is None


def process(proc: Path, pid: int, parent: int, ticks: int, *children: int) -> None:
    """Write what /proc tells of a process; its name is chosen to confuse."""
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (task / "children").write_text(" ".join(map(str, children)))
    times = f"{ticks} 0 {ticks} 0"
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} {'0 ' * 9}{times} 20 0")


def test_own_processes_are_not_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PROC", tmp_path)
    # controller 7 has the server (this test's parent) and, as that has, a worker that just ended
    process(tmp_path, 7, 1, 100, os.getppid(), 99)
    process(tmp_path, os.getppid(), 7, 10)
    (tmp_path / "stat").write_text(
        "cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 100 0 50 7 7 1 1 0 0 0\ncpu1 100 0 0 7 7 0 0 9 0 0\n"
        "cpu2 9999 0 0 0 0 0 0 0 0 0\nintr 5\n"
    )
    now = Load(TWO, used=1).now()
    assert now is not None
    assert now.busy_s == pytest.approx(261 / load.TICKS_PER_S)
    assert now.own_s == pytest.approx(220 / load.TICKS_PER_S)


def test_a_kernel_that_does_not_tell_is_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PROC", tmp_path)
    assert Load(TWO, used=1).now() is None


def test_readings_are_put_together_by_their_worst() -> None:
    first = Health(power_w=100.0, temperature_c=40.0, sm_clock_mhz=1980.0, reasons=("a",))
    second = Health(power_w=300.0, temperature_c=50.0, sm_clock_mhz=1500.0, reasons=("b", "a"))
    whole = together([first, second])
    assert (whole.power_w, whole.temperature_c, whole.sm_clock_mhz) == (200.0, 50.0, 1500.0)
    assert whole.reasons == ("a", "b")
    assert together([]) == Health()


def test_the_thread_reads_while_a_block_is_measured_and_ends() -> None:
    is_read = threading.Event()

    def read() -> Health:
        is_read.set()
        return Health(power_w=1.0)

    watch = HealthWatch(read)
    with watch.watching():
        assert is_read.wait(10)
    watch.close()
    assert watch.health().power_w == 1.0
    watch.forget()
    assert watch.health() == Health()
