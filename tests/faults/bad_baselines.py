"""Damaged baselines: refused with file and remedy, never taken for none."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from faults.lab import QUICK, Done, Scene, Stage
from faults.rows import UNSHOWABLE, Fault, as_a_whole, exits, match, tail

GROUP = "baseline"
# As root rights do not count; without these two they do, as for anybody else.
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
BOUND = AS_ANYBODY if os.getuid() == 0 else ()
Change = Callable[[str], str | bytes]


class D(NamedTuple):
    """A damaged file: what is wrong with it, what lint must say, how it is made of a sound one."""

    done: str
    see: str
    change: Change
    file: str = "good.json"


def swap(old: str, new: str) -> Change:
    """Put one text in another's place, once."""

    def act(text: str) -> str:
        assert old in text, f"{old!r} in {text}"
        return text.replace(old, new, 1)

    return act


def put(new: str) -> Change:
    """Put a text in the place of the accepted time."""
    return lambda text: _with_center(text, new)


def _with_center(text: str, new: str) -> str:
    head, _, rest = text.partition('"time_us": {"center": ')
    number, comma, end = rest.partition(",")
    assert float(number) > 0, text
    return f'{head}"time_us": {{"center": {new}{comma}{end}'


def whole(new: str | bytes) -> Change:
    """Put something in the place of the whole file."""
    return lambda _: new


def bare(text: str) -> str:
    """Take all metrics away."""
    read = json.loads(text)
    for each in read["variants"].values():
        each["metrics"] = {}
    return json.dumps(read)


DAMAGED = (
    D("cut in half", "named: JSON", lambda text: text[: len(text) // 2]),
    D("empty", "named", whole("")),
    D("no UTF-8", "named", whole(b"\xff\xfe{}")),
    D("a list", "named: object", whole("[1, 2]")),
    D("null", "named: object", whole("null")),
    D("a comment", "named: JSON", swap("{", "{ // accepted\n")),
    D("a conflict of a merge", "named: JSON",
      lambda text: f"<<<<<<< ours\n{text}=======\n{text}>>>>>>> theirs\n"),
    D("100,000 open brackets", "named", whole("[" * 100_000)),
    D("an unknown schema", "named: schema", swap("baseline/1", "baseline/99")),
    D("no schema", "named: schema", swap('"schema"', '"scheme"')),
    D("another SKU", "named: sku", swap('"sku": "', '"sku": "x')),
    D("another pack", "named: pack", swap('"pack": "good"', '"pack": "other"')),
    D("its variants are a list", "named: variants", whole(json.dumps(
        {"schema": "perfsuite.baseline/1", "sku": "SLUG", "pack": "good", "variants": []}))),
    D("a variant twice", "named: good.double_it", swap("n=2]", "n=1]")),
    D("a variant of another pack", "named: other.d", swap("good.double", "other.double")),
    D("a variant that leads elsewhere", "named: ../up", swap("good.double_it[n=1]", "../up[n=1]")),
    D("a variant with an escape sequence", "named", swap("double_it[n=1]", r"\u001b[2Jx[n=1]")),
    D("a key twice", "named: regime", swap('"regime":', '"regime": "paced", "regime":')),
    D("an unknown key", "named: colour", swap('"regime":', '"colour": 1, "regime":')),
    D("nobody accepted it", "named: excepted", swap('"accepted":', '"excepted":')),
    D("a regime in numbers", "named: regime", swap('"paced"', "7")),
    D("a version in words", "named: case_version", swap('_version": 1', '_version": "1"')),
    D("NaN", "named: NaN", put("NaN")),
    D("1e999", "named: 1e999", put("1e999")),
    D("1e-300", "named: 1e-300", put("1e-300")),
    D("5e-324", "named: 5e-324", put("5e-324")),
    D("1e308", "named: 1e308", put("1e308")),
    D("a metric with a space", "named: peak bytes", swap('"peak_bytes"', '"peak bytes"')),
    D("a negative time", "named: center", put("-5")),
    D("a time in words", "named: center", put('"99"')),
    D("true for a time", "named: center", put("true")),
    D("no metrics", "named: metric", bare),
    D("a negative spread", "named", swap('"within": ', '"within": -')),
    D("fewer than no launches (D32)", "named", swap('"launches": ', '"launches": -')),
    D("a billion input sets (D32)", "named", swap('"sets": 1', '"sets": 1000000000')),
    D("a run that leads elsewhere", "named: ../../x", swap('"run": "', '"run": "../../x')),
    D("a run that has no file", "named: 2000", swap('"run": "20', '"run": "2000')),
    D("when is no time", "named: soon", swap('"when": "', '"when": "soon')),
    D("another slug in sku.json", "named: slug", swap('"slug": "', '"slug": "x'), "sku.json"),
    D("sku.json is empty", "named", whole(""), "sku.json"),
    D("facts in numbers", "named: facts", swap('"vendor": "perfsuite"', '"vendor": 7'), "sku.json"),
)  # fmt: skip


def damage(stage: Stage, row: D, slug: str) -> None:
    """Make a SKU's folder of the seed's, with one file damaged."""
    place = stage.project / "baselines" / slug
    shutil.copytree(stage.project / "sound", place)
    for path in (place / "sku.json", place / "good.json"):
        text = path.read_text(encoding="utf-8").replace('"fake"', f'"{slug}"')
        made = row.change(text) if path.name == row.file else text
        if isinstance(made, str):
            made = made.replace("SLUG", slug).encode()
        path.write_bytes(made)


def lint_all(stage: Stage) -> Done:
    """Damage a folder for each row, and look at all of them with one command."""
    stage.seeded()
    shutil.move(stage.project / "baselines" / "fake", stage.project / "sound")
    for number, row in enumerate(DAMAGED):
        damage(stage, row, f"d{number}x")
    return stage.cli("baseline", "lint", "--pack=good.py")


def linted(number: int) -> Callable[[Done, str], None]:
    """Look at what lint says of a folder."""

    def look(done: Done, see: str) -> None:
        lines = [line for line in done.out.splitlines() if f"/d{number}x/" in line]
        assert done.code == 1, f"exit {done.code}: {tail(done.out)}"
        match(see, "named" if lines else "nothing", "\n".join(lines))
        assert not UNSHOWABLE.search("".join(lines)), ascii(lines)

    return look


LINT = Scene("lint", lint_all)


def spoiling(act: Callable[[Stage], object], stage: Stage) -> Done:
    """Damage the seed's baselines and run: the gate may not be off."""
    stage.seeded()
    stage.limit_s = 15.0  # one of them blocks for ever
    act(stage)
    done = stage.perf(*QUICK, wrap=BOUND)
    for path in (stage.project, *stage.project.rglob("*")):
        if not path.is_symlink() and path.is_dir():
            path.chmod(0o755)
    return done


def edited(change: Change, name: str = "fake/good.json") -> Callable[[Stage], None]:
    """Change one file of the baselines."""

    def act(stage: Stage) -> None:
        path = stage.project / "baselines" / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        made = change(text)
        path.write_bytes(made if isinstance(made, bytes) else made.encode())

    return act


def at(name: str, *acts: Callable[[str], object]) -> Callable[[Stage], None]:
    """Do something with the path of a file or folder of the baselines."""

    def act(stage: Stage) -> None:
        for each in acts:
            each(str(stage.project / "baselines" / name))

    return act


def link_to(target: str) -> Callable[[str], None]:
    """Make a link."""
    return lambda path: pathlib.Path(path).symlink_to(target)


def no_rights(path: str) -> None:
    """Take all rights away."""
    os.chmod(path, 0)  # noqa: PTH101 - the other acts of this table take text, too


FIVE_THOUSAND = "9" * 5000
GATE: Mapping[str, tuple[str, Callable[[Stage], object]]] = {
    "good.json is cut in half": ("good.json", edited(lambda text: text[: len(text) // 2])),
    "good.json has 5000 digits (D15)": ("good.json", edited(put(FIVE_THOUSAND))),
    "good.json has a center of 5e-324": ("good.json", edited(put("5e-324"))),
    "good.json has 800 lists for a text (D15)": (
        "good.json", edited(swap('"paced"', "[" * 800 + "]" * 800))),
    "exceptions.toml has 50,000 arrays (D15)": (
        "exceptions.toml", edited(whole("x = " + "[" * 50_000), "exceptions.toml")),
    "good.json is a dangling link (D5)": (
        "good.json", at("fake/good.json", os.unlink, link_to("nowhere.json"))),
    "good.json is a named pipe": ("good.json", at("fake/good.json", os.unlink, os.mkfifo)),
    "baselines/fake has no rights (D5)": ("baselines/fake", at("fake", no_rights)),
    "baselines has no rights (D15)": ("baselines", at("", no_rights)),
    "baselines is a file (D5)": ("baselines", at("", shutil.rmtree, os.mknod)),
}  # fmt: skip
FAULTS = (
    *(Fault(GROUP, row.done, row.see, LINT, linted(n)) for n, row in enumerate(DAMAGED)),
    *as_a_whole(GROUP, f"baseline lint of these {len(DAMAGED)}", "exit 1", LINT),
    *(
        Fault(GROUP, f"a run: {done}", f"exit 4: {file}; do: ; not no baseline",
              Scene(f"gate {done}", partial(spoiling, act)), exits, is_alone=True)
        for done, (file, act) in GATE.items()
    ),
)  # fmt: skip
