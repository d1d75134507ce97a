"""The table of cases in a pack's README: what it says, and that it is not stale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from readme_tables import BEGIN, END, ROOT, differing_rows, main, put, stored_sku, table_of
from store_data import SKU, finished, ran, variant

from perfsuite.model import ClaimInstance, Pack, Regime, Tier, Variant
from perfsuite.packs.find import discover
from perfsuite.run.accept import accept
from perfsuite.workers.catalogue import load_catalogue

PACKS = {source.name: source for source in discover(ROOT, extra=())}
TABLED = sorted(
    path.parent.name for path in ROOT.glob("plugins/*/README.md") if BEGIN in path.read_text()
)


def _variant(impl: str, n: int = 1 << 28, doc: str = "Copy ``n`` floats. And more.") -> Variant:
    made = variant("copy", n)
    case = replace(made.case, doc=doc, axes=("n", "impl"), regime=Regime.END_TO_END)
    name = f"memory.copy[n={n},impl={impl}]"
    return replace(made, id=name, case=case, axes={"n": n, "impl": impl})


def _pack(*variants: Variant) -> Pack:
    claim = ClaimInstance(
        id="memory.twice",
        pack="memory",
        name="twice",
        faster=variants[-1].id,
        than=variants[0].id,
        by=2.0,
        source="s",
    )
    return Pack(name="memory", origin="module:p@/p", variants=variants, claims=(claim,))


def _baselines(root: Path, times_us: dict[str, float], *variants: Variant) -> None:
    """Accept what variants took: those given, or one of each implementation named."""
    chosen = variants or tuple(map(_variant, times_us))
    results = tuple(
        replace(result, variant=each.id)
        for each, result in zip(chosen, finished(times_us).results, strict=True)
    )
    run = replace(finished(dict.fromkeys(times_us, 1.0)), variants=ran(*chosen))
    accept(run.having(results=results), root, reason="r", by="b")


def test_row_says_what_a_case_does_and_what_is_claimed(tmp_path: Path) -> None:
    table = table_of(_pack(_variant("torch"), _variant("cuda")), tmp_path).splitlines()
    assert table[0] == "| case | what it does | implementations | measured | claims |"
    claim = "`twice` 2 \N{MULTIPLICATION SIGN}"
    assert table[2:] == [f"| `copy` | Copy `n` floats | `torch`, `cuda` | end to end | {claim} |"]


def test_figures_are_the_slowest_and_the_fastest_with_rate_and_share(tmp_path: Path) -> None:
    _baselines(tmp_path, {"torch": 600.0, "cuda": 500.0, "mine": 1010.0})
    pack = _pack(_variant("torch"), _variant("cuda"), _variant("mine"), _variant("other", 4))
    heading, _, row = table_of(pack, tmp_path).splitlines()
    assert f"`{SKU.slug}`" in heading
    assert "| n=268435456: `mine` 1.01 ms (2 126 GB/s, 49 %) to `cuda` 500 us (4 295 GB/s, " in row
    assert table_of(pack, tmp_path, SKU.slug) == table_of(pack, tmp_path)
    fastest = replace(pack, name="other", ceilings={"hbm": pack.variants[1:2]})
    assert "GB/s, 100 %) |" in table_of(pack, tmp_path, packs=[pack, fastest])


def test_figures_are_of_variants_that_do_the_same_work(tmp_path: Path) -> None:
    strided, near = (
        replace(
            _variant(impl),
            id=f"memory.copy[n=268435456,stride={stride},impl={impl}]",
            axes={"n": 1 << 28, "stride": stride, "impl": impl},
        )
        for stride, impl in ((8, "torch"), (1, "cuda"))
    )
    _baselines(tmp_path, {"a": 4000.0, "b": 500.0}, strided, near)
    row = table_of(_pack(strided, near), tmp_path).splitlines()[2]
    assert "| n=268435456: stride=8 `torch` 4.00 ms (" in row
    assert " to stride=1 `cuda` 500 us (" in row
    other = replace(near, work=replace(near.work, read_bytes=1.0) if near.work else None)
    # Nor is what another version of a case took.
    newer = replace(near, case=replace(near.case, version=2))
    for odd in (other, newer):
        alone = table_of(_pack(strided, odd), tmp_path).splitlines()[2]
        assert "`torch` 4.00 ms" in alone
        assert " to " not in alone.split("|")[-2]


def test_table_is_put_between_its_marks_and_compared(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# pack\n\n{BEGIN}\n{END}\n\nafter\n", encoding="utf-8")
    pack = _pack(_variant("torch"), _variant("cuda"))
    plain = table_of(pack, tmp_path)
    _baselines(tmp_path, {"torch": 600.0, "cuda": 500.0})
    full = table_of(pack, tmp_path)
    put(readme, full)
    put(readme, full)
    assert readme.read_text(encoding="utf-8") == f"# pack\n\n{BEGIN}\n{full}{END}\n\nafter\n"
    assert len(differing_rows(readme, plain)) == 6
    assert stored_sku(readme, tmp_path) == SKU.slug
    assert stored_sku(readme, tmp_path / "elsewhere") == ""
    _baselines(tmp_path, {"torch": 700.0, "cuda": 500.0})
    changed = differing_rows(readme, table_of(pack, tmp_path))
    assert ["600 us" in row for row in changed] == [False, True]
    other = table_of(_pack(_variant("torch", doc="Other.")), tmp_path)
    assert ["Other" in row for row in differing_rows(readme, other)] == [True, False]
    # A README without marks says what to write; rows out of order or twice are stale.
    readme.write_text("# pack\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=BEGIN):
        put(readme, "")
    made = _variant("torch")
    pack = _pack(*(replace(made, case=replace(made.case, name=name)) for name in "ab"))
    head, line, first, second = table_of(pack, tmp_path).splitlines(keepends=True)
    for rows, stale in (((first, second), 0), ((second, first), 2), ((first, second, second), 1)):
        readme.write_text("".join((f"{BEGIN}\n", head, line, *rows, END)), encoding="utf-8")
        assert len(differing_rows(readme, table_of(pack, tmp_path))) == stale


@pytest.fixture(scope="module")
def packs() -> Mapping[str, Pack]:
    return {pack.name: pack for pack in load_catalogue([*PACKS.values()], tier=Tier.FULL)}


@pytest.mark.parametrize("name", TABLED)
def test_readme_of_a_pack_is_not_stale(name: str, packs: Mapping[str, Pack]) -> None:
    pack, root = packs[name], ROOT / "baselines"
    assert not pack.error
    readme = ROOT / "plugins" / name / "README.md"
    table = table_of(pack, root, stored_sku(readme, root), packs=tuple(packs.values()))
    assert differing_rows(readme, table) == []


def test_script_compares_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "plugins" / "steady" / "README.md"
    readme.parent.mkdir(parents=True)
    readme.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    (tmp_path / "baselines").mkdir()
    steady = discover(None, extra=[ROOT / "tests/packs/steady.py"], allow=["steady"])
    monkeypatch.setattr("readme_tables.discover", lambda *_, **__: steady)
    monkeypatch.setattr("readme_tables.ROOT", tmp_path)
    assert [main(["steady", *more]) for more in ([], ["--write"], [])] == [1, 0, 0]
    assert "| `double` |" in capsys.readouterr().out
    assert "| `double` |" in readme.read_text(encoding="utf-8")
