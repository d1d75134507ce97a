"""The variants that the core takes for ceilings exist, and move what it thinks."""

from __future__ import annotations

import pytest
from perfsuite_memory import bank_conflicts, h2d, l2_sweep, stream

from perfsuite import Case
from perfsuite.ceilings import LINK_CEILINGS
from perfsuite.roofline import PEAKS, link_of

CASES: dict[str, Case] = {
    "stream": stream.stream,
    "l2_sweep": l2_sweep.l2_sweep,
    "bank_conflicts": bank_conflicts.bank_conflicts,
    "h2d": h2d.h2d,
}
LISTED = [
    (link, variant, n)
    for link, variants in LINK_CEILINGS.items()
    for variant, n in variants.items()
]


@pytest.mark.parametrize(("link", "variant", "moved"), LISTED)
def test_ceiling_is_a_variant_that_moves_so_much(link: str, variant: str, moved: float) -> None:
    name, _, rest = variant.removeprefix("memory.").partition("[")
    case = CASES[name]
    texts = dict(each.split("=") for each in rest.removesuffix("]").split(","))
    axes = {axis: int(text) if text.isdigit() else text for axis, text in texts.items()}
    assert list(axes) == list(case.axes)
    assert all(value in case.axes[axis] for axis, value in axes.items())
    assert case.only is None or case.only(**axes)
    assert case.work is not None
    work = case.work(**axes)
    # The four bytes that a reduction writes count as none.
    assert work.bytes == pytest.approx(moved, abs=4)
    assert link_of(work, PEAKS["nvidia-h200"]) == link
