"""Operators: what they declare, what others add to them, and mistakes that the engine makes."""

from __future__ import annotations

from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import perfsuite
from perfsuite.boundary import CaseError, PackError, WrongResultError
from perfsuite.devices.protocol import open_device
from perfsuite.engine.measure import Session
from perfsuite.model import Axes, Case, Settings, Tier, Work
from perfsuite.packs import load
from perfsuite.packs.load import Listing, list_pack, load_pack

SCALE = '''
import perfsuite
PERFSUITE_API = {api}

@perfsuite.operator(
    smoke={{"n": 300}},
    nightly=[{{"n": [300, 2000], "impl": ["plain", "late"]}}],
    full={{"n": 5000, "impl": "plain"}},
    metrics=[perfsuite.KERNELS, perfsuite.Metric("ones")],
    canary={{"cpu": {{"n": 300, "impl": "plain"}}}},
    flops=lambda *, n: n,
    source="a book",
)
def scale(rng, *, n):
    """Double n numbers."""
    return rng.randn(n), rng.empty(n)

@scale.reference
def _reference(x, y):
    return (x.double()[:, None] @ x.new_tensor([[2.0]]).double())[:, 0]

@scale.exact
def _ones(launch, x, y, *, n):
    launch(x.fill_(n), y)
    return {{"ones": float(y[0])}}

@scale.impl
def _plain(x, y):
    y.copy_(x + x)

@scale.impl(needs=[perfsuite.cuda()], tier="nightly", beats=perfsuite.Beats("plain", 2, "a book"))
def _late(ctx, *, n):
    return lambda x, y: n * x

@perfsuite.hookimpl
def perf_cases():
    return [scale]
'''
OTHER = """
import perfsuite

def twice(x, y):
    y.copy_(2 * x)

@perfsuite.hookimpl
def perf_implementations():
    return {{"{case}": [perfsuite.Implementation(name="twice", function=twice)]}}
"""


def written(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text, "utf-8")
    return f"file:{folder / name}.py"


def test_an_operator_is_a_case_with_a_claim_for_what_is_expected(tmp_path: Path) -> None:
    loaded = load_pack("own", written(tmp_path, "own", SCALE.format(api=2)))
    case, (claim,) = loaded.cases["scale"], loaded.claims
    assert [(str(tier), *axes.values()) for tier, axes in case.points] == [
        ("smoke", 300, "plain"),
        ("nightly", 300, "late"),
        ("nightly", 2000, "plain"),
        ("nightly", 2000, "late"),
        ("full", 5000, "plain"),
    ]
    assert case.doc == "Double n numbers."
    assert [(need.kind, need.axes) for need in case.needs] == [("device", {"impl": ("late",)})]
    late = load_pack(
        "own", written(tmp_path, "own", SCALE.format(api=2).replace("smoke=", "tags="))
    )
    note = list_pack(Listing(late.pack, Tier.SMOKE, (), ()), late).note
    assert note == "no variants in tier smoke; --perf-tier nightly has 4"
    ends = claim.name, claim.faster, claim.than
    assert ends == ("scale_late", {"impl": "late"}, {"impl": "plain"})


@pytest.mark.parametrize(
    ("said", "work"),
    [
        ("flops=lambda *, n: n", Work(1200, 1200, 300)),
        ("rate_dtype='a'", Work(1200, 1200, 600, "a")),
    ],
)
def test_work_kernels_and_exact_metrics_are_found(tmp_path: Path, said: str, work: Work) -> None:
    pytest.importorskip("torch")
    text = SCALE.format(api=2).replace("flops=lambda *, n: n", said)
    case = load_pack("own", written(tmp_path, "own", text)).cases["scale"]
    axes: Axes = {"n": 300, "impl": "plain"}
    made = partial(Session, open_device("cpu"), case, axes, Settings(settle_s=0), check_seed=3)
    first, other = made(seed=0), made(seed=1)
    first.prepare()
    other.check(is_thorough=False)
    other.match(first.checked)
    other.prepare()
    found = first.finish()
    assert (found.work, other.work, found.exact) == (work, work, {"kernels": 2, "ones": 600})


def test_a_reference_of_which_nothing_is_counted_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = SCALE.format(api=2).replace("flops=lambda *, n: n", "rate_dtype='a'")
    case = load_pack("own", written(tmp_path, "own", text.replace("@ x", "* x"))).cases["scale"]
    axes: Axes = {"n": 300, "impl": "plain"}
    with pytest.raises(CaseError, match="counts no operation"):
        Session(open_device("cpu"), case, axes, Settings(), seed=0).prepare()


def test_another_pack_adds_an_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(SCALE.format(api=1), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(load, "entry_points", lambda **_: [EntryPoint("own", "own", "perfsuite")])
    loaded = load_pack("other", written(tmp_path, "other", OTHER.format(case="own.scale")))
    assert [(str(tier), *axes.values()) for tier, axes in loaded.cases["scale"].points] == [
        ("smoke", 300, "twice"),
        ("nightly", 2000, "twice"),
        ("full", 5000, "twice"),
    ]
    assert loaded.cases["scale"].canary == {}
    listing = Listing(loaded.pack, Tier.FULL, (), ())
    assert {v.case.file[-9:] for v in list_pack(listing, loaded).variants} == {"/other.py"}
    with pytest.raises(PackError, match=r"own\.scala"):
        load_pack("wrong", written(tmp_path, "wrong", OTHER.format(case="own.scala")))
    found = load_pack("alone", written(tmp_path, "alone", OTHER.format(case="own2.scale")))
    assert (found.cases, found.pack.note.partition(":")[0]) == ({}, "own2 not installed")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("api=2", "api=3", "PERFSUITE_API = 3"),
        ('"n": 5000, "impl": "plain"', '"n": 5000, "impl": "planes"', "impl='planes'"),
        ('{"n": 5000', '{"m": 5000', "binds m, impl; its axes are n, impl"),
        ("@scale.reference", "", "scale has no reference"),
        ("rng, *, n", "rng, n", "take n by position"),
        ("operator(", 'operator(regime="awaited", ', "'awaited' is not a valid Regime"),
        ("_late(ctx, *, n)", "_late(ctx, *, n, m)", "takes m, which is no axis: axes are n, impl"),
    ],
)
def test_a_bad_operator_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = SCALE.format(api=new[-1] if "api" in old else 2).replace(old, new)
    with pytest.raises(PackError) as caught:
        load_pack("own", written(tmp_path, "own", text))
    assert said in str(caught.value).replace("'scale'", "scale").replace("operator ", "")


@pytest.mark.parametrize(
    ("build", "tolerance", "mistake"),
    [
        (lambda x: x.new_ones(300).cumsum(0), 0.2, "one row off"),
        (lambda x: 1 + x.sum() / 1e6, 1e-2, "the result of other inputs"),
        (
            lambda x: x * (1.0001 - (x.new_ones(300).cumsum(0) > 140).to(x)),
            1e-2,
            "the last tile missing",
        ),
        (lambda x: x.new_ones(300).cumsum(0) / 3, 9e-4, ""),
        (lambda x: x, 1e-2, ""),
        (lambda x: (x, x[:0]), 1e-2, ""),
        (lambda x: x.half(), 1e-2, ""),
        (lambda x: x if x.itemsize == 8 else x.half(), 1e-2, "returns float16, and is given float"),
    ],
)
def test_a_mistake_and_a_reference_that_takes_one_are_refused(
    build: Any, tolerance: float, mistake: str
) -> None:
    pytest.importorskip("torch")

    @perfsuite.operator(smoke={"n": 300}, source="x", tolerance=tolerance)
    def odd(rng: Any, *, n: int) -> Any:
        return (rng.randn(n),)

    odd.reference(lambda x: build(x.double()))
    odd.impl(build, name="own")
    (case,) = odd.declared()
    assert isinstance(case, Case)
    axes: Axes = {"n": 300, "impl": "own"}
    session = Session(open_device("cpu"), case, axes, Settings(check_only=True), seed=0)
    if not mistake:
        session.prepare()
        return
    with pytest.raises((CaseError, WrongResultError)) as caught:
        session.prepare()
    assert mistake in caught.value.what
