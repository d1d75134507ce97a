"""The catalogue of packs: each is listed in a process of its own, so that a bad one ends alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfsuite.boundary import DeviceError, UsageError, plain
from perfsuite.model import Kernel, Pack, Tier, Tree
from perfsuite.packs.load import Listing
from perfsuite.workers.messages import raw
from perfsuite.workers.process import EndedError, Process, Setup, Slot, hear


def load_catalogue(
    sources: Sequence[Pack],
    *,
    tier: Tier,
    time_limit_s: float = 20.0,
    heavy: Sequence[str] = ("torch",),
    tree: Tree | None = None,
) -> tuple[Pack, ...]:
    """List the variants and claims of each pack; one that cannot be listed has an ``error``.

    A pack that wants the kernels of all packs is listed again with them in its ``kernels``; no
    other pack has any. Each time all may take ``time_limit_s`` together. Packs must not import a
    module of ``heavy``. They are imported from a ``tree`` if one is given.
    """
    given = (tier, tuple(heavy), tuple(sys.path), tree)
    asked = {source.name: Listing(source, *given) for source in sources if not source.error}
    try:
        raw(list(asked.values()))
    except UnicodeEncodeError as error:
        raise UsageError(
            "a path has a byte in it that is no UTF-8, and runs and reports are kept as UTF-8",
            where=ascii(error.object),
            remedy="rename the folder, or take it out of PYTHONPATH",
        ) from error
    found: dict[str, Pack] = {}
    kernels: tuple[Kernel, ...] = ()
    why = ""
    try:
        if asked:
            with Slot(0, Setup(device="")) as slot:
                found |= _listed(slot, asked, time_limit_s)
                kernels = tuple(kernel for each in found.values() for kernel in each.kernels)
                wanting = [name for name, each in found.items() if each.wants_kernels]
                again = {each: replace(asked[each], kernels=kernels) for each in wanting}
                found |= _listed(slot, again, time_limit_s)
    except DeviceError as error:
        why = error.what
    packs = []
    for source in sources:
        pack = source if source.error else found.get(source.name) or _refused(source, why)
        shared = kernels if pack.wants_kernels else ()
        packs.append(replace(pack, error=plain(pack.error), kernels=shared))
    return tuple(packs)


def _listed(slot: Slot, asked: Mapping[str, Listing], limit_s: float) -> dict[str, Pack]:
    """Have a fresh process list each pack, all at once; one that ends early has an error."""
    running: dict[str, Process] = {}
    found: dict[str, Pack] = {}
    try:
        for name, listing in asked.items():
            running[name] = slot.fork()
            running[name].tell("list", listing)
        for name, process in running.items():
            source = asked[name].source
            try:
                (told,) = hear([process], "list", limit_s)
            except EndedError as ended:
                output = f"; its output:\n{ended.output}" if ended.output else ""
                told = _refused(source, f"{ended.reason}{output}")
            found[name] = told if isinstance(told, Pack) else replace(source, error=told)
    finally:
        for process in running.values():
            process.close(0.0)
    return found


def _refused(source: Pack, why: str) -> Pack:
    remedy = "a pack's module declares cases and does nothing else when imported"
    return replace(source, error=str(source.refuse(why, remedy=remedy)))
