"""The formats: tables against torch, quantisers against tables, and what numerics reports."""

import math
from fractions import Fraction

import pytest
from perfsuite_blackwell import numerics
from perfsuite_blackwell.block_scaled_gemm import look_up
from perfsuite_blackwell.formats import FORMATS, Format, values_of
from perfsuite_blackwell.numerics import factor_of, nearest, search
from perfsuite_blackwell.quantise import (
    dequantise,
    element_codes,
    element_values,
    quantise,
    scale_values,
    tile_scales,
    untile_scales,
)

torch = pytest.importorskip("torch")
EACH = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def test_e2m1_is_the_table_of_the_standard() -> None:
    positive = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    assert values_of("e2m1") == (*positive, *(-value for value in positive))


@pytest.mark.parametrize("kind", ["e4m3", "e8m0"])
def test_tables_are_those_of_torch(kind: str) -> None:
    dtype = {"e4m3": "float8_e4m3fn", "e8m0": "float8_e8m0fnu"}[kind]
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    expected = codes.view(getattr(torch, dtype)).float().tolist()
    for found, value in zip(values_of(kind), expected, strict=True):
        assert found == value or (math.isnan(found) and math.isnan(value))


def test_the_nearest_code_is_the_even_one_of_two_as_near() -> None:
    values = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.01, 1e9, -0.75, -0.0)
    assert [nearest(each, "e2m1") for each in values] == [0, 2, 2, 4, 4, 6, 6, 7, 7, 10, 8]


def test_elements_are_rounded_to_the_nearest_for_every_bf16() -> None:
    x = torch.arange(1 << 16).to(torch.uint16).view(torch.bfloat16).float()
    x = x[x.isfinite()]
    for form in (FORMATS["mxfp4"], FORMATS["mxfp8"]):
        found = element_codes(x, form).tolist()
        assert found == [nearest(value, form.element) for value in x.tolist()]


@EACH
def test_codes_mean_what_the_tables_say(form: Format) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    for found, kind in ((scale_values(codes, form), form.scale), (codes, form.element)):
        table = values_of(kind)
        if kind == form.element:
            found = element_values(codes[: len(table)], form)  # noqa: PLW2901
        pairs = zip(found.tolist(), table, strict=True)
        assert all(a == b or math.isnan(b) for a, b in pairs)


@EACH
def test_packed_and_tiled_codes_are_read_back_by_table_and_address(form: Format) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 512, generator=generator) * 4 * torch.rand(256, 1, generator=generator)
    matrix = quantise(x, form)
    tiles = tile_scales(matrix.scales)
    assert torch.equal(untile_scales(tiles), matrix.scales)
    expected = dequantise(matrix, form).double()
    assert torch.equal(look_up(matrix.codes, tiles, form), expected)
    assert ((expected * matrix.factor - x).norm() / x.norm()).item() < 0.15


@EACH
def test_quantising_what_was_quantised_changes_nothing(form: Format) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    first = dequantise(quantise(x, form), form)
    if form.has_factor:
        first *= 6 * 448 / first.abs().max()  # so that the factor is 1
    again = quantise(first, form)
    assert torch.equal(dequantise(again, form) * again.factor, first)


@EACH
def test_a_search_in_fractions_finds_the_same_codes(form: Format) -> None:
    """The reference divides in float64; here nothing is rounded at all."""
    rows = numerics.matrix("outlier").double().tolist()
    factor = factor_of([value for row in rows for value in row], form)
    table = [Fraction(value) for value in values_of(form.element) if not math.isnan(value)]
    for row in rows[:4]:
        found = search(row, form, factor)
        for scale, first in zip(found.scales, range(0, len(row), form.block), strict=True):
            step = Fraction(values_of(form.scale)[scale]) * Fraction(factor)
            held = [each * step for each in table]
            for i, value in enumerate(row[first : first + form.block], start=first):
                best = min(abs(Fraction(value) - each) for each in held)
                assert abs(Fraction(value) - Fraction(found.values[i])) == best


@EACH
def test_columns_that_are_no_whole_blocks_are_refused(form: Format) -> None:
    with pytest.raises(ValueError, match="40 columns are no whole blocks"):
        quantise(torch.zeros(2, 40), form)


def test_scales_that_are_no_whole_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="64 x 4 scales are no whole tiles"):
        tile_scales(torch.zeros(64, 4, dtype=torch.uint8))
