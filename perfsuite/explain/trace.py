"""Has the kernels of what moved, and of what may become a baseline, traced at the end of a run."""

from __future__ import annotations

import difflib
import gzip
import re
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from perfsuite.engine.trace import Anatomy
from perfsuite.explain.counters import counted, refusal
from perfsuite.model import Code, Regime, Run, Side, Trace, Variant
from perfsuite.run.against import by_size
from perfsuite.run.run import Work
from perfsuite.store.files import replace_file
from perfsuite.workers.panel import Panel
from perfsuite.workers.units import share_out

# How long another trace may begin of what moved, and of what is only to be stored. What is left of
# that is taken by later runs.
LIMITS_S = {"moved": 60.0, "is new": 10.0}
# How long another variant may begin to be counted, what moved first.
COUNTED_S = 60.0
# Of longer texts a diff takes seconds, and nobody reads a longer diff.
MOST_PTX_LINES, MOST_DIFF_LINES = 20_000, 200
_HASH = re.compile(r"[0-9a-f]{24}\Z")


class Tracing(Struct):
    """The traces of a run, which are stored in its file; PTX is kept beside, by its hash.

    The ``entries`` of its ``work`` are what variants without a side A are compared with, its
    ``samplings`` how all were sampled. If counters are asked for, Nsight Compute counts what was
    traced, where it is there. Of a brief run nothing is traced but what moved.
    """

    run: Run
    work: Work
    # Which variants are measured on both sides, and of which kind is what is to be traced.
    _compared: set[str] = set()
    _kinds: dict[str, str] = {}
    _uncounted: list[Trace] = []
    _notes: list[str] = []
    _lock: Any = field(default_factory=threading.Lock)
    _left: int = 0

    def take(self) -> Run:
        """Trace what the judged run needs; return it with what that took, and what was cut."""
        run = self.run
        self._compared = {result.variant for result in run.aside if result.side is Side.A}
        self._kinds = dict(self._needed())
        if not self._kinds:
            return run
        count = len(self._kinds)
        told = f"tracing the kernels of {count} {'variant' if count == 1 else 'variants'}"
        self.work.listener.note(told)
        started = time.monotonic()
        # Of each kind that comes first which moved furthest.
        largest = [verdict.variant for verdict in by_size(run.verdicts)]
        kinds = list(LIMITS_S)
        variants = [one.variant for one in run.variants if one.id in self._kinds]
        variants.sort(key=lambda each: (kinds.index(self._kinds[each.id]), largest.index(each.id)))
        self._trace_side([each for each in variants if each.id in self._compared], Side.A)
        self._trace_side(variants, Side.B)
        if self._left:
            limits = ", ".join(f"{most:g} s for what {kind}" for kind, most in LIMITS_S.items())
            within = f", within {self.work.limit}" if self.work.limit.is_set else ""
            left = f"{self._left} kernel traces were not taken"
            self._notes.insert(0, f"{left}: the limits are {limits}{within}")
        phases_s = {**run.phases_s, "trace": time.monotonic() - started}
        notes = (*run.notes, *dict.fromkeys(filter(None, self._notes)))
        return replace(run, notes=notes, phases_s=phases_s)

    def _needed(self) -> Iterator[tuple[str, str]]:
        """Yield the variants that moved, or are only to be stored, with which."""
        for one in self.run.variants:
            if one.verdict is None or one.variant.case.regime is Regime.EXACT:
                continue
            if one.verdict.word.asks_why:
                yield one.id, "moved"
            elif not self._is_known(one.variant):
                yield one.id, "is new"

    def _is_known(self, variant: Variant) -> bool:
        entry = self.work.entries.get(variant.id)
        kernels = entry.kernels if entry else ()
        is_stored = bool(kernels) or (entry is not None and not self.work.config.counters)
        if kernels and self.work.config.counters and not refusal(self.work.panels[0].setup.device):
            # Copies and fills by the driver, which have no shape, are never counted.
            shaped = [kernel for kernel in kernels if kernel.grid]
            is_stored = not shaped or any(kernel.counters for kernel in shaped)
        return is_stored or variant.id in self._compared or variant.is_gang

    def _trace_side(self, variants: Sequence[Variant], side: Side) -> None:
        known = {trace.variant for trace in self.work.file.run.traces if trace.side is side}
        left = {variant.id: variant for variant in variants if variant.id not in known}
        # The part of the time that is a side's.
        part = 1 / 2 if self._compared else 1.0
        share_out(self.work.panels, list(left.values()), partial(self._trace_share, side, part))
        if self.work.config.counters:
            waiting = sorted(self._uncounted, key=lambda each: self._kinds[each.variant] != "moved")
            self._uncounted.clear()
            limit_s = min(part * COUNTED_S, self.work.limit.left_s())
            keep = self.work.file.append_trace
            self._notes.append(counted(self.work.panels[0].setup, left, waiting, limit_s, keep))

    def _trace_share(self, side: Side, part: float, panel: Panel, share: Sequence[Variant]) -> None:
        whole_s = self.work.limit.left_s()
        # What is new is traced on one side alone.
        parts = {kind: 1.0 if kind == "is new" else part for kind in LIMITS_S}
        left_s = {kind: min(parts[kind] * limit, whole_s) for kind, limit in LIMITS_S.items()}
        for variant in share:
            started, kind = time.monotonic(), self._kinds[variant.id]
            if left_s[kind] <= 0:
                self._left += 1
                continue
            sampling = self.work.samplings.get(variant.id)
            found = panel.trace(variant, side, sets=sampling.sets if sampling else 1)
            self._keep(variant, side, found)
            left_s[kind] -= time.monotonic() - started
        panel.end_tracing()

    def _keep(self, variant: Variant, side: Side, found: Anatomy) -> None:
        folder = self.work.file.path.parents[1] / "artefacts"
        entry = self.work.entries.get(variant.id)
        before = {code.name: code for code in entry.codes} if entry else {}
        with self._lock:
            if variant.id in self._compared:
                traces = (each for each in self.work.file.run.traces if each.variant == variant.id)
                before = {code.name: code for trace in traces for code in trace.codes}
            for name, text in found.texts.items():
                put(folder, name, text)
            trace = Trace(
                variant=variant.id,
                side=side,
                kernels=found.kernels,
                codes=tuple(compared(folder, code, before.get(code.name)) for code in found.codes),
                reason=found.reason,
            )
            if self.work.config.counters and trace.kernels:
                self._uncounted.append(trace)
            else:
                self.work.file.append_trace(trace)


# A folder of PTX texts by hash.


def put(folder: Path, name: str, text: str) -> None:
    """Keep a text, if it is not there."""
    path = _path(folder, name)
    if path is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, gzip.compress(text.encode(), mtime=0))


def compared(folder: Path, code: Code, before: Code | None) -> Code:
    """Return the code with its diff from before, where both texts are here."""
    if before is None or before.ptx == code.ptx:
        return code
    old, new = (_text(folder, each.ptx).splitlines() for each in (before, code))
    if not old or not new:
        return code
    if max(len(old), len(new)) > MOST_PTX_LINES:
        return replace(code, diff=f"more than {MOST_PTX_LINES} lines of PTX: not compared")
    lines = list(difflib.unified_diff(old, new, "before", "now", n=2, lineterm=""))
    cut = len(lines) - MOST_DIFF_LINES
    rest = [f"... {cut} more lines"] if cut > 0 else []
    return replace(code, diff="\n".join([*lines[:MOST_DIFF_LINES], *rest]))


def _text(folder: Path, name: str) -> str:
    path = _path(folder, name)
    try:
        return gzip.decompress(path.read_bytes()).decode() if path else ""
    except (OSError, EOFError, UnicodeDecodeError):  # not here, or damaged: as good as none
        return ""


def _path(folder: Path, name: str) -> Path | None:
    return folder / f"{name}.ptx.gz" if _HASH.match(name) else None
