"""Which product a device is, and what keeps two results apart."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from perfsuite.boundary import DeviceError
from perfsuite.model import DeviceFacts, Run, Sku, Variant, built_in

GIB = 1 << 30
# A product's memory as reported varies by driver and ECC; what a step tells apart does not.
SMALL_STEP_GIB, STEP_GIB, SMALL_GIB = 4, 16, 32
# Facts that are sizes, not names: they enter the fingerprint as a class.
_MEMORY = "memory"


def slugify(name: str) -> str:
    """Return a product name as a folder name: lower case, words joined by hyphens."""
    marked = re.sub(r"\((R|TM|C)\)|®|™", " ", name, flags=re.IGNORECASE)
    plain = unicodedata.normalize("NFKD", marked).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")


def sku_of(facts: DeviceFacts, *, gpus: int = 1) -> Sku:
    """Return the SKU that baselines of this device are keyed by.

    ``gpus`` is how many GPUs one variant uses, not how many the node has (``facts.gpus``).
    """
    if facts.is_host:
        # Its memory is not part of it.
        cores = facts.identity.get("cores", "")
        model = re.sub(r"\bcpu\b|\bprocessor\b|@.*", " ", facts.name, flags=re.IGNORECASE)
        words = ("cpu", slugify(model), f"{cores}c" if cores else "")
        slug = "-".join(word for word in words if word)
        return Sku(slug=slug, name=facts.name, facts=dict(facts.identity))
    slug = built_in(facts.device).slug or slugify(facts.name)
    if not slug:
        raise DeviceError(f"device {facts.device!r} has no usable product name: {facts.name!r}")
    profile = facts.identity.get("mig", "")
    if profile not in {"", "none", "off", "disabled"}:
        slug += f"-mig-{slugify(profile)}"
    if gpus > 1:
        slug += f"-x{gpus}"
    # A board is a fact of a card, not of its product.
    found = {k: v for k, v in facts.identity.items() if not k.startswith(_MEMORY) and k != "board"}
    if facts.memory_bytes:
        size = facts.memory_bytes / GIB
        step = STEP_GIB if size >= SMALL_GIB else SMALL_STEP_GIB
        middle = max(1, round(size / step)) * step
        found[_MEMORY] = f"{middle - step // 2}-{middle + step // 2} GiB"
    return Sku(slug=slug, name=facts.name, facts=found)


def sku_for(variant: Variant, facts: DeviceFacts, *, own: Sku) -> Sku:
    """Return the SKU that a variant's baseline is keyed by, on a device whose own is ``own``.

    A gang's has its number of GPUs, a compilation target's the target alone: compilers are part of
    the environment.
    """
    if variant.target:
        slug = slugify(variant.target.replace("_", "-")).replace("-", "_")
        return Sku(slug=slug, name=variant.target, facts={"target": variant.target})
    is_shared = built_in(facts.device).ranks_take_units and variant.ranks > 1
    return sku_of(facts, gpus=variant.ranks) if is_shared else own


def skus_of(run: Run) -> dict[str, Sku]:
    """Return the SKU that the baseline of each of a run's variants and canaries is keyed by."""
    return {one.id: sku_for(one.variant, run.facts, own=run.sku) for one in run.every}


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return which facts are another now; one that a side does not know says nothing."""
    return tuple(sorted(key for key in before.keys() & now.keys() if before[key] != now[key]))


def version_changes(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return which facts are another now, with both versions."""
    return tuple(f"{name} {before[name]} -> {now[name]}" for name in differing(before, now))


def differs(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say which facts or states (power limit, ECC, MIG) are another now, or "" if none is."""
    return ", ".join(
        f"{key.replace('_', ' ')} was {before[key]} and is {now[key]}"
        for key in differing(before, now)
    )
