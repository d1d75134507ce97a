"""Hardware counters of one launch, by Nsight Compute."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from perfsuite.boundary import DeviceError, PerfError, plain
from perfsuite.model import Side, Trace, TracedKernel, Variant, built_in, function_of
from perfsuite.workers import messages
from perfsuite.workers.panel import Seat, job_of
from perfsuite.workers.process import Setup, tail
from perfsuite.workers.server import has_exited, show

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


def read(text: str) -> list[TracedKernel]:
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


def _counted(row: Mapping[str, str | None]) -> TracedKernel:
    # What this chip does not count is "n/a"; thousands may stand apart.
    counts = {name: (row.get(metric) or "").replace(",", "") for name, metric in METRICS.items()}
    grid, block = (
        tuple(map(int, re.findall(r"\d+", row[f"{what} Size"] or ""))) for what in ("Grid", "Block")
    )
    return TracedKernel(
        name=row["Kernel Name"] or "",
        count=1,
        duration_us=0.0,
        grid=grid,
        block=block,
        counters={name: float(n) for name, n in counts.items() if n.replace(".", "", 1).isdigit()},
    )


def joined(
    kernels: Sequence[TracedKernel], found: Sequence[TracedKernel]
) -> tuple[TracedKernel, ...]:
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


def _fits(row: TracedKernel, kernel: TracedKernel) -> bool:
    # Copies and fills by the driver have no shape, and are no kernels to ncu.
    is_shaped = bool(kernel.grid) and (row.grid, row.block) == (kernel.grid, kernel.block)
    return is_shaped and _function(row.name) == _function(kernel.name)


def _function(name: str) -> str:
    """Return a function's name without namespaces, which demanglers write in different ways."""
    return function_of(_UNNAMED.sub("", name)).strip().rpartition("::")[2]


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
    if not built_in(device).has_counters:
        return f"device {device} has none of NVIDIA's counters"
    return "" if shutil.which("ncu") else NO_NCU


def counted(
    setup: Setup,
    variants: Mapping[str, Variant],
    traces: Iterable[Trace],
    limit_s: float,
    keep: Callable[[Trace], object],
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


def _rows(variant: Variant, side: Side, setup: Setup, limit_s: float) -> list[TracedKernel]:
    """Have ncu watch one launch of a variant; return its kernels."""
    if setup.code(side).python:
        raise DeviceError("ncu starts no process of another environment")
    limit_s = max(1.0, limit_s)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perfsuite-"))
        log, asked = Path(folder, "ncu.csv"), Path(folder, "job.json")
        asked.write_bytes(messages.raw(job_of(variant, setup, seat=Seat(0, 0, side))))
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
