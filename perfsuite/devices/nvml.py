"""NVML: the GPUs of this node, and one's state, health and energy; never changes a setting.

Run as ``python -m``, it lists the GPUs as JSON, so that who asks has no driver in its own process.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pynvml

from perfsuite.model import Gpu, Health

# NVML's clock-event reasons (nvml.h); idle is left out, it says nothing about a sample.
REASONS = {
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
# Suffix a unlocks wgmma and tcgen05; such code runs on this very architecture only.
HOPPER = 9
PERIOD_S = 0.1


def arch_of(major: int, minor: int) -> str:
    """Return the architecture that code for a GPU of this compute capability is compiled for."""
    return f"sm_{major}{minor}{'a' if major >= HOPPER else ''}"


def visible_arch() -> str:
    """Return that of the first visible GPU, without a context on it; nothing if it is not told."""
    first, *_ = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    try:
        with contextlib.closing(Nvml(first)) as gpu:
            capability = gpu.ask("CudaComputeCapability")
    except pynvml.NVMLError:
        return ""
    return arch_of(*capability) if capability else ""


class Nvml:
    """One GPU as NVML sees it, found by its UUID."""

    def __init__(self, uuid: str) -> None:
        pynvml.nvmlInit()
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError:
            self.close()
            raise
        self._ecc_errors = self._uncorrected()

    def ask(self, what: str, *args: Any, scale: float = 0) -> Any:
        """Return NVML's answer as it is or in a unit; None where this GPU or driver has none."""
        try:
            answer = getattr(pynvml, f"nvmlDeviceGet{what}")(self._handle, *args)
        except pynvml.NVMLError:
            return None
        return answer / scale if scale else answer

    def health(self) -> Health:
        """Return power, temperature, SM clock and clock-event reasons as they are now.

        A memory error since the start that ECC could not correct is a reason of its own.
        """
        bits = self.ask("CurrentClocksEventReasons") or 0
        reasons = [name for bit, name in REASONS.items() if bits & bit]
        if self._uncorrected() > self._ecc_errors:
            reasons.append("ecc_error")
        return Health(
            power_w=self.ask("PowerUsage", scale=1e3),
            temperature_c=self.ask("Temperature", pynvml.NVML_TEMPERATURE_GPU, scale=1),
            sm_clock_mhz=self.ask("ClockInfo", pynvml.NVML_CLOCK_SM, scale=1),
            reasons=tuple(reasons),
        )

    def energy_j(self) -> float | None:
        """Return the energy used since the driver was loaded."""
        used: float | None = self.ask("TotalEnergyConsumption", scale=1e3)
        return used

    def identity(self) -> dict[str, str]:
        """Return what makes the SKU: PCI device, board, default power limit, MIG profile."""
        pci, board = self.ask("PciInfo"), self.ask("BoardPartNumber")
        return _known(
            pci_device_id=None if pci is None else f"{pci.pciDeviceId:08x}",
            board=None if board in {"", "N/A"} else board,
            default_power_limit_w=self._watts("PowerManagementDefaultLimit"),
            mig=self._switch("MigMode"),
        )

    def state(self) -> dict[str, str]:
        """Return what must match for two results to be compared."""
        limit = self._watts("EnforcedPowerLimit")
        return _known(
            enforced_power_limit_w=limit, ecc=self._switch("EccMode"), mig=self._switch("MigMode")
        )

    def environment(self) -> dict[str, str]:
        """Return what is worth showing as a diff."""
        links = range(pynvml.NVML_NVLINK_MAX_LINKS)
        return _known(
            driver=pynvml.nvmlSystemGetDriverVersion(),
            vbios=self.ask("VbiosVersion"),
            pcie_generation=self.ask("MaxPcieLinkGeneration"),
            pcie_width=self.ask("MaxPcieLinkWidth"),
            persistence=self.ask("PersistenceMode"),
            max_sm_clock_mhz=self.ask("MaxClockInfo", pynvml.NVML_CLOCK_SM),
            nvlinks=sum(self.ask("NvLinkState", link) == 1 for link in links),
        )

    def foreign_percent(self) -> float:
        """Return the GPU's utilisation, which is others' while nothing of ours runs."""
        use = self.ask("UtilizationRates")
        return 0.0 if use is None else float(use.gpu)

    def close(self) -> None:
        """Let go of NVML."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _uncorrected(self) -> int:
        kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return int(self.ask("TotalEccErrors", *kinds) or 0)

    def _switch(self, what: str) -> str | None:
        """Return how a mode stands now: NVML tells what it will be besides."""
        modes = self.ask(what)
        return None if modes is None else ("on" if modes[0] else "off")

    def _watts(self, what: str) -> int | None:
        limit = self.ask(what)
        return None if limit is None else limit // 1000


def _known(**values: Any) -> dict[str, str]:
    return {
        name: value.decode() if isinstance(value, bytes) else str(value)
        for name, value in values.items()
        if value is not None
    }


@contextlib.contextmanager
def watching(read: Callable[[], object]) -> Iterator[None]:
    """Call ``read`` ten times a second in a thread, while something is measured.

    The first call comes a period late: until the launches of a block have been issued, the host
    must not be held up.
    """
    is_over = threading.Event()

    def go() -> None:
        while not is_over.wait(PERIOD_S):
            read()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def together(seen: Sequence[Health]) -> Health:
    """Return readings as one: mean power, the worst of the rest, every reason."""

    def known(name: str) -> list[float]:
        return [value for each in seen if (value := getattr(each, name)) is not None]

    power = known("power_w")
    return Health(
        power_w=statistics.fmean(power) if power else None,
        temperature_c=max(known("temperature_c"), default=None),
        sm_clock_mhz=min(known("sm_clock_mhz"), default=None),
        reasons=tuple(dict.fromkeys(reason for each in seen for reason in each.reasons)),
        foreign_percent=max(known("foreign_percent"), default=None),
    )


def list_gpus() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    try:
        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - any failure of the driver means: no GPU to measure
        return []
    gpus: list[Gpu] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
        gpus.append(Gpu(index=index, **_known(uuid=uuid, name=name)))
    return visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: list[Gpu], mask: str | None) -> list[Gpu]:
    """Return the GPUs that a mask names by index or UUID, in its order; of MIG slices the name."""
    if mask is None:
        return gpus
    chosen = []
    for part in (each.strip() for each in mask.split(",")):
        if part.startswith("MIG-"):
            chosen.append(Gpu(index=-1, uuid=part, name="MIG"))
        else:
            chosen += [gpu for gpu in gpus if part in (str(gpu.index), gpu.uuid)]
    return chosen


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(list_gpus()))
