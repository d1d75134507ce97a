"""The baseline files' text: JSON in block form, so that a git diff reads like a table.

Each variant has a line for what it is, one for who accepted it, one for each metric, and one for
each kernel that it launches. The lines
that open and close it never change, so that git merges what two people did to neighbours without a
conflict. For the same reason no table is shared by the variants: what is known of a run has a file
of its own, which is the same whoever accepts the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from perfsuite.codec.text import check_schema, convert, encode, read_json, to_plain
from perfsuite.errors import StoreError
from perfsuite.files import checked_name
from perfsuite.model import BaselineEntry, BaselineMetric
from perfsuite.model.metric import DIRECTIONS

T = TypeVar("T")

BASELINE_SCHEMA = "perfsuite.baseline/1"
# Finer than any noise; the digits after these only make diffs.
DIGITS = 6
# Metrics that always have noise; others have it where they have values by process.
CLOCKS = ("time_us", "cycles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Who made a result the baseline, when (UTC), and why."""

    by: str
    when: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a baseline keeps of a run its entries come from."""

    run: str
    started: str
    commit: str = ""
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """A variant's baseline with its acceptance."""

    entry: BaselineEntry
    accepted: Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    sku: str
    pack: str
    variants: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    accepted: Acceptance


def flat_text(value: object) -> bytes:
    """Return a small dataclass as a stored file, one line a key."""
    plain = {"schema": BASELINE_SCHEMA, **to_plain(value)}
    return msgspec.json.format(encode(plain), indent=2) + b"\n"


def read_flat(data: bytes, kind: type[T], *, where: str) -> T:
    """Return the dataclass of a small stored file."""
    plain = check_schema(read_json(data, where=where), BASELINE_SCHEMA, where=where)
    return convert(plain, kind, where=where)


def baseline_text(sku: str, pack: str, entries: Mapping[str, StoredEntry]) -> bytes:
    """Return the file of one pack on one SKU, variants and metrics sorted."""
    head = {"schema": BASELINE_SCHEMA, "sku": sku, "pack": pack}
    lines = ["{", *(f"{_text(key)}: {_text(value)}," for key, value in head.items())]
    blocks = [_block(key, entries[key]) for key in sorted(entries)]
    return "\n".join([*lines, '"variants": {', "\n,\n".join(blocks), "}", "}", ""]).encode()


def _block(variant: str, stored: StoredEntry) -> str:
    entry = to_plain(stored.entry)
    del entry["variant"], entry["metrics"]
    entry["kernels"] = kernels_to_plain(entry["kernels"])
    traced = "".join(_rows(name, entry.pop(name)) for name in ("kernels", "codes"))
    for name in ("sampling", "work_class", "load"):  # no diff for what is not known
        if not entry[name]:
            del entry[name]
    metrics = (
        f"    {_text(name)}: {_text(_rounded(metric))}"
        for name, metric in sorted(stored.entry.metrics.items())
    )
    lines = [
        f"{_text(variant)}: {{",
        f"  {_text(entry)[1:-1]},",
        f'  "accepted": {_text(stored.accepted)},',
        '  "metrics": {',
        ",\n".join(metrics),
        f"}}{traced}}}",
    ]
    return "\n".join(lines)


def _rows(name: str, items: list[dict[str, Any]]) -> str:
    """Return a list as more of an entry, one line an item; nothing for none."""
    text = ",\n".join(f"    {_text(item)}" for item in items)
    return f',\n  "{name}": [\n{text}\n  ]' if items else ""


def kernels_to_plain(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return plain kernels without counters where there are none, whole counts as integers."""
    return [
        {
            **{key: item for key, item in each.items() if key != "counters"},
            **({"counters": dict(_whole(each["counters"]))} if each["counters"] else {}),
        }
        for each in items
    ]


def _whole(counters: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name, count in counters.items():
        yield name, int(count) if float(count).is_integer() else count


def _text(value: object) -> str:
    return msgspec.json.format(encode(value), indent=0).decode()


def _rounded(metric: BaselineMetric) -> dict[str, Any]:
    """Return the metric with short numbers; those of an exact metric keep every digit."""
    is_exact = not metric.values
    plain: dict[str, Any] = to_plain(metric)
    for key in ("center", "within", "between"):
        plain[key] = _short(plain[key], is_exact=is_exact)
    plain["values"] = {
        unit: [_short(value, is_exact=is_exact) for value in values]
        for unit, values in sorted(metric.values.items())
    }
    return plain


def _short(value: float, *, is_exact: bool) -> float:
    number = value if is_exact else round_digits(value)
    return int(number) if float(number).is_integer() else number


def round_digits(value: float) -> float:
    """Return the number with as many significant digits as are stored."""
    return float(f"{value:.{DIGITS}g}")


def read_baseline(data: bytes, *, sku: str, pack: str, where: str) -> dict[str, StoredEntry]:
    """Return the entries of a pack's file by variant, each checked by itself."""
    plain = check_schema(read_json(data, where=where), BASELINE_SCHEMA, where=where)
    sheet = convert(plain, _Sheet, where=where)
    for key, expected in (("sku", sku), ("pack", pack)):
        if getattr(sheet, key) != expected:
            raise StoreError(
                f"key {key!r} is {getattr(sheet, key)!r}, the file's place says {expected!r}",
                where=where,
                remedy="move the file to its own place, or accept a run here",
            )
    return {
        variant: _read_entry(variant, value, pack=pack, where=f"{where}, variant {variant!r}")
        for variant, value in sheet.variants.items()
    }


def _read_entry(variant: str, value: object, *, pack: str, where: str) -> StoredEntry:
    if not isinstance(value, dict) or "variant" in value:
        raise _bad(f"expected an object without a key 'variant', not {value!r}", where)
    if not variant.startswith(f"{pack}."):
        raise _bad(f"the variant is not of pack {pack!r}", where)
    acceptance = {key: value[key] for key in ("accepted",) if key in value}
    rest = {key: item for key, item in value.items() if key != "accepted"}
    stored = StoredEntry(
        entry=convert({"variant": variant, **rest}, BaselineEntry, where=where),
        accepted=convert(acceptance, _Accepted, where=where).accepted,
    )
    checked_name(stored.entry.run, "run id", where=where)
    for fault in _faults(stored.entry):
        raise _bad(fault, where)
    return stored


def _faults(entry: BaselineEntry) -> Iterator[str]:
    """Yield numbers that no measurement yields; they would be read as a huge change."""
    if not entry.metrics:
        yield "key 'metrics' is empty"
    processes: dict[str, int] = {}
    for name, metric in sorted(entry.metrics.items()):
        key = f"key 'metrics.{name}"
        if metric.better not in DIRECTIONS:
            yield f"{key}.better' is {metric.better!r}, not one of {', '.join(DIRECTIONS)}"
        if not metric.values and name not in CLOCKS:
            continue
        yield from _bad_numbers(key, metric)
        found = {unit: len(row) for unit, row in metric.values.items()}
        if found != (processes := processes or found):
            yield f"{key}.values' has other processes than its neighbours"


def _bad_numbers(key: str, metric: BaselineMetric) -> Iterator[str]:
    if not metric.values or not all(metric.values.values()):
        yield f"{key}.values' has no process"
    least = {f"values.{unit}": min(row) for unit, row in metric.values.items()}
    for part, number in {"center": metric.center, **least}.items():
        if number <= 0:
            yield f"{key}.{part}' is {number!r}; it must be above 0"
    for part, number in (("within", metric.within), ("between", metric.between)):
        if number < 0:
            yield f"{key}.{part}' is {number!r}; it must not be negative"


def _bad(what: str, where: str) -> StoreError:
    return StoreError(what, where=where, remedy="restore the entry from git, or accept a run again")
