"""Has the kernels of what moved, and of what may become a baseline, traced at the end of a run.

Nsight Compute counts what they do, where that is asked for: it watches a process of this module.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import DeviceError, PerfError, plain
from perfsuite.engine.trace import Anatomy
from perfsuite.report import view
from perfsuite.run.against import by_size
from perfsuite.run.run import Work
from perfsuite.store.files import replace_file
from perfsuite.workers import messages
from perfsuite.workers.panel import Panel, Seat, job_of
from perfsuite.workers.process import Setup, tail
from perfsuite.workers.server import has_exited, show
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

    run: model.Run
    work: Work
    # Which variants are measured on both sides, and of which kind is what is to be traced.
    _compared: set[str] = set()
    _kinds: dict[str, str] = {}
    _uncounted: list[model.Trace] = []
    _notes: list[str] = []
    _lock: Any = field(default_factory=threading.Lock)
    _left: int = 0

    def take(self) -> model.Run:
        """Trace what the judged run needs; return it with what that took, and what was cut."""
        run = self.run
        self._compared = {one.id for one in run.variants if one.is_paired}
        self._kinds = dict(self._needed())
        if not self._kinds:
            return run
        self.work.listener.note(f"tracing kernels of {view.count(len(self._kinds), 'variant')}")
        started = time.monotonic()
        # Of each kind that comes first which moved furthest.
        largest = [verdict.variant for verdict in by_size(run.verdicts)]
        kinds = list(LIMITS_S)
        variants = [one.variant for one in run.variants if one.id in self._kinds]
        variants.sort(key=lambda each: (kinds.index(self._kinds[each.id]), largest.index(each.id)))
        self._trace_side([each for each in variants if each.id in self._compared], model.Side.A)
        self._trace_side(variants, model.Side.B)
        if self._left:
            limits = [f"{most:g} s for what {kind}" for kind, most in LIMITS_S.items()]
            limits += [f"within {self.work.limit}"] * self.work.limit.is_set
            left = f"{self._left} kernel traces were not taken: the limits are {', '.join(limits)}"
            self._notes.insert(0, left)
        phases_s = {**run.phases_s, "trace": time.monotonic() - started}
        notes = (*run.notes, *dict.fromkeys(filter(None, self._notes)))
        return replace(run, notes=notes, phases_s=phases_s)

    def _needed(self) -> Iterator[tuple[str, str]]:
        """Yield the variants that moved, or are only to be stored, with which."""
        for one in self.run.variants:
            if one.verdict is None or one.variant.case.regime is model.Regime.EXACT:
                continue
            if one.verdict.word.asks_why:
                yield one.id, "moved"
            elif not self._is_known(one.variant):
                yield one.id, "is new"

    def _is_known(self, variant: model.Variant) -> bool:
        entry = self.work.entries.get(variant.id)
        kernels = entry.kernels if entry else ()
        is_stored = bool(kernels) or (entry is not None and not self.work.config.counters)
        if kernels and self.work.config.counters and not refusal(self.work.panels[0].setup.device):
            # Copies and fills by the driver, which have no shape, are never counted.
            shaped = [kernel for kernel in kernels if kernel.grid]
            is_stored = not shaped or any(kernel.counters for kernel in shaped)
        return is_stored or variant.id in self._compared or variant.is_gang

    def _trace_side(self, variants: Sequence[model.Variant], side: model.Side) -> None:
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

    def _trace_share(
        self, side: model.Side, part: float, panel: Panel, share: Sequence[model.Variant]
    ) -> None:
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

    def _keep(self, variant: model.Variant, side: model.Side, found: Anatomy) -> None:
        folder = self.work.file.path.parents[1] / "artefacts"
        entry = self.work.entries.get(variant.id)
        before = {code.name: code for code in entry.codes} if entry else {}
        with self._lock:
            if variant.id in self._compared:
                traces = (each for each in self.work.file.run.traces if each.variant == variant.id)
                before = {code.name: code for trace in traces for code in trace.codes}
            for name, text in found.texts.items():
                put(folder, name, text)
            trace = model.Trace(
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


def compared(folder: Path, code: model.Code, before: model.Code | None) -> model.Code:
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


# Hardware counters of one launch, by Nsight Compute.

# Our names of ncu's metrics, which chips of compute capability 7.0 to 9.0 have under these names.
METRICS = {
    "requests_read": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "requests_written": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "sectors_read": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "sectors_written": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l2_sectors_read": "lts__t_sectors_op_read.sum",
    "l2_sectors_written": "lts__t_sectors_op_write.sum",
    "dram_sectors_read": "dram__sectors_read.sum",
    "dram_sectors_written": "dram__sectors_write.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}
OPTIONS = (
    "--profile-from-start", "off",
    "--target-processes", "all",
    # The clocks are the machine's owner's, and nothing here is timed.
    "--clock-control", "none",
    # Emptied before each kernel: what one finds does not depend on what ran before.
    "--cache-control", "all",
    "--csv", "--page", "raw", "--print-units", "base",
)  # fmt: skip
# Starting Python and torch takes most of it; ncu runs each kernel once for every few counters.
ONE_S = 30.0
# Seconds that the watched process outlives the limit of those who started it, who may be gone.
GRACE_S = 5
DENIED = "ERR_NVGPUCTRPERM"
_DRIVER, _STATUS = Path("/proc/driver/nvidia/params"), Path("/proc/self/status")
_CAP_SYS_ADMIN = 21
# What the program itself says of its end tells more.
_SAID = re.compile(r"==ERROR==\s*+(?!The application returned)(.+)")
_UNNAMED = re.compile(r"<unnamed>::|\(anonymous namespace\)::")
NO_NCU = "NVIDIA's Nsight Compute (ncu) is not on the PATH"
_COLUMNS = ("ID", "Kernel Name", "Block Size", "Grid Size")


def read(text: str) -> list[model.TracedKernel]:
    """Return the runs of kernels in ncu's log, with no time; raises ``DeviceError`` of none."""
    if said := _SAID.search(text):
        raise DeviceError(f"ncu says: {said[1].strip()}")
    table = re.search(r'^"ID",(?s:.*)', text, re.MULTILINE)
    if table is None:
        raise DeviceError("ncu counted no kernel")
    rows = csv.DictReader(line for line in table[0].splitlines() if line.startswith('"'))
    try:
        if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
            raise DeviceError(f"this ncu writes no column {missing[0]!r}: it is too old or too new")
        # The line below the names holds the units, and has no number of a kernel.
        return [_counted(row) for row in rows if (row["ID"] or "").isdigit()]
    except csv.Error as error:
        raise DeviceError(f"ncu's table cannot be read: {error}") from error


def _counted(row: Mapping[str, str | None]) -> model.TracedKernel:
    # What this chip does not count is "n/a"; thousands may stand apart.
    counts = {name: (row.get(metric) or "").replace(",", "") for name, metric in METRICS.items()}
    grid, block = (
        tuple(map(int, re.findall(r"\d+", row[f"{what} Size"] or ""))) for what in ("Grid", "Block")
    )
    return model.TracedKernel(
        name=row["Kernel Name"] or "",
        count=1,
        duration_us=0.0,
        grid=grid,
        block=block,
        counters={name: float(n) for name, n in counts.items() if n.replace(".", "", 1).isdigit()},
    )


def joined(
    kernels: Sequence[model.TracedKernel], found: Sequence[model.TracedKernel]
) -> tuple[model.TracedKernel, ...]:
    """Return the kernels with the mean counters of one run of each.

    They are told apart by function and shape, then by whole name; where two remain alike, neither
    has counters.
    """
    told = []
    for kernel in kernels:
        rows = [row for row in found if _fits(row, kernel)]
        rivals = [each for each in kernels if any(_fits(row, each) for row in rows)]
        if len(rivals) > 1:
            rows, rivals = (
                [each for each in those if _plain(each.name) == _plain(kernel.name)]
                for those in (rows, rivals)
            )
        if len(rivals) > 1:
            rows = []
        names = [name for name in METRICS if rows and all(name in row.counters for row in rows)]
        means = {name: sum(row.counters[name] for row in rows) / len(rows) for name in names}
        told.append(replace(kernel, counters=means))
    return tuple(told)


def _fits(row: model.TracedKernel, kernel: model.TracedKernel) -> bool:
    # Copies and fills by the driver have no shape, and are no kernels to ncu.
    is_shaped = bool(kernel.grid) and (row.grid, row.block) == (kernel.grid, kernel.block)
    return is_shaped and _function(row.name) == _function(kernel.name)


def _function(name: str) -> str:
    """Return a function's name without namespaces, which demanglers write in different ways."""
    return model.function_of(_UNNAMED.sub("", name)).strip().rpartition("::")[2]


def _plain(name: str) -> str:
    return re.sub(r"\s", "", _UNNAMED.sub("", name.removeprefix("void ")))


def readers() -> Iterator[str]:
    """Yield with what this process would read a GPU's counters, or why it may not."""
    told = _DRIVER.read_text("utf-8") if _DRIVER.is_file() else ""
    status = _STATUS.read_text("utf-8") if _STATUS.is_file() else ""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    is_admin = int(effective[1], 16) >> _CAP_SYS_ADMIN & 1 if effective else os.geteuid() == 0
    if not (ncu := shutil.which("ncu")):
        yield f"none, {NO_NCU}"
    elif "RmProfilingAdminOnly: 1" in told and not is_admin:
        yield (
            "none, the driver lets administrators alone read them "
            "(NVreg_RestrictProfilingToAdminUsers)"
        )
    else:
        yield f"by {ncu}"


def refusal(device: str) -> str:
    """Say why nothing can be counted on a device here; "" if it can."""
    if not model.built_in(device).has_counters:
        return f"device {device} has none of NVIDIA's counters"
    return "" if shutil.which("ncu") else NO_NCU


def counted(
    setup: Setup,
    variants: Mapping[str, model.Variant],
    traces: Iterable[model.Trace],
    limit_s: float,
    keep: Callable[[model.Trace], object],
) -> str:
    """Keep each trace with what is counted of its kernels; return a line about what was not."""
    refused, deadline = refusal(setup.device), time.monotonic() + limit_s
    failed: dict[str, str] = {}
    left_out = 0
    for trace in traces:
        kernels, left_s = trace.kernels, deadline - time.monotonic()
        if not refused and left_s > 0:
            try:
                rows = _rows(variants[trace.variant], trace.side, setup, min(ONE_S, left_s))
                kernels = joined(kernels, rows)
            except (DeviceError, OSError) as error:
                why = error.what if isinstance(error, DeviceError) else str(error)
                failed[trace.variant] = why
                refused = why if DENIED in why else ""
        else:
            left_out += not refused
        keep(replace(trace, kernels=kernels))
    if refused:
        return f"no counters: {refused}"
    told = [f"{left_out} were left out: the limit is {limit_s:.3g} s"] if left_out else []
    if failed:
        name, why = next(iter(failed.items()))
        told.insert(0, f"{len(failed)} could not be counted (first {name}: {why})")
    return f"no counters of some variants: {'; '.join(told)}" if told else ""


def _rows(
    variant: model.Variant, side: model.Side, setup: Setup, limit_s: float
) -> list[model.TracedKernel]:
    """Have ncu watch one launch of a variant; return its kernels."""
    if setup.code(side).python:
        raise DeviceError("ncu starts no process of another environment")
    limit_s = max(1.0, limit_s)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perfsuite-"))
        log, asked = Path(folder, "ncu.csv"), Path(folder, "job.json")
        asked.write_bytes(messages.raw(job_of(variant, setup, Seat(0, 0, side))))
        words = [shutil.which("ncu") or "ncu", *OPTIONS, "--log-file", str(log)]
        words += ["--metrics", ",".join(METRICS.values()), sys.executable, "-P", "-m", __name__]
        output = stack.enter_context(Path(folder, "output").open("w+b"))
        process = subprocess.Popen(
            [*words, str(asked), f"{limit_s:.0f}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # A number's decimals and thousands are told apart by the locale.
            env={**setup.environment(), "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            has_ended = has_exited(process.pid, limit_s)
        finally:
            # Not waited for yet, its id is still its group's, in which is what it left running.
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        if not has_ended:
            raise DeviceError(f"it took longer than its limit of {limit_s:.0f} s")
        text = log.read_text("utf-8", "replace") if log.is_file() else ""
        if code != 0 and DENIED not in text:
            said = tail(output).strip().rpartition("\n")[2]
            raise DeviceError(said or f"ncu ended with exit code {code}")
    return read(text)


def main(arguments: Sequence[str]) -> str | None:
    """Launch once, warm, what the job in a file says, for ncu which watches this process.

    Returns why that cannot be within the seconds that come second; raises what the variant raises.
    """
    path, limit_s = arguments
    signal.alarm(int(limit_s) + GRACE_S)
    try:
        show(messages.read(Path(path).read_bytes(), messages.Job))
    except PerfError as error:
        return plain(error.what.partition("\n")[0])
    return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
