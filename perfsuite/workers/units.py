"""The units of a run: one panel for each GPU, or for each set of GPUs."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple, TypeVar

from msgspec import structs

from perfsuite import model
from perfsuite.boundary import DeviceError, UsageError, from_environment, hidden, plain
from perfsuite.devices.protocol import automatic, listed
from perfsuite.packs.load import chosen_accelerator
from perfsuite.stats import Variance, grouped
from perfsuite.store.files import Closable
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Code, Setup, Sides, gang_unit

# Runs with another word here do not see each other's locks: for tests that measure nothing real.
VARIABLE = "PERFSUITE_LOCKS"
# Whoever was refused stays in the queue for good: as many are told who holds the unit.
_QUEUE = 4096
_PEER = struct.Struct("3i")  # process, user and group
# Where a process's start is among what follows its name in /proc/PID/stat.
STARTED = 19
POLL_S, PROGRAM_CHARACTERS = 0.5, 80
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
BUSY_LOAD = 0.25  # of the cores
LOAD = Path("/proc/loadavg")
# The kernel is asked so many times what runs, so many seconds apart: what ran before counts not.
LOOKS, LOOK_S = 15, 0.02
BUSY_PERCENT = 5.0
WARM_C = 80.0
T = TypeVar("T")
# What measures a panel's share, and how unwelcome an item is on a panel.
Measure = Callable[[Panel, Sequence[T]], None]
Rank = Callable[[T, Panel], int]
Packs = Sequence[model.Pack]
Variants = Sequence[model.Variant]

# A server of its own takes seconds to start: for fewer variants than these it does not pay.
MOST_COUNTING, FEWEST_EACH = 8, 8


class Found(NamedTuple):
    """A device and its GPUs, and panels of them whose servers start already, if any."""

    name: str
    gpus: tuple[model.Gpu, ...]
    panels: tuple[Panel, ...] = ()


def found(device: str) -> Found:
    """Return the device of the core that is meant, as far as no pack's is."""
    return Found(*automatic()) if device == "auto" else Found(device, listed(device))


def started(device: str, settings: model.Settings, stack: ExitStack) -> Found:
    """Return the device that is meant, its servers about to start; raises DeviceError."""
    here = found(device)
    setups = _setups(here.name, here.gpus, settings)
    return here._replace(panels=tuple(stack.enter_context(Panel(each)) for each in setups))


def _setups(device: str, gpus: Sequence[model.Gpu], settings: model.Settings) -> list[Setup]:
    """Return the units of one product, or the one device, without packs."""
    setup = Setup(device=device, slots=settings.processes, settings=settings)
    return [replace(setup, gpus=(gpu,)) for gpu in next(iter(products_of(gpus)), ())] or [setup]


def open_panels(
    device: str, packs: Packs, settings: model.Settings, stack: ExitStack, here: Found | None = None
) -> tuple[Panel, ...]:
    """Open panels on all units of one product, or on the one device named; raises DeviceError.

    Those that are ``here`` already are taken, if they are of these settings and of the core.
    """
    here = here or found(device)
    device, gpus, own = resolved(device, packs, here)
    panels = tuple(each for each in here.panels if each.setup.settings == settings and not own)
    if not panels:
        setups = _setups(device, gpus, settings)
        if own:
            owns = [structs.replace(own, units=(unit,)) for unit in own.units]
            setups = [replace(setups[0], accelerator=each) for each in owns]
        panels = tuple(stack.enter_context(Panel(each)) for each in setups)
    for panel in panels:
        panel.setup = replace(panel.setup, own=Code.of(packs))
        # A server sees its own unit only: how many there are is known here.
        panel.facts = structs.replace(panel.facts, gpus=len(panels) if gpus or own else 0)
    return panels


def resolved(
    device: str, packs: Packs, here: Found | None = None
) -> tuple[str, tuple[model.Gpu, ...], model.Accelerator | None]:
    """Return the name of the device that is meant, and its GPUs or the pack's device.

    ``auto`` takes the GPUs, else a device that a pack brings, else the CPU: a pack that is
    installed changes nothing where there are GPUs. Raises DeviceError where there is none.
    """
    name, gpus, _ = here or found(device)
    if (unit := model.built_in(name).unit) and not gpus:
        raise DeviceError(
            f"there is no {unit} on this machine, or its driver does not answer",
            where=f"--perf-device {name}",
            remedy="leave --perf-device out to measure on the CPU, or run perfsuite doctor",
        )
    own = None if gpus else chosen_accelerator(device, packs)
    if own and not own.units:
        what = f"this machine has no {own.name}, says the pack that brings it"
        raise DeviceError(what, where=f"--perf-device {own.name}", remedy="run perfsuite doctor")
    return own.name if own else name, gpus, own


def products_of(gpus: Sequence[model.Gpu]) -> tuple[tuple[model.Gpu, ...], ...]:
    """Return the GPUs by product, the first one's first: a run has one SKU."""
    return tuple(map(tuple, grouped(gpus, lambda gpu: gpu.name).values()))


def idle_gpus(panels: Sequence[Panel], gpus: Sequence[model.Gpu]) -> Iterator[str]:
    """Yield which GPUs of this node the run does not use: one run is of one SKU."""
    used = [gpu for panel in panels for gpu in panel.setup.gpus]
    device = panels[0].setup.device
    for others in products_of(gpus) if used else ():
        if others[0] not in used:
            uuids = ",".join(gpu.uuid for gpu in others)
            yield (
                f"{len(others)} x {others[0].name} not used: a run is of one SKU; for the other, "
                f"run with {model.built_in(device).visible}={uuids}"
            )


def measure_on(
    panels: Sequence[Panel],
    variants: Variants,
    measure: Measure[model.Variant],
    rank: Rank[model.Variant] = lambda *_: 0,
) -> None:
    """Share the variants out over the panels, then let gangs measure theirs on all units.

    Raises like ``share_out``.
    """
    share_out(panels, [variant for variant in variants if not variant.is_gang], measure, rank)
    gangs = [variant for variant in variants if variant.is_gang]
    if gangs:
        gangs.sort(key=lambda each: each.ranks)
        most = gangs[-1].ranks
        gpus = tuple(gpu for panel in panels for gpu in panel.setup.gpus)
        setup = replace(panels[0].setup, gpus=gpus, slots=most)
        with Panel(setup, _units(panels, most)) as panel:
            measure(panel, gangs)


def count_on(panels: Sequence[Panel], variants: Variants, measure: Measure[model.Variant]) -> None:
    """Share variants that are only counted out over the cores: nothing they do is timed."""
    many = min(MOST_COUNTING, (os.cpu_count() or 1) // 2, len(variants) // FEWEST_EACH)
    with ExitStack() as stack:
        if many > len(panels):
            setup = replace(panels[0].setup, slots=1)
            panels = [stack.enter_context(Panel(setup)) for _ in range(many)]
        share_out(panels, variants, measure)


def units_of(panels: Sequence[Panel], variants: Sequence[model.Variant]) -> dict[str, str]:
    """Return the names of all units that measure these variants, gangs' among them."""
    named = {panel.facts.unit: panel.facts.name for panel in panels}
    for ranks in sorted({variant.ranks for variant in variants if variant.is_gang}):
        units = _units(panels, ranks)
        named.setdefault(gang_unit(units), f"{len(set(units))} x {panels[0].facts.name}")
    return named


def boards_of(panels: Sequence[Panel], variants: Sequence[model.Variant]) -> dict[str, str]:
    """Return the boards of all units that measure these variants, of a gang each that is in it."""
    own = {panel.facts.unit: panel.facts.identity.get("board", "") for panel in panels}
    gangs = [_units(panels, n) for n in {variant.ranks for variant in variants if variant.is_gang}]
    return own | {gang_unit(units): " + ".join(sorted({own[u] for u in units})) for units in gangs}


def _units(panels: Sequence[Panel], ranks: int) -> list[str]:
    """Return the units of a gang's ranks; where there is no GPU, all are the machine."""
    return [panels[rank % len(panels)].facts.unit for rank in range(ranks)]


def share_out(
    panels: Sequence[Panel], items: Sequence[T], measure: Measure[T], rank: Rank[T] = lambda *_: 0
) -> None:
    """Let each panel measure its share: each item goes where its rank, then load is least.

    ``rank`` says how unwelcome an item is on a panel. Each panel has a thread; raises the first
    failure. An exception in this thread, Ctrl-C among them, stops all panels first.
    """
    shares: list[list[T]] = [[] for _ in panels]
    pairs = list(zip(panels, shares, strict=True))
    for item in items:
        costs = [(rank(item, panel), len(share)) for panel, share in pairs]
        shares[costs.index(min(costs))].append(item)
    with ThreadPoolExecutor(max_workers=len(panels)) as pool:
        futures = [pool.submit(measure, panel, share) for panel, share in pairs if share]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for panel in panels:
                panel.stop()
            raise


def spoilers(facts: model.DeviceFacts) -> tuple[list[str], list[str]]:
    """Return what would spoil a comparison now: what passes, and how the machine is set up."""
    passing, lasting = [], []
    cores, busy = len(os.sched_getaffinity(0)), statistics.median(_running() for _ in range(LOOKS))
    if busy > BUSY_LOAD * cores:
        passing.append(f"other work has busy threads ({busy} on {cores} cores); end it")
    governor = GOVERNOR.read_text("ascii").strip() if GOVERNOR.is_file() else "performance"
    if governor != "performance":
        lasting.append(f"CPU frequency governor {governor!r}; set it to 'performance'")
    watches = model.built_in(facts.device).watches
    for gpu in listed(facts.device) if watches else ():
        seen = resolve_name(watches)(gpu.uuid)
        lasting += [f"GPU {gpu.index}: {each}" for each in _limited(seen.identity(), seen.state())]
        doubts = _busy(seen.health(), seen.foreign_percent())
        passing += [f"GPU {gpu.index}: {each}" for each in doubts]
        seen.close()
    return passing, lasting


def _running() -> int:
    """Return how many threads run or wait for a core, but for this one."""
    time.sleep(LOOK_S)
    return int(LOAD.read_text("ascii").split()[3].partition("/")[0]) - 1


def _busy(health: model.Health, foreign_percent: float) -> Iterator[str]:
    """Yield what a GPU should not show while nothing of ours runs."""
    if foreign_percent > BUSY_PERCENT:
        yield f"{foreign_percent:.0f} % in use by others"
    if (health.temperature_c or 0) > WARM_C:
        yield f"{health.temperature_c:.0f} °C while idle; look at its cooling"
    if bad := [reason for reason in health.reasons if reason.startswith("hw_")]:
        yield f"slowed down by its hardware ({', '.join(bad)})"


def _limited(identity: Mapping[str, str], state: Mapping[str, str]) -> Iterator[str]:
    default, enforced = identity.get("default_power_limit_w"), state.get("enforced_power_limit_w")
    if default and enforced and enforced != default:
        yield f"power limit {enforced} W, by default {default} W: only alike runs are compared"


def lock(unit: str, wait_s: float = 0.0, tell: Callable[[str], object] = str) -> socket.socket:
    """Hold a unit (a GPU's or a machine's short key) for this process until the socket is closed.

    The lock is its name: no file is in its way, TMPDIR and users make no difference, and the
    kernel gives it back when the process dies, however it dies. Containers with a network of their
    own do not see it. Raises ``UsageError`` naming the holder when the unit is still taken after
    ``wait_s``; that it waits is told once.
    """
    key = hashlib.sha256(f"{from_environment(VARIABLE)}/{unit}".encode()).hexdigest()[:24]
    name, until, what = f"\0perfsuite-{key}", time.monotonic() + wait_s, ""
    while True:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind(name)
            held.listen(_QUEUE)
        except OSError as error:
            held.close()
            is_first, is_taken = not what, error.errno == errno.EADDRINUSE
            # It is asked once: whoever asks stays in its queue.
            what = what or f"device {unit!r} is taken by {_holder(name)}"
            longer = "longer " if wait_s else ""
            remedy = f"wait {longer}for that run with --perf-wait, stop it, or take another device"
            if not is_taken:
                what = f"device {unit!r} cannot be locked: {error.strerror}"
                remedy = "let this user make Unix sockets; a sandbox may forbid them"
            if not is_taken or time.monotonic() >= until:
                where = f"the socket @{name[1:]} in /proc/net/unix"
                raise UsageError(what, where=where, remedy=remedy) from error
            if is_first:
                tell(f"{what}; this run waits until that one ends")
            time.sleep(POLL_S)
        else:
            return held


def _holder(name: str) -> str:
    """Say which process holds the name, and since when it runs; a container may hide it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(1.0)
            asking.connect(name)
            told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return "an unknown process"
    process, user, _ = _PEER.unpack(told)
    found = f"process {process or 'unknown'}"
    with suppress(OSError, ValueError, IndexError):
        place = Path("/proc", str(process))
        first, second, *rest = place.joinpath("cmdline").read_text(errors="replace").split("\0")
        words = " ".join([Path(first).name, Path(second).name, *rest])
        program = plain(hidden(words).strip(), most=PROGRAM_CHARACTERS)
        ticks = place.joinpath("stat").read_text().rpartition(")")[2].split()[STARTED]
        ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - ago_s))
        found += f" ({program}, since {began})"
    return found if user == os.getuid() else f"{found} of user {user}"


class Panels(Closable):
    """The panels of one request's device, opened by its first run and locked until all are done.

    So two runs of a node never measure each other: the later one waits so long, and says so.
    """

    def __init__(self, wait_s: float = 0.0, tell: Callable[[str], object] = str) -> None:
        self._wait_s, self._tell = wait_s, tell
        # How long it had to wait, which is no part of a run.
        self.waited_s = 0.0
        self._stack = ExitStack()
        self._opened: tuple[Panel, ...] = ()
        self._settings: model.Settings | None = None
        self._begun: Future[Found] | None = None
        self.gpus: tuple[model.Gpu, ...] = ()

    def begin(self, device: str, settings: model.Settings) -> None:
        """Have servers start while packs are listed; of a pack's device they cannot be known."""
        if device == "auto" or device in model.BUILT_IN_DEVICES:
            pool = ThreadPoolExecutor(1)
            self._begun = pool.submit(started, device, settings, self._stack)
            # It imports scipy, which a verdict needs: half a second that listing leaves.
            pool.submit(Variance(1.0, 1.0).reach, 0.5)
            pool.shutdown(wait=False)

    def of(
        self, device: str, packs: Packs, settings: model.Settings, sides: Sides
    ) -> tuple[Panel, ...]:
        """Return the panels, for a run that compares these sides, or none; raises DeviceError.

        Device and packs are the same in all runs; a run that was resumed may have other settings.
        """
        if self._settings != settings:
            if self._opened:
                self.close()
            here = self._begun.result() if self._begun else found(device)
            self._opened = open_panels(device, packs, settings, self._stack, here)
            for panel in {*here.panels} - {*self._opened}:
                panel.close()
            started = time.monotonic()
            for panel in self._opened:
                self._stack.enter_context(lock(panel.facts.unit, self._wait_s, self._tell))
            self.waited_s = time.monotonic() - started
            self._settings, self.gpus = settings, here.gpus
        for panel in self._opened:
            panel.compare(sides)
        return self._opened

    def close(self) -> None:
        """End the servers, and let other runs have the device."""
        wait([self._begun] if self._begun else [])
        self._opened, self._settings, self._begun = (), None, None
        self._stack.close()
