"""How a pack says what is measured: inputs, a reference, implementations, and points by tier."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from perfsuite import model

Values = Mapping[str, model.Scalar | Sequence[model.Scalar]]
Points = Values | Sequence[Values]
Function = Callable[..., Any]
# A point with the tier that lists it.
Bound = tuple[model.Tier, model.Axes]
# The axis that names implementations.
IMPL = "impl"
# What an operator says of its workloads; the rest of what it is given is the case's.
OF_WORKLOAD = ("tolerance", "captures", "rotates", "in_place", "flops", "rate_dtype")


def grid(points: Points) -> Iterator[dict[str, model.Scalar]]:
    """Yield the bindings that points stand for: each mapping is a product of its values."""
    for each in (points,) if isinstance(points, Mapping) else points:
        values = [v if isinstance(v, (list, tuple, range)) else (v,) for v in each.values()]
        for bound in itertools.product(*values):
            yield dict(zip(each, bound, strict=True))


def points_of(**tiers: Points) -> list[Bound]:
    """Return the points that each tier lists, with that tier."""
    return [(model.Tier(tier), each) for tier, some in tiers.items() for each in grid(some)]


class Implementation(model.Record, frozen=True, kw_only=True):
    """One implementation of an operator: what it needs, from which tier on it runs, what it beats.

    ``function(*inputs, *, axes...)`` is one launch. One whose first parameter is named ``ctx`` is
    called once, with the builder's context and the axes, and returns the launch.
    """

    name: str
    function: Function
    needs: tuple[model.Need, ...] = ()
    tier: model.Tier = model.Tier.SMOKE
    beats: tuple[model.Beats, ...] = ()


class Operator:
    """An operator: its inputs, its reference, and the implementations that are held against it.

    ``@operator`` makes one of a function ``inputs(rng, *, axes...)``. Parameters by keyword are
    axes; ``impl`` is the last one where the function does not name it.
    """

    def __init__(self, inputs: Function, points: Sequence[Bound], fields: dict[str, Any]) -> None:
        self._inputs, self._points = inputs, points
        self._of_workload = {name: fields.pop(name) for name in OF_WORKLOAD if name in fields}
        self._fields = fields
        # With a rate and no number, operations are counted.
        if not {"work", "rate_dtype"} & {*fields, *self._of_workload}:
            self._of_workload.setdefault("flops", 0.0)
        self.name: str = fields.setdefault("name", inputs.__name__)
        # Where its code stands: in the pack whose variants these are.
        self.place = inputs
        self.implementations: dict[str, Implementation] = {}
        self._reference: Function | None = None
        self._wrong: list[Function] = []
        self._exact: Function | None = None

    def reference(self, function: Function) -> Function:
        """Take ``function(*inputs, *, axes...)`` as what is right: independent, more precise."""
        self._reference = function
        return function

    def wrong(self, function: Function) -> Function:
        """Take ``function(*inputs, *, axes...)`` as a mistake that the reference must refuse."""
        self._wrong.append(function)
        return function

    def exact(self, function: Function) -> Function:
        """Take ``function(launch, *inputs, *, axes...)`` as what counts metrics without noise.

        ``launch`` is what the implementation is, or what it returned where it takes a ``ctx``.
        """
        self._exact = function
        return function

    def impl(
        self,
        function: Function | None = None,
        *,
        name: str = "",
        needs: Iterable[model.Need] = (),
        tier: str = model.Tier.SMOKE,
        beats: model.Beats | Iterable[model.Beats] = (),
    ) -> Function:
        """Take a function as an implementation, by its name or ``name``; see ``Implementation``."""
        if function is None:
            return partial(self.impl, name=name, needs=needs, tier=tier, beats=beats)
        named = name or function.__name__.removeprefix("_")
        if named in self.implementations:
            raise ValueError(f"operator {self.name!r} has two implementations named {named!r}")
        claims = (beats,) if isinstance(beats, model.Beats) else tuple(beats)
        self.implementations[named] = Implementation(
            name=named, function=function, needs=tuple(needs), tier=model.Tier(tier), beats=claims
        )
        return function

    def with_only(self, implementations: Sequence[Implementation]) -> Operator:
        """Return the operator with somebody else's implementations, at all its points.

        What watches the machine, and what shows a ceiling, are its owner's implementations.
        """
        points = [(t, {k: v for k, v in p.items() if k != IMPL}) for t, p in self._points]
        fields = {**self._fields, **self._of_workload, "canary": {}, "ceilings": {}}
        other = Operator(self._inputs, points, fields)
        other._reference, other._wrong, other._exact = self._reference, self._wrong, self._exact
        other.implementations = {each.name: each for each in implementations}
        other.place = next((each.function for each in implementations), self._inputs)
        return other

    def declared(self) -> list[model.Case | model.Claim]:
        """Return the case, and what its implementations are expected to beat."""
        if not (self._reference and self.implementations):
            lacks = "implementation" if self._reference else "reference"
            raise ValueError(f"operator {self.name!r} has no {lacks}: add @{self.name}.{lacks}")
        _, *axes = inspect.signature(self._inputs).parameters.values()
        if wrong := [each.name for each in axes if each.kind is not each.KEYWORD_ONLY]:
            what = f"the inputs of operator {self.name!r} take {', '.join(wrong)} by position"
            raise ValueError(f"{what}: write the axes behind *, as in inputs(rng, *, n)")
        self._check_axes([*_axes_of(self._inputs), IMPL])
        needs = [*self._fields.get("needs", ())]
        for each in self.implementations.values():
            needs += [need.when(**dict(need.axes), **{IMPL: each.name}) for need in each.needs]
        fields = {"doc": self._inputs.__doc__ or "", **self._fields, "needs": needs}
        made = _case(self.build, (*_axes_of(self._inputs), IMPL), self._all(), fields)
        claims = [
            model.Claim(
                name=f"{beats.name or self.name}_{each.name}",
                case=self.name,
                faster={IMPL: each.name},
                than=beats.impl if "[" in beats.impl else {IMPL: beats.impl},
                at={axis: v if isinstance(v, tuple) else (v,) for axis, v in beats.at.items()},
                **{name: getattr(beats, name) for name in ("by", "needs", "source", "metric")},
            )
            for each in self.implementations.values()
            for beats in each.beats
        ]
        return [made, *claims]

    def _check_axes(self, known: Sequence[str]) -> None:
        """Raise ValueError for a function that needs an axis which there is not."""
        own = (each.function for each in self.implementations.values())
        for function in filter(None, (*own, self._reference, self._exact, *self._wrong)):
            for each in inspect.signature(function).parameters.values():
                is_axis = each.kind is each.KEYWORD_ONLY and each.default is each.empty
                if is_axis and each.name not in known:
                    name = getattr(function, "__name__", "a function")
                    what = f"{name}() of operator {self.name!r} takes {each.name}, which is no axis"
                    raise ValueError(f"{what}: axes are {', '.join(dict.fromkeys(known))}")

    def _all(self) -> Iterator[Bound]:
        for tier, point in self._points:
            for name in [point[IMPL]] if IMPL in point else self.implementations:
                if (each := self.implementations.get(str(name))) is None:
                    known = ", ".join(self.implementations)
                    what = f"a point of operator {self.name!r} names impl={name!r}"
                    raise ValueError(f"{what}; it has {known}")
                yield max(tier, each.tier, key=[*model.Tier].index), {**point, IMPL: each.name}

    def launch(self, ctx: Any, **axes: model.Scalar) -> Function:
        """Return what launches one binding, called with inputs."""
        chosen = self.implementations[str(axes[IMPL])].function
        launch = _bound(chosen, axes)
        is_builder = "ctx" in [*inspect.signature(chosen).parameters][:1]
        return cast("Function", launch(ctx)) if is_builder else launch

    def build(self, ctx: Any, **axes: model.Scalar) -> model.Workload:
        """Return the workload of one binding."""
        launch = self.launch(ctx, **axes)
        return model.Workload(
            fn=launch,
            make_inputs=_bound(self._inputs, axes),
            reference=_bound(self._reference or launch, axes),
            wrong=tuple(_bound(each, axes) for each in self._wrong),
            exact=partial(_bound(self._exact, axes), launch) if self._exact else None,
            **{
                name: _bound(value, axes)() if callable(value) else value
                for name, value in self._of_workload.items()
            },
        )


def operator(
    *, smoke: Points = (), nightly: Points = (), full: Points = (), **fields: Any
) -> Callable[[Function], Operator]:
    """Make an operator of its inputs, ``inputs(rng, *, axes...)``; the docstring says what it is.

    ``smoke``, ``nightly`` and ``full`` list the points that each tier adds: a mapping of axes to
    values stands for the product of them. ``impl`` may be left out of a point, which then has all
    implementations. Other fields are those of ``Case``; and of ``Workload``, where a function is
    called with the axes, ``tolerance``, ``captures``, ``rotates``, ``in_place``, ``flops`` and
    ``rate_dtype``. Bytes are those of inputs and outputs unless ``work`` says otherwise; with a
    ``rate_dtype`` and neither ``flops`` nor ``work``, torch counts the reference's operations.
    """
    points = points_of(smoke=smoke, nightly=nightly, full=full)
    return lambda inputs: Operator(inputs, points, fields)


def case(
    *, smoke: Points = (), nightly: Points = (), full: Points = (), **fields: Any
) -> Callable[[Function], model.Case]:
    """Make a case of a builder, ``build(ctx, *, axes...)``, where ``operator`` is not enough.

    It returns a ``Workload``, ``Inspection`` or ``Scenario``. Points are those of ``operator``.
    """
    points = {"smoke": smoke, "nightly": nightly, "full": full}
    axes = fields.get("axes")
    every = points_of(**points) if axes is None else _by_axes(points, fields)
    return lambda build: _case(build, _axes_of(build) if axes is None else axes, every, fields)


def _case(
    build: Function, axes: Iterable[str], points: Iterable[Bound], fields: dict[str, Any]
) -> model.Case:
    """Return a case of ``points``, which come tier by tier: the first that lists one has it."""
    fields = {"name": build.__name__, "doc": build.__doc__ or "", **fields}
    names = tuple(dict.fromkeys(axes))
    bound: dict[tuple[tuple[type, model.Scalar], ...], Bound] = {}
    for tier, point in points:
        if set(point) != set(names):
            what = f"a point of case {fields['name']!r} binds {', '.join(point) or 'no axis'}"
            raise ValueError(f"{what}; its axes are {', '.join(names) or 'none'}")
        key = tuple((type(point[name]), point[name]) for name in names)
        bound.setdefault(key, (tier, {name: point[name] for name in names}))
    fields |= {
        name: tuple(fields.get(name, ())) for name in ("needs", "budgets", "tags", "metrics")
    }
    # Its name will do; what a worker compares must be the regime itself.
    fields["regime"] = model.Regime(fields.get("regime", model.Regime.PACED))
    points = tuple(bound.values())
    values = {name: tuple(dict.fromkeys(point[name] for _, point in points)) for name in names}
    return model.Case(build=build, axes=values, points=points, **fields)


def _by_axes(points: Mapping[str, Any], fields: dict[str, Any]) -> list[Bound]:
    """Return points as packs of API 1 say them: products of axes, and what is left out of them."""
    told = "case(axes=...) goes with API 3: list the points of each tier, as operator says"
    with suppress(DeprecationWarning):  # where warnings are errors an old pack would be none
        warnings.warn(told, DeprecationWarning, stacklevel=3)
    axes, only = fields.pop("axes"), fields.pop("only", None)
    listed = {tier: {**axes, **dict(some)} for tier, some in points.items()}
    every = points_of(**{tier: {k: [*v] for k, v in some.items()} for tier, some in listed.items()})
    return [(tier, each) for tier, each in every if not only or only(**each)]


def _axes_of(function: Function) -> tuple[str, ...]:
    """Return the names of a function's parameters behind the first, which are axes."""
    others = [*inspect.signature(function).parameters.values()][1:]
    return tuple(each.name for each in others if each.kind is not each.VAR_KEYWORD)


def _bound(function: Function, axes: model.Axes) -> Function:
    """Return a function with the axes that it names by keyword, or all where it takes any."""
    found = inspect.signature(function).parameters.values()
    named = {each.name for each in found if each.kind is each.KEYWORD_ONLY}
    named |= {*axes} if any(each.kind is each.VAR_KEYWORD for each in found) else set()
    given = {name: value for name, value in axes.items() if name in named}
    return partial(function, **given) if given else function
