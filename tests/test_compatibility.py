"""What a pack may rely on: public names stay, hooks keep their arguments, requirements are met."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perfsuite
from perfsuite import hooks as hookspecs
from perfsuite import testing
from perfsuite.boundary import PackError
from perfsuite.model import Tier
from perfsuite.packs.find import discover
from perfsuite.store.baselines import BASELINE_SCHEMA
from perfsuite.store.runs import RUN_SCHEMA
from perfsuite.testing import check_pack
from perfsuite.workers.catalogue import load_catalogue

GOLD = Path(__file__).parent / "gold" / "api.txt"
FOLDER = """
[project]
name = "acme-perf"
version = "2.0"
dependencies = ["numpy", "{needed}"]
[project.entry-points.perfsuite]
{name} = "{name}_pack"
"""
PACK = """
import perfsuite

@perfsuite.case(axes={"n": [1]}, source="a book")
def copy(ctx, n):
    '''Copy.'''

@perfsuite.hookimpl
def perf_cases():
    return [copy]
"""


def listing() -> Iterator[str]:
    """Yield each public name with what belongs to it, one a line."""
    for name in sorted(perfsuite.__all__):
        yield from entries(f"perfsuite.{name}", getattr(perfsuite, name))
    for name in sorted(testing.__all__):
        yield from entries(f"perfsuite.testing.{name}", getattr(testing, name))
    for home in (hookspecs, hookspecs.Controller):
        for name, hook in inspect.getmembers(home, inspect.isfunction):
            if name.startswith("perf_"):
                arguments = [each for each in inspect.signature(hook).parameters if each != "self"]
                yield from (f"hook {name}({each})" for each in ("", *arguments))
    yield from (f"schema {each}" for each in (BASELINE_SCHEMA, RUN_SCHEMA))


def entries(name: str, thing: Any) -> Iterator[str]:
    yield name
    yield from (f"{name}.{field}" for field in getattr(thing, "__dataclass_fields__", ()))
    yield from (f"{name}.{field}" for field in getattr(thing, "__struct_fields__", ()))
    if isinstance(thing, type):
        yield from (f"{name}.{own}" for own, each in vars(thing).items() if type(each) is property)
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        yield from (f"{name}.{member.name}={member.value}" for member in thing)
    elif isinstance(thing, type):
        own = [
            n for n, _ in inspect.getmembers(thing, callable) if n[0] != "_" and n in vars(thing)
        ]
        for method in own:
            yield from arguments_of(f"{name}.{method}", getattr(thing, method))
    elif inspect.isfunction(thing):
        yield from arguments_of(name, thing)


def arguments_of(name: str, function: Any) -> Iterator[str]:
    arguments = [each for each in inspect.signature(function).parameters if each != "self"]
    yield from (f"{name}({each})" for each in arguments or [""])


def test_no_public_name_disappears() -> None:
    known, now = GOLD.read_text("utf-8").splitlines(), list(listing())
    assert [line for line in known if line not in now] == [], (
        "packs rely on these: bring them back, or deprecate them for a minor version and raise "
        "the version (docs/vendors.md says how)"
    )
    assert [line for line in now if line not in known] == [], (
        "new public names: python tests/test_compatibility.py > tests/gold/api.txt, and they stay"
    )


def test_a_pack_for_another_perfsuite_is_never_imported_and_the_others_run(
    tmp_path: Path,
) -> None:
    for name, text, needed in (("needy", "1 / 0", "perfsuite>=99"), ("plain", PACK, "perfsuite")):
        folder = tmp_path / "plugins" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(FOLDER.format(name=name, needed=needed), "utf-8")
        (folder / f"{name}_pack.py").write_text(text, encoding="utf-8")
    sources = discover(tmp_path, allow=["needy", "plain"])
    needy, plain = sorted(load_catalogue(sources, tier=Tier.SMOKE), key=lambda pack: pack.name)
    assert f"requires perfsuite >=99, and this is {perfsuite.__version__}" in needy.error
    assert (plain.error, len(plain.variants)) == ("", 1)
    with pytest.raises(PackError, match="'needy'"):
        check_pack(tmp_path / "plugins" / "needy")


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in listing())
