"""What NVIDIA's Nsight Compute (ncu) counts of each kernel: how it is asked, and how it is read."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfsuite.errors import DeviceError
from perfsuite.model import TracedKernel
from perfsuite.model.trace import function_of

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
DENIED = "ERR_NVGPUCTRPERM"
_DRIVER, _STATUS = Path("/proc/driver/nvidia/params"), Path("/proc/self/status")
_CAP_SYS_ADMIN = 21
# What the program itself says of its end tells more.
_SAID = re.compile(r"==ERROR==\s*+(?!The application returned)(.+)")
_UNNAMED = re.compile(r"<unnamed>::|\(anonymous namespace\)::")
_COLUMNS = ("ID", "Kernel Name", "Block Size", "Grid Size")


@dataclass(frozen=True, slots=True)
class Counted:
    """One kernel's run as ncu saw it, with its counters by our names."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    counters: Mapping[str, float]


def command(ncu: str, log: Path, *program: str) -> list[str]:
    """Return the command that counts what a program shows between the profiler's start and stop."""
    names = ",".join(METRICS.values())
    return [ncu, *OPTIONS, "--log-file", str(log), "--metrics", names, *program]


def read(text: str) -> list[Counted]:
    """Return the kernels of ncu's log in time order; raises ``DeviceError`` where it has none."""
    if said := _SAID.search(text):
        raise DeviceError(f"ncu says: {said[1].strip()}")
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if line.startswith('"ID",')), None)
    if first is None:
        raise DeviceError("ncu counted no kernel")
    try:
        return _table([line for line in lines[first:] if line.startswith('"')])
    except csv.Error as error:
        raise DeviceError(f"ncu's table cannot be read: {error}") from error


def _table(lines: Sequence[str]) -> list[Counted]:
    rows = csv.DictReader(lines)
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        raise DeviceError(f"this ncu writes no column {missing[0]!r}: it is too old or too new")
    # The line below the names holds the units, and has no number of a kernel.
    return [_counted(row) for row in rows if (row["ID"] or "").isdigit()]


def _counted(row: Mapping[str, str | None]) -> Counted:
    found = {name: _number(row.get(metric)) for name, metric in METRICS.items()}
    return Counted(
        name=row["Kernel Name"] or "",
        grid=_shape(row["Grid Size"]),
        block=_shape(row["Block Size"]),
        counters={name: value for name, value in found.items() if value is not None},
    )


def _number(text: str | None) -> float | None:
    """Return a number, thousands apart or not; None of what this chip does not count."""
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:  # "n/a"
        return None
    return number if math.isfinite(number) else None


def _shape(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text or ""))


def joined(kernels: Sequence[TracedKernel], found: Sequence[Counted]) -> tuple[TracedKernel, ...]:
    """Return the kernels with the mean counters of one run of each.

    They are told apart by function and shape, then by whole name; where two remain alike, neither
    has counters.
    """
    return tuple(replace(each, counters=_of(each, kernels, found)) for each in kernels)


def _of(
    kernel: TracedKernel, kernels: Sequence[TracedKernel], found: Sequence[Counted]
) -> dict[str, float]:
    rows = [row for row in found if _fits(row, kernel)]
    rivals = [each for each in kernels if any(_fits(row, each) for row in rows)]
    if len(rivals) > 1:
        rows = [row for row in rows if _plain(row.name) == _plain(kernel.name)]
        if sum(_plain(each.name) == _plain(kernel.name) for each in rivals) > 1:
            return {}
    names = [name for name in METRICS if rows and all(name in row.counters for row in rows)]
    return {name: sum(row.counters[name] for row in rows) / len(rows) for name in names}


def _fits(row: Counted, kernel: TracedKernel) -> bool:
    # Copies and fills by the driver have no shape, and are no kernels to ncu.
    is_shaped = bool(kernel.grid) and (row.grid, row.block) == (kernel.grid, kernel.block)
    return is_shaped and _function(row.name) == _function(kernel.name)


def _function(name: str) -> str:
    """Return a function's name without namespaces, which demanglers write in different ways."""
    return function_of(_UNNAMED.sub("", name)).strip().rpartition("::")[2]


def _plain(name: str) -> str:
    return re.sub(r"\s", "", _UNNAMED.sub("", name.removeprefix("void ")))


def obstacles() -> Iterator[str]:
    """Yield why this process may not read a GPU's counters, as far as the system says so."""
    told = _DRIVER.read_text("utf-8") if _DRIVER.is_file() else ""
    status = _STATUS.read_text("utf-8") if _STATUS.is_file() else ""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    is_admin = int(effective[1], 16) >> _CAP_SYS_ADMIN & 1 if effective else os.geteuid() == 0
    if "RmProfilingAdminOnly: 1" in told and not is_admin:
        yield "the driver lets administrators alone read them (NVreg_RestrictProfilingToAdminUsers)"
