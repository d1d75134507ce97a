"""What perfsuite sees of this machine, and what on it would spoil a comparison."""

from __future__ import annotations

import os
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perfsuite.baselines import Baselines, Root
from perfsuite.cli.project import say, say_table
from perfsuite.counters import obstacles
from perfsuite.model import DeviceFacts, Health, Pack, Regime, Settings
from perfsuite.noise import prior_for
from perfsuite.panel import inventory
from perfsuite.plan import missing_need
from perfsuite.roofline import COMPUTE, MEMORY, MIXED, TRANSFER
from perfsuite.sites import open_desks, products_of
from perfsuite.sku import sku_of

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
SOFTWARE = {
    "torch": "inputs, references and most implementations, on every device",
    "triton": "variants written in Triton",
    "cuda-core": "timing on NVIDIA GPUs, and variants in CUDA C++",
    "nvidia-ml-py": "finding GPUs and reading their state",
}
BUSY_LOAD = 0.25  # of the cores; a run of our own adds about one
BUSY_PERCENT = 5.0
WARM_C = 80.0
TIME = "time_us"
# A launch this long is timed with the noise of its class, whatever its issuing costs.
LONG_US = 1000.0


def say_software() -> None:
    """Say what of the software that measuring needs is here, and which GPUs its driver shows."""
    rows = [(name, _version(name), purpose) for name, purpose in SOFTWARE.items()]
    say_table("Software", ("package", "version", "for"), rows)
    products = products_of(inventory())
    for gpu in (gpu for group in products for gpu in group):
        say(f"GPU {gpu.index}: {gpu.name} ({gpu.uuid})")
    for others in products[1:]:
        uuids = ",".join(gpu.uuid for gpu in others)
        say(f"A run takes the GPUs of one product; these with CUDA_VISIBLE_DEVICES={uuids}")
    if not products:
        say("No NVIDIA GPU, or its driver does not answer: runs use the CPU")
    for text in _counters() if products else ():
        say(f"Counters (--perf-counters): {text}")


def _counters() -> Iterator[str]:
    """Yield with what counters would be read, and what stands against it."""
    ncu = shutil.which("ncu")
    if ncu is None:
        yield "none, NVIDIA's Nsight Compute (ncu) is not on the PATH"
        return
    against = list(obstacles())
    yield from [f"none, {each}" for each in against] or [f"by {ncu}"]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def examine(device: str, packs: Sequence[Pack]) -> tuple[DeviceFacts, ...]:
    """Open the devices that a run would use and return what they say of themselves."""
    for own, name in ((pack.accelerator, pack.name) for pack in packs if pack.accelerator):
        has = f"has {', '.join(own.units)}" if own.units else "has none"
        say(f"Device {own.name} of the pack {name}: this machine {has}")
    with ExitStack() as stack:
        desks = open_desks(device, packs, Settings(processes=1), stack)
        return tuple(desk.facts for desk in desks)


def say_device(units: Sequence[DeviceFacts]) -> None:
    """Say which product this is, with the facts that a comparison rests on."""
    facts, sku = units[0], sku_of(units[0])
    known = {
        "device": f"{facts.name} ({facts.device})",
        "SKU": sku.slug,
        "units": ", ".join(unit.unit for unit in units),
        "architecture": facts.arch,
        "memory": f"{facts.memory_bytes / 1e9:.1f} GB" if facts.memory_bytes else "",
        "clocks": ", ".join(facts.clocks),
        "features": ", ".join(facts.features),
    }
    say_table("Device", ("fact", "value"), ((k, v) for k, v in known.items() if v))
    rows = [
        *(("identity", name, value) for name, value in sku.facts.items()),
        *(("state", name, value) for name, value in facts.state.items()),
        *(("environment", name, value) for name, value in facts.environment.items()),
    ]
    say_table("Recorded with each result", ("kind", "fact", "value"), rows)


def say_noise(facts: DeviceFacts) -> None:
    """Say how much identical code is expected to differ here, before anything is measured."""
    rows = []
    for work_class in (COMPUTE, MEMORY, MIXED, TRANSFER):
        prior = prior_for(
            facts.device,
            work_class,
            regime=Regime.PACED,
            time_us=LONG_US,
            has_cycles="cycles" in facts.clocks,
        )
        shares = (prior.between, prior.unit, prior.threshold, prior.gate)
        rows.append((work_class, *(f"{share:.2%}" for share in shares)))
    columns = ("class", "between processes", "between units", "threshold", "gate")
    say_table("Noise expected (standard deviations), and what is called a change", columns, rows)


def say_baselines(facts: DeviceFacts, roots: Sequence[Root]) -> None:
    """Say what this device will be compared with."""
    sku = sku_of(facts)
    baselines = Baselines.load(roots, sku)
    if baselines.fingerprint_problem:
        say(f"Baselines of {sku.slug} are of another product: {baselines.fingerprint_problem}")
    elif baselines.stored:
        say(f"Baselines: {len(baselines.stored)} variants of {sku.slug}{_spread(baselines)}")
    else:
        say(f"Baselines: none for {sku.slug}; a run is compared with the last one on this unit")


def _spread(baselines: Baselines) -> str:
    """Say the noise that was measured, where there is some."""
    clocks = [entry.metrics[TIME] for entry in baselines.entries.values() if TIME in entry.metrics]
    between = sorted(clock.between for clock in clocks)
    if not between:
        return ""
    return (
        f"; time varied from process to process by {statistics.median(between):.2%} in the median "
        f"and by {between[-1]:.2%} at most (standard deviations)"
    )


def say_skips(packs: Sequence[Pack], facts: DeviceFacts, tier: str) -> None:
    """Say which variants of a tier cannot run here, by the need that is missing."""
    variants = [variant for pack in packs for variant in pack.variants]
    reasons = Counter(missing_need(variant, facts) for variant in variants)
    runnable = reasons.pop("", 0)
    say(f"Tier {tier}: {runnable} of {len(variants)} variants can run here")
    if reasons:
        say_table("Skipped", ("variants", "because it"), _counted(reasons))


def _counted(reasons: Mapping[str, int]) -> list[tuple[str, str]]:
    most_first = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return [(str(count), reason) for reason, count in most_first]


def say_spoilers(facts: DeviceFacts) -> bool:
    """Say what on this machine would spoil a comparison right now; return whether that passes.

    How a machine is set up, power limit and governor, does not: its baselines were measured so.
    """
    lasting, passing = [*_governor()], [*_load()]
    for gpu, limited, doubts in _gpu_spoilers() if facts.device == "cuda" else ():
        lasting += [f"{gpu}: {doubt}" for doubt in limited]
        passing += [f"{gpu}: {doubt}" for doubt in doubts]
    for text in (*passing, *lasting):
        say(f"Would spoil a comparison: {text}")
    if not passing and not lasting:
        say("Nothing seen that would spoil a comparison")
    return bool(passing)


def _load() -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    # This command itself and the device it opened count too, for about a minute.
    if load > 1 + BUSY_LOAD * cores:
        yield f"load average {load:.1f} on {cores} cores; end other work"


def _governor() -> Iterator[str]:
    if GOVERNOR.is_file() and (governor := GOVERNOR.read_text("ascii").strip()) != "performance":
        yield f"CPU frequency governor {governor!r}; set it to 'performance'"


def _gpu_spoilers() -> Iterator[tuple[str, list[str], list[str]]]:
    from perfsuite.device.nvml import Nvml

    for gpu in inventory():
        nvml = Nvml(gpu.uuid)
        limited = [*_limited(nvml.identity(), nvml.state())]
        doubts = [*_busy(nvml.health(), nvml.foreign_percent())]
        nvml.close()
        yield f"GPU {gpu.index}", limited, doubts


def _busy(health: Health, foreign_percent: float) -> Iterator[str]:
    """Yield what a GPU should not show while nothing of ours runs."""
    if foreign_percent > BUSY_PERCENT:
        yield f"{foreign_percent:.0f} % in use by others"
    if (health.temperature_c or 0) > WARM_C:
        yield f"{health.temperature_c:.0f} °C while idle; look at its cooling"
    if bad := [reason for reason in health.reasons if reason.startswith("hw_")]:
        yield f"slowed down by its hardware ({', '.join(bad)})"


def _limited(identity: Mapping[str, str], state: Mapping[str, str]) -> Iterator[str]:
    default, enforced = (
        identity.get("default_power_limit_w"),
        state.get("enforced_power_limit_w"),
    )
    if default and enforced and enforced != default:
        yield f"power limit {enforced} W, by default {default} W: only alike runs are compared"
