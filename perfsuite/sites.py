"""Opens the devices of this machine for a run: one panel for each GPU, or one for the CPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from perfsuite.errors import DeviceError
from perfsuite.model import DeviceFacts, Gpu, Pack, Settings, Variant
from perfsuite.panel import Panel, Site, UnitLock, inventory

GIT_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Desk:
    """A panel with what its device says of itself."""

    panel: Panel
    facts: DeviceFacts


def open_desks(
    device: str, packs: Sequence[Pack], settings: Settings, stack: ExitStack
) -> tuple[Desk, ...]:
    """Open panels on all GPUs of one product, or on the one device named; raises DeviceError.

    A unit is locked while its panel is open, so that two runs of a node never measure each other.
    """
    gpus: tuple[Gpu | None, ...] = inventory() if device in ("auto", "cuda") else ()
    if device == "cuda" and not gpus:
        raise DeviceError(
            "there is no NVIDIA GPU on this machine, or its driver does not answer",
            where="--perf-device cuda",
            remedy="leave --perf-device out to measure on the CPU, or run perfsuite doctor",
        )
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    desks = [_open(device, gpu, packs, settings, stack) for gpu in _of_one_product(gpus) or (None,)]
    return tuple(desks)


def measure_on(
    desks: Sequence[Desk],
    variants: Sequence[Variant],
    measure: Callable[[Desk, Sequence[Variant]], None],
) -> None:
    """Share the variants out over the desks, each in a thread; raises the first failure.

    An exception in this thread, Ctrl-C among them, stops all panels first.
    """
    shares = [variants[index :: len(desks)] for index in range(len(desks))]
    with ThreadPoolExecutor(max_workers=len(desks)) as pool:
        futures = [
            pool.submit(measure, desk, share)
            for desk, share in zip(desks, shares, strict=True)
            if share
        ]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for desk in desks:
                desk.panel.stop()
            raise


def git_commit(root: Path) -> str:
    """Return the commit of the project under test, ``-dirty`` appended, or nothing outside git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _open(
    device: str, gpu: Gpu | None, packs: Sequence[Pack], settings: Settings, stack: ExitStack
) -> Desk:
    site = Site(
        device=device,
        gpu=gpu,
        slots=settings.processes,
        settings=settings,
        origins={pack.name: pack.origin for pack in packs if not pack.error},
    )
    panel = stack.enter_context(Panel(site))
    facts = panel.facts()
    stack.enter_context(UnitLock(facts.unit))
    return Desk(panel, facts)


def _of_one_product(gpus: Sequence[Gpu | None]) -> tuple[Gpu | None, ...]:
    """Return the GPUs of the first one's product: a run has one SKU."""
    return tuple(gpu for gpu in gpus if gpu and gpus[0] and gpu.name == gpus[0].name)
