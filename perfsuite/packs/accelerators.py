"""Which device of which pack is meant by a name."""

from __future__ import annotations

from collections.abc import Iterable

from perfsuite.errors import UsageError
from perfsuite.model import BUILT_IN_DEVICES, Accelerator, DeviceFacts, Pack, Variant


def chosen_accelerator(device: str, packs: Iterable[Pack]) -> Accelerator | None:
    """Return the device of a pack that is meant by ``device``; None where it is a built-in one.

    ``auto`` means the first that this machine has, by name. ``UsageError`` for a name that nothing
    has, or that two packs have.
    """
    known = [(pack.accelerator, pack.name) for pack in packs if pack.accelerator]
    known.sort(key=lambda pair: (pair[0].name, pair[1]))
    if device == "auto":
        return next((each for each, _ in known if each.units and each.is_automatic), None)
    named = [pair for pair in known if pair[0].name == device]
    if len(named) == 1:
        return named[0][0]
    if not named and device in BUILT_IN_DEVICES:
        return None
    names = sorted({*BUILT_IN_DEVICES, *(each.name for each, _ in known)})
    owners = " and ".join(owner for _, owner in named)
    raise UsageError(
        f"two packs bring a device {device!r}: {owners}" if named else f"unknown device {device!r}",
        where="--perf-device",
        remedy="choose one of the packs with --perf-packs"
        if named
        else f"choose auto, {', '.join(names)}; a pack brings more, if it can be listed",
    )


def misfit(variant: Variant, facts: DeviceFacts) -> str:
    """Say what a variant lacks on a device that a pack brings; nothing on those of the core."""
    if facts.device in BUILT_IN_DEVICES:
        return ""
    if variant.is_gang:
        return f"is run by ranks, which device {facts.device} has none of"
    is_meant = "torch" in facts.features or any(need.kind == "device" for need in variant.needs)
    return "" if is_meant else f"needs torch tensors, which device {facts.device} does not make"
