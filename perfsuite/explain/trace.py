"""Has the kernels of what moved, and of what may become a baseline, traced at the end of a run."""

from __future__ import annotations

import difflib
import gzip
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from perfsuite.explain.counters import Counter
from perfsuite.model import (
    Arm,
    BaselineEntry,
    Code,
    Regime,
    Run,
    Sampling,
    Trace,
    Variant,
    Word,
)
from perfsuite.nightly.limit import TimeLimit
from perfsuite.store.files import replace_file
from perfsuite.store.runs import RunFile
from perfsuite.workers.panel import GangPanel, Tracer
from perfsuite.workers.units import Desk, share_out

# How long another trace may begin of what moved, of what is unclear (of a night on a card never
# seen one in ten, mostly without a change to explain), and of what is only to be stored. What is
# left of the last is taken by later runs.
LIMITS_S = {"moved": 60.0, "is unclear": 10.0, "is new": 10.0}
# How long another variant may begin to be counted, what moved first.
COUNTED_S = 60.0
MOST_DIFF_LINES = 200
# Of longer texts a diff takes seconds, and nobody reads it.
MOST_PTX_LINES = 20_000
_HASH = re.compile(r"[0-9a-f]{24}\Z")


@dataclass(slots=True)
class Tracing:
    """The traces of a run, which are stored in its file; PTX is kept beside, by its hash.

    ``entries`` are what variants without an arm A are compared with, ``samplings`` how all were
    sampled. With ``has_counters`` Nsight Compute counts what was traced, where it is there. If it
    ``is_brief``, nothing is traced but what moved.
    """

    run_file: RunFile
    desks: Sequence[Desk]
    entries: Mapping[str, BaselineEntry]
    samplings: Mapping[str, Sampling]
    limit: TimeLimit = field(default_factory=TimeLimit)
    has_counters: bool = False
    is_brief: bool = False
    _counter: Counter | None = None
    _uncounted: list[Trace] = field(default_factory=list)
    _compared: set[str] = field(default_factory=set)
    _kinds: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _left: int = 0

    def take(self, run: Run, tell: Callable[[str], None]) -> Run:
        """Trace what the judged run needs; return it with what that took, and what was cut."""
        self._compared = {result.variant for result in run.aside if result.arm is Arm.A}
        self._counter = Counter(self.desks[0].panel.site) if self.has_counters else None
        self._kinds = dict(self._wanted(run))
        if not self._kinds:
            return run
        count = len(self._kinds)
        tell(f"tracing the kernels of {count} {'variant' if count == 1 else 'variants'}")
        started = time.monotonic()
        variants = self._by_need(run)
        self._share([each for each in variants if each.id in self._compared], Arm.A)
        self._share(variants, Arm.B)
        told = self._counter.note(COUNTED_S) if self._counter else ""
        limits = ", ".join(f"{limit_s:g} s for what {kind}" for kind, limit_s in LIMITS_S.items())
        what = f"{self._left} kernel traces were not taken: the limits are {limits}"
        what += f", within {self.limit}" if self.limit.is_set else ""
        return replace(
            run,
            notes=(*run.notes, *([what] if self._left else []), *([told] if told else [])),
            phases_s={**run.phases_s, "trace": time.monotonic() - started},
        )

    def _wanted(self, run: Run) -> Iterator[tuple[str, str]]:
        """Yield the variants that moved, are unclear, or are only to be stored, with which."""
        words = {verdict.variant: verdict.word for verdict in run.verdicts}
        for variant in run.variants:
            word = words.get(variant.id)
            if word is None or variant.case.regime is Regime.EXACT:
                continue
            if word.asks_why:
                yield variant.id, "moved"
            elif self.is_brief:
                continue
            elif word is Word.UNCLEAR:
                yield variant.id, "is unclear"
            elif not self._is_known(variant):
                yield variant.id, "is new"

    def _by_need(self, run: Run) -> list[Variant]:
        """Return what is wanted, of each kind that first which luck explains least.

        What has no entry at all stands before what has one without kernels.
        """
        luck = {
            verdict.variant: min((change.p_value for change in verdict.changes), default=0.0)
            for verdict in run.verdicts
        }
        kinds = {name: list(LIMITS_S).index(kind) for name, kind in self._kinds.items()}
        wanted = [variant for variant in run.variants if variant.id in kinds]
        return sorted(wanted, key=lambda each: (kinds[each.id], luck[each.id]))

    def _is_known(self, variant: Variant) -> bool:
        entry = self.entries.get(variant.id)
        is_stored = entry is not None and bool(entry.kernels)
        if is_stored and entry and self._counter and not self._counter.refused:
            # Copies and fills by the driver, which have no shape, are never counted.
            shaped = [kernel for kernel in entry.kernels if kernel.grid]
            is_stored = not shaped or any(kernel.counters for kernel in shaped)
        return is_stored or variant.id in self._compared or variant.is_gang

    def _share(self, variants: Sequence[Variant], arm: Arm) -> None:
        known = {trace.variant for trace in self.run_file.run.traces if trace.arm is arm}
        wanted = [variant for variant in variants if variant.id not in known]
        for gang in (variant for variant in wanted if variant.is_gang):
            self._keep(Trace(variant=gang.id, arm=arm, reason="ranks are not traced"), {})
        share_out(
            self.desks,
            [variant for variant in wanted if not variant.is_gang],
            partial(self._trace_each, arm=arm),
        )
        if self._counter:
            self._counter.left_s = min(self._part * COUNTED_S, self.limit.left_s())
            self._count(self._counter, {variant.id: variant for variant in wanted})

    @property
    def _part(self) -> float:
        """The part of the time that is an arm's."""
        return 1 / 2 if self._compared else 1.0

    def _trace_each(self, desk: Desk, share: Sequence[Variant], *, arm: Arm) -> None:
        if isinstance(desk.panel, GangPanel):
            return
        whole_s = self.limit.left_s()
        if whole_s <= 0:  # not even what starting takes
            self._left += len(share)
            return
        # What is new is traced in one arm alone.
        parts = {kind: 1.0 if kind == "is new" else self._part for kind in LIMITS_S}
        left_s = {kind: min(parts[kind] * limit, whole_s) for kind, limit in LIMITS_S.items()}
        with desk.panel.tracer() as tracer:
            for variant in share:
                started, kind = time.monotonic(), self._kinds[variant.id]
                if left_s[kind] > 0:
                    self._trace(tracer, variant, arm)
                else:
                    self._left += 1
                left_s[kind] -= time.monotonic() - started

    def _count(self, counter: Counter, variants: Mapping[str, Variant]) -> None:
        """Store the traces that waited for their counters, what moved first."""
        waiting, self._uncounted = self._uncounted, []
        for trace in sorted(waiting, key=lambda each: self._kinds[each.variant] != "moved"):
            kernels = counter.counted(variants[trace.variant], trace.arm, trace.kernels)
            self.run_file.append_trace(replace(trace, kernels=kernels))

    def _trace(self, tracer: Tracer, variant: Variant, arm: Arm) -> None:
        sampling = self.samplings.get(variant.id)
        found = tracer.trace(variant, arm, sets=sampling.sets if sampling else 1)
        trace = Trace(variant=variant.id, arm=arm, reason=found.reason)
        self._keep(replace(trace, kernels=found.kernels, codes=found.codes), found.texts)

    def _keep(self, trace: Trace, texts: Mapping[str, str]) -> None:
        shelf = Shelf(self.run_file.path.parents[1] / "artefacts")
        with self._lock:
            for name, text in texts.items():
                shelf.put(name, text)
            before = {code.name: code for code in self._before(trace)}
            codes = tuple(shelf.compared(code, before.get(code.name)) for code in trace.codes)
            trace = replace(trace, codes=codes)
            if self._counter and trace.kernels:
                self._uncounted.append(trace)
            else:
                self.run_file.append_trace(trace)

    def _before(self, trace: Trace) -> Iterator[Code]:
        if trace.arm is Arm.A:
            return
        if trace.variant in self._compared:
            for other in self.run_file.run.traces:
                yield from other.codes if other.variant == trace.variant else ()
        elif entry := self.entries.get(trace.variant):
            yield from entry.codes


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder of PTX texts by hash."""

    folder: Path

    def put(self, name: str, text: str) -> None:
        """Keep a text, if it is not there."""
        path = self._path(name)
        if path is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, gzip.compress(text.encode(), mtime=0))

    def compared(self, code: Code, before: Code | None) -> Code:
        """Return the code with its diff from before, where both texts are here."""
        if before is None or before.ptx == code.ptx:
            return code
        texts = [self._text(each.ptx) for each in (before, code)]
        return replace(code, diff=_diff(*texts)) if all(texts) else code

    def _text(self, name: str) -> str:
        path = self._path(name)
        if path is None or not path.exists():
            return ""
        try:
            return gzip.decompress(path.read_bytes()).decode()
        except (OSError, EOFError, UnicodeDecodeError):  # damaged: as good as none
            return ""

    def _path(self, name: str) -> Path | None:
        return self.folder / f"{name}.ptx.gz" if _HASH.match(name) else None


def _diff(before: str, now: str) -> str:
    texts = before.splitlines(), now.splitlines()
    if max(map(len, texts)) > MOST_PTX_LINES:
        return f"more than {MOST_PTX_LINES} lines of PTX: not compared"
    lines = list(difflib.unified_diff(*texts, "before", "now", n=2, lineterm=""))
    cut = len(lines) - MOST_DIFF_LINES
    return "\n".join([*lines[:MOST_DIFF_LINES], *([f"... {cut} more lines"] if cut > 0 else [])])
