"""The catalogue of packs, made in a child process so that no pack runs in the controller."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

import perfsuite
from perfsuite.boundary import plain, python_path
from perfsuite.catalogue.listing import PackListing, Request
from perfsuite.errors import UsageError
from perfsuite.files import refuse_few_files
from perfsuite.model import Pack, Tier
from perfsuite.packs import PackSource, Place

# The child itself ends a pack at the time limit; this is for a child that does not.
GRACE_S = 5.0
# What it takes to ask the child, and what the child has open for each pack that it lists.
FILES, FILES_PER_PACK = 10, 2


def load_catalogue(
    sources: Sequence[PackSource],
    *,
    tier: Tier,
    time_limit_s: float = 20.0,
    heavy: Sequence[str] = ("torch",),
    front: Sequence[str] = (),
) -> tuple[Pack, ...]:
    """List the variants and claims of each pack; one that cannot be listed has an ``error``.

    A pack that wants the kernels of all packs has them in its ``kernels``; no other pack has any.
    Packs may take ``time_limit_s`` together and must not import a module of ``heavy``. ``front``
    stands first on their ``sys.path``.
    """
    request = Request(
        sources=tuple(source for source in sources if not source.error),
        tier=tier,
        time_limit_s=time_limit_s,
        heavy=tuple(heavy),
        front=tuple(front),
        paths=tuple(sys.path),
    )
    listings, said = _ask(request) if request.sources else ({}, "")
    return tuple(
        _pack(source, listings.get(source.origin) or _unanswered(source, said))
        for source in sources
    )


def _pack(source: PackSource, listing: PackListing) -> Pack:
    return Pack(
        name=source.name,
        origin=source.origin,
        version=source.version,
        variants=listing.variants,
        claims=listing.claims,
        canaries=listing.canaries,
        ceilings=listing.ceilings,
        kernels=listing.given,
        controller=listing.controller,
        accelerator=listing.accelerator,
        error=plain(source.error or listing.error),
    )


def _unanswered(source: PackSource, said: str) -> PackListing:
    error = Place(source.name, source.origin).refuse(
        f"the catalogue child ended without a word on this pack{': ' + said if said else ''}",
        remedy="look for what ended it: no memory, a broken Python, a pack that kills its parent",
    )
    return PackListing(source.origin, error=str(error))


def _ask(request: Request) -> tuple[dict[str, PackListing], str]:
    """Start the child and read one line per pack until it ends; also return what it printed."""
    refuse_few_files(FILES + FILES_PER_PACK * len(request.sources))
    deadline = time.monotonic() + request.time_limit_s + GRACE_S
    received = bytearray()
    with tempfile.TemporaryFile() as errors, _child(request, errors) as answers:
        while select.select([answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(answers, 1 << 20)
            if not data:
                break
            received += data
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    # A last line without its end is what a killed child left.
    lines = bytes(received).split(b"\n")[:-1]
    return {listing.origin: listing for listing in _listings(lines)}, said


def _encoded(request: Request) -> bytes:
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        raise UsageError(
            "a path has a byte in it that is no UTF-8, and runs and reports are kept as UTF-8",
            where=ascii(error.object),
            remedy="rename the folder, or take it out of PYTHONPATH",
        ) from error


def _listings(lines: Sequence[bytes]) -> Iterator[PackListing]:
    decoder = msgspec.json.Decoder(PackListing)
    for line in lines:
        # What is none was not written by the child, which tells of each pack that it lost.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield decoder.decode(line)


@contextmanager
def _child(request: Request, errors: IO[bytes]) -> Iterator[int]:
    """Run the child in a session of its own and yield the pipe it answers on."""
    answers, answer = os.pipe()
    home = str(Path(perfsuite.__file__).resolve().parents[1])
    with tempfile.TemporaryFile() as question:
        question.write(_encoded(request))
        question.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "perfsuite.catalogue", str(answer)],
            stdin=question,
            stdout=errors,
            stderr=errors,
            pass_fds=(answer,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path(home)},
        )
    os.close(answer)
    try:
        yield answers
    finally:
        os.close(answers)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
