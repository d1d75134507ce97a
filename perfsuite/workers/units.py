"""The units of a run: one panel for each GPU, or for each set of GPUs."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TypeVar

from msgspec import structs

from perfsuite.boundary import DeviceError, UsageError, from_environment
from perfsuite.model import (
    GPU_DEVICE,
    HOST_DEVICE,
    Accelerator,
    Arm,
    DeviceFacts,
    Gpu,
    Pack,
    Settings,
    Variant,
    built_in,
)
from perfsuite.packs.load import chosen_accelerator
from perfsuite.store.files import Closable
from perfsuite.workers.panel import Panel, gang_unit
from perfsuite.workers.process import Code, Site

# Runs with another word here do not see each other's locks: for tests that measure nothing real.
VARIABLE = "PERFSUITE_LOCKS"
# Whoever was refused stays in the queue for good: as many are told who holds the unit.
_QUEUE = 4096
_PEER = struct.Struct("3i")  # process, user and group
T = TypeVar("T")

# A server of its own takes seconds to start: for fewer variants than these it does not pay.
MOST_COUNTING, FEWEST_EACH = 8, 8


@dataclass(frozen=True, slots=True)
class Desk:
    """A panel with what its device says of itself."""

    panel: Panel
    facts: DeviceFacts


def _anywhere(_item: object, _desk: Desk) -> int:
    return 0


def open_desks(
    device: str, packs: Sequence[Pack], settings: Settings, stack: ExitStack
) -> tuple[Desk, ...]:
    """Open panels on all units of one product, or on the one device named; raises DeviceError.

    A unit is locked while its panel is open, so that two runs of a node never measure each other.
    """
    device, gpus, own = resolved(device, packs)
    site = Site(
        device=device,
        accelerator=own,
        slots=settings.processes,
        settings=settings,
        origins={pack.name: pack.origin for pack in packs if not pack.error},
        kernels=tuple(kernel for pack in packs for kernel in pack.kernels),
    )
    sites = [replace(site, gpus=(gpu,)) for gpu in next(iter(products_of(gpus)), ())]
    if own:
        owns = [structs.replace(own, units=(unit,)) for unit in own.units]
        sites = [replace(site, accelerator=each) for each in owns]
    # A server sees its own unit only: how many there are is known here.
    count = len(sites)
    desks = []
    for each in sites or [site]:
        panel = stack.enter_context(Panel(each))
        facts = structs.replace(panel.facts(), gpus=count)
        stack.enter_context(UnitLock(facts.unit))
        desks.append(Desk(panel, facts))
    return tuple(desks)


def resolved(device: str, packs: Sequence[Pack]) -> tuple[str, tuple[Gpu, ...], Accelerator | None]:
    """Return the name of the device that is meant, and its GPUs or the pack's device.

    ``auto`` takes the GPUs, else a device that a pack brings, else the CPU: a pack that is
    installed changes nothing where there are GPUs. Raises DeviceError where there is none.
    """
    gpus = _gpus(device)
    if device == GPU_DEVICE and not gpus:
        raise DeviceError(
            "there is no NVIDIA GPU on this machine, or its driver does not answer",
            where="--perf-device cuda",
            remedy="leave --perf-device out to measure on the CPU, or run perfsuite doctor",
        )
    own = None if gpus else chosen_accelerator(device, packs)
    if own and not own.units:
        what = f"this machine has no {own.name}, says the pack that brings it"
        raise DeviceError(what, where=f"--perf-device {own.name}", remedy="run perfsuite doctor")
    if device == "auto":
        device = GPU_DEVICE if gpus else own.name if own else HOST_DEVICE
    return device, gpus, own


def _gpus(device: str) -> tuple[Gpu, ...]:
    lists = built_in(GPU_DEVICE if device == "auto" else device).lists
    found: tuple[Gpu, ...] = resolve_name(lists)() if lists else ()
    return found


def products_of(gpus: Sequence[Gpu]) -> tuple[tuple[Gpu, ...], ...]:
    """Return the GPUs by product and board, the first one's first: a run has one SKU."""
    found: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in gpus:
        found.setdefault((gpu.name, gpu.board), []).append(gpu)
    return tuple(map(tuple, found.values()))


def idle_gpus(desks: Sequence[Desk]) -> Iterator[str]:
    """Yield which GPUs of this node the run does not use: one run is of one SKU."""
    used = [gpu for desk in desks for gpu in desk.panel.site.gpus]
    for others in products_of(_gpus(desks[0].panel.site.device)) if used else ():
        if others[0] not in used:
            uuids = ",".join(gpu.uuid for gpu in others)
            yield (
                f"{len(others)} x {others[0].name} ({others[0].board or 'board unknown'}) not "
                "used: a run is of one SKU; for the other, run with "
                f"CUDA_VISIBLE_DEVICES={uuids}"
            )


def measure_on(
    desks: Sequence[Desk],
    variants: Sequence[Variant],
    measure: Callable[[Desk, Sequence[Variant]], None],
    rank: Callable[[Variant, Desk], int] = _anywhere,
) -> None:
    """Share the variants out over the desks, then let gangs measure theirs on all of them.

    Raises like ``share_out``.
    """
    share_out(desks, [variant for variant in variants if not variant.is_gang], measure, rank)
    gangs = [variant for variant in variants if variant.is_gang]
    if not gangs:
        return
    most = max(variant.ranks for variant in gangs)
    gpus = tuple(gpu for desk in desks for gpu in desk.panel.site.gpus)
    site = replace(desks[0].panel.site, gpus=gpus, slots=most)
    with Panel(site, _units(desks, most)) as panel:
        for ranks in sorted({variant.ranks for variant in gangs}):
            unit = gang_unit(_units(desks, ranks))
            desk = Desk(panel, structs.replace(desks[0].facts, unit=unit))
            measure(desk, [variant for variant in gangs if variant.ranks == ranks])


def count_on(
    desks: Sequence[Desk],
    variants: Sequence[Variant],
    measure: Callable[[Desk, Sequence[Variant]], None],
) -> None:
    """Share variants that are only counted out over the cores: nothing they do is timed."""
    many = min(MOST_COUNTING, (os.cpu_count() or 1) // 2, len(variants) // FEWEST_EACH)
    with ExitStack() as stack:
        if many > len(desks):
            site, facts = replace(desks[0].panel.site, slots=1), desks[0].facts
            desks = [Desk(stack.enter_context(Panel(site)), facts) for _ in range(many)]
        share_out(desks, variants, measure)


def units_of(desks: Sequence[Desk], variants: Sequence[Variant]) -> dict[str, str]:
    """Return the names of all units that measure these variants, gangs' among them."""
    named = {desk.facts.unit: desk.facts.name for desk in desks}
    for ranks in sorted({variant.ranks for variant in variants if variant.is_gang}):
        units = _units(desks, ranks)
        named.setdefault(gang_unit(units), f"{len(set(units))} x {desks[0].facts.name}")
    return named


def _units(desks: Sequence[Desk], ranks: int) -> list[str]:
    """Return the units of a gang's ranks; where there is no GPU, all are the machine."""
    return [desks[rank % len(desks)].facts.unit for rank in range(ranks)]


def share_out(
    desks: Sequence[Desk],
    items: Sequence[T],
    measure: Callable[[Desk, Sequence[T]], None],
    rank: Callable[[T, Desk], int] = _anywhere,
) -> None:
    """Let each desk measure its share: each item goes where its rank, then load is least.

    ``rank`` says how unwelcome an item is on a desk. Each desk has a thread; raises the first
    failure. An exception in this thread, Ctrl-C among them, stops all panels first.
    """
    shares: list[list[T]] = [[] for _ in desks]
    for item in items:
        costs = [(rank(item, desk), len(share)) for desk, share in zip(desks, shares, strict=True)]
        shares[costs.index(min(costs))].append(item)
    with ThreadPoolExecutor(max_workers=len(desks)) as pool:
        pairs = zip(desks, shares, strict=True)
        futures = [pool.submit(measure, desk, share) for desk, share in pairs if share]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for desk in desks:
                desk.panel.stop()
            raise


def measure_on_all(
    desks: Sequence[Desk],
    variants: Sequence[Variant],
    measure: Callable[[Desk, Sequence[Variant]], None],
) -> None:
    """Let every desk measure all the variants; raises like ``share_out``."""
    share_out(desks, desks, lambda desk, _own: measure(desk, variants))


class UnitLock(Closable):
    """Holds a unit (a GPU's or a machine's short key) for this process until closed.

    The lock is the name of a socket: no file is in its way, TMPDIR and users make no difference,
    and the kernel gives it back when the process dies, however it dies. Containers with a network
    of their own do not see it. Raises ``UsageError`` naming the holder when the unit is taken.
    """

    def __init__(self, unit: str) -> None:
        key = hashlib.sha256(f"{from_environment(VARIABLE)}/{unit}".encode()).hexdigest()[:24]
        self._name = f"\0perfsuite-{key}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self._name)
            self._socket.listen(_QUEUE)
        except OSError as error:
            self._socket.close()
            what = f"unit {unit!r} cannot be locked: {error.strerror}"
            remedy = "let this user make Unix sockets; a sandbox may forbid them"
            if error.errno == errno.EADDRINUSE:
                what = f"unit {unit!r} is being measured by process {self._holder()}"
                remedy = "wait until that run ends, stop it, or choose another device"
            where = f"the socket @{self._name[1:]} in /proc/net/unix"
            raise UsageError(what, where=where, remedy=remedy) from error

    def close(self) -> None:
        """Give the unit back."""
        self._socket.close()

    def _holder(self) -> str:
        """Return the id of the process that holds the name; a container may hide it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                asking.settimeout(1.0)
                asking.connect(self._name)
                told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:
            return "unknown"
        process, user, _ = _PEER.unpack(told)
        return f"{process or 'unknown'}{'' if user == os.getuid() else f' of user {user}'}"


class Desks(Closable):
    """The desks of one request's device, opened by its first run and locked until all are done."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._opened: tuple[Desk, ...] = ()
        self._settings: Settings | None = None

    def of(
        self, device: str, packs: Sequence[Pack], settings: Settings, arms: Mapping[Arm, Code]
    ) -> tuple[Desk, ...]:
        """Return the desks, for a run that compares these sides, or none; raises DeviceError.

        Device and packs are the same in all runs; a run that was resumed may have other settings.
        """
        if self._settings != settings:
            self.close()
            self._opened = open_desks(device, packs, settings, self._stack)
            self._settings = settings
        for desk in self._opened:
            desk.panel.compare(arms)
        return self._opened

    def close(self) -> None:
        """End the servers, and let other runs have the device."""
        self._opened, self._settings = (), None
        self._stack.close()
