"""Imports a pack, refuses what does not hold, expands its cases; calls its hooks in pytest."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pluggy
from msgspec import Struct
from msgspec.structs import replace

from perfsuite import API_VERSION, boundary, hooks, model
from perfsuite.packs.declare import Implementation, Operator
from perfsuite.packs.find import GROUP, Fault
from perfsuite.store.files import convert, encode, read_json, read_stored

T = TypeVar("T")

# Words of --perf-select that are not axes.
RESERVED = ("pack", "case", "tag")
ARCH = re.compile(r"sm_(\d+)([af]?)(\+?)\Z")
TARGET = re.compile(r"sm_\d{2,3}[af]?\Z")
NO_DOCSTRINGS = 2  # PYTHONOPTIMIZE=2: Python itself drops them all
NEEDS = ("device", "arch", "gpus", "package", "feature")
DECLARED = model.Case | model.Claim | Operator
HOOKS = sorted(name for name in vars(hooks) if name.startswith("perf_"))
# What a pack's kernels were compiled as on a GPU, beside its modules.
RECORDED, RECORDED_SCHEMA = "codegen.json", "perfsuite.codegen/1"
# What may not come into pytest's process by a pack.
HEAVY = "torch"
# Of a table of a section.
MOST_ROWS = 5000


@dataclass(frozen=True, slots=True)
class LoadedPack:
    """An imported pack with its kernels, which have its name before theirs; its cases by name."""

    pack: model.Pack
    cases: Mapping[str, model.Case]
    claims: tuple[model.Claim, ...]
    operators: Mapping[str, Operator]


def load_pack(name: str, origin: str, kernels: Sequence[model.Kernel] | None = ()) -> LoadedPack:
    """Import a pack and return what it declares; whatever is wrong with it is a ``PackError``.

    ``kernels`` are those of all packs, for a pack that wants them; with None, which says that they
    are not known yet, such a pack is not asked for its cases. Runs the pack's code, so only in the
    catalogue child, a worker or a pack author's own test.
    """
    source = model.Pack(name=name, origin=origin)
    provider = _imported(source)
    hook = _hooks_of(source, provider)

    what = "perfsuite.Kernel objects"
    own = list(_returned(source, hook.perf_kernels, model.Kernel, what, many=True))
    own += _recorded(source, provider)
    _check_each(source, "kernel", own, _of_kernel)
    wants = any("kernels" in each.argnames for each in hook.perf_cases.get_hookimpls())
    declared: Sequence[Any] = ()
    operators: dict[str, Operator] = {}
    if kernels is not None or not wants:
        what, kind = "cases (builders decorated with @perfsuite.case) and claims", DECLARED
        declared = _returned(
            source, hook.perf_cases, kind, what, many=True, kernels=tuple(kernels or ())
        )
        operators = {each.name: each for each in declared if isinstance(each, Operator)}
        what = "a mapping of cases, such as compute.softmax, to perfsuite.Implementation objects"
        theirs = _returned(source, hook.perf_implementations, Mapping, what) or {}
        note, others = _of_others(source, theirs)
        source = replace(source, note=note)
        declared = list(_spelled_out(source, [*declared, *others]))
    built = [each for each in declared if isinstance(each, model.Case)]
    claims = tuple(each for each in declared if isinstance(each, model.Claim))
    _check_each(source, "case", built, _of_case)
    cases = {each.name: each for each in built}
    _check_each(source, "claim", claims, lambda claim: _of_claim(claim, cases))
    what = "the name of a module, in words that import takes"
    module = _returned(source, hook.perf_controller, str | None, what)
    what = "a perfsuite.Accelerator, or None where there is none"
    device = _returned(source, hook.perf_device, model.Accelerator | None, what)
    named = (replace(each, name=f"{name}.{each.name}", folder=source.folder) for each in own)
    pack = replace(
        source,
        kernels=tuple(named),
        wants_kernels=wants,
        controller=module or "",
        accelerator=replace(device, folder=source.folder) if device else None,
    )
    return LoadedPack(pack, cases, claims, operators)


def _returned(
    source: model.Pack, asked: Any, kind: Any, what: str, *, many: bool = False, **arguments: Any
) -> Any:
    """Return what the pack's own implementation of a hook returns; nothing if it has none."""
    try:
        answers = asked(**arguments)
    except (Exception, SystemExit) as error:
        told_of = f"{asked.name}() raised {told(error)}"
        raise source.refuse(told_of, remedy="correct the hook or what it imports") from error
    if not asked.get_hookimpls():
        return () if many else None
    found: Any = answers[0] if answers else None
    is_list = isinstance(found, list | tuple)
    for each in found if many and is_list else (found,):
        if not isinstance(each, kind) or is_list is not many:
            told_of = f"{asked.name}() returned {each!r}, a {type(each).__name__}"
            raise source.refuse(told_of, remedy=f"return {what}{', in a list' * many}")
    return found


class Recorded(Struct, frozen=True, forbid_unknown_fields=True):
    """The kernels of a pack, as its file of them says: files are relative to its package."""

    kernels: tuple[model.Kernel, ...]


def _recorded(source: model.Pack, package: Any) -> Iterator[model.Kernel]:
    """Yield what the file in the pack's package lists, if it is a package and there is one."""
    for folder in map(Path, getattr(package, "__path__", ())):
        file, where = folder / RECORDED, str(folder / RECORDED)
        try:
            if (found := read_stored(file, RECORDED_SCHEMA)) is None:
                continue
            kernels = convert(found, Recorded, where=where).kernels
        except OSError as error:
            raise source.refuse(f"{where} cannot be read: {error.strerror}") from error
        except boundary.StoreError as error:
            what = f"{error.what} ({error.where})"
            raise source.refuse(what, remedy=error.remedy) from error
        for each in kernels:
            yield replace(each, file=str(folder / each.file)) if each.file else each


def _spelled_out(source: model.Pack, declared: Iterable[Any]) -> Iterator[model.Case | model.Claim]:
    """Yield cases and claims, those of an operator in its place."""
    for each in declared:
        if not isinstance(each, Operator):
            yield each
            continue
        try:
            yield from each.declared()
        except ValueError as error:
            raise source.refuse(str(error), remedy="correct the operator") from error


def _of_others(
    source: model.Pack, theirs: Mapping[str, Sequence[Implementation]]
) -> tuple[str, list[Operator]]:
    """Return other packs' operators, with this pack's implementations in place of theirs.

    The text says which of the packs are not installed.
    """
    entries = {each.name: each.value for each in entry_points(group=GROUP)} if theirs else {}
    named = {case.partition(".")[0] for case in theirs} - {source.name}
    known = {pack: load_pack(pack, f"module:{entries[pack]}@") for pack in named & {*entries}}
    found = []
    for case, own in theirs.items():
        pack, _, name = case.partition(".")
        if pack in known and name in known[pack].operators:
            found.append(known[pack].operators[name].with_only(own))
        elif pack in known or pack == source.name:
            told = f"perf_implementations names {case!r}, which is no operator of another pack"
            there = ", ".join(known[pack].operators) if pack in known else ""
            raise source.refuse(told, remedy=f"choose among {there}" if there else "use @impl")
    absent, what = sorted(named - {*entries}), "implementations of its operators are left out"
    return f"{' and '.join(absent)} not installed: {what}" if absent else "", found


def _imported(source: model.Pack) -> Any:
    """Return the module, or the object, that the pack registers."""
    kind, _, value = source.origin.partition(":")
    if kind not in {"module", "file"} or not value:
        raise source.refuse("the origin is neither module:NAME@FOLDER nor file:PATH")
    try:
        if kind == "module":
            if source.folder and source.folder not in sys.path:
                sys.path.insert(0, source.folder)
            entry = EntryPoint(name=source.name, value=value.partition("@")[0], group=GROUP)
            return entry.load()
        name = f"perfsuite_file_{source.name}"
        # Registered before it runs: dataclasses and inspect look a class's module up there.
        spec: Any = importlib.util.spec_from_file_location(name, value)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        remedy = "make the pack importable; what needs a GPU library belongs in a case's builder"
        raise source.refuse(f"importing the pack raised {told(error)}", remedy=remedy) from error
    return module


def _manager(specs: Any, provider: object, name: str) -> pluggy.PluginManager:
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(specs)
    manager.register(provider, name=name)
    manager.check_pending()
    return manager


def _hooks_of(source: model.Pack, provider: Any) -> Any:
    """Register the provider with a manager of its own; refuse hooks that nobody would call."""
    stated = getattr(provider, "PERFSUITE_API", 1)
    if stated not in range(1, API_VERSION + 1):
        what = f"it states PERFSUITE_API = {boundary.shown(stated)}, and this perfsuite knows 1"
        raise source.refuse(f"{what} to {API_VERSION}", remedy="install a newer perfsuite")
    remedy = (
        f"mark hooks with @perfsuite.hookimpl: {', '.join(HOOKS)}. perfsuite.hooks has "
        "their arguments. Give other functions no name perf_*"
    )
    try:
        manager = _manager(hooks, provider, source.name)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise source.refuse(f"a hook is not as specified: {error}", remedy=remedy) from error
    # Pluggy passes functions that only look like hooks over in silence.
    home = provider.__name__ if isinstance(provider, ModuleType) else type(provider).__module__
    for name, function in inspect.getmembers(provider, inspect.isroutine):
        module = getattr(function, "__module__", None) or ""
        is_own = module.partition(".")[0] == home.partition(".")[0]
        if name.startswith("perf_") and is_own and not hasattr(function, f"{GROUP}_impl"):
            what = "is not marked as a hook" if name in HOOKS else "is no hook"
            raise source.refuse(f"{name}() {what}", remedy=remedy)
    if not manager.get_hookcallers(provider):
        raise source.refuse("the pack implements no hook", remedy=remedy)
    return manager.hook


def told(error: BaseException) -> str:
    """Return the error's type, text and the last line of the pack that it passed through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        at = f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {error}{at}"


def _check_each(
    source: model.Pack, kind: str, declared: Iterable[Any], faults: Callable[[Any], Iterable[Fault]]
) -> None:
    """Raise ``PackError`` for the first that does not hold, or has the name of one before."""
    seen = set()
    for each in declared:
        at = f"{kind} {boundary.shown(each.name)}"
        source.check(at, faults(each))
        key = getattr(each, "case", ""), each.name
        if key in seen:
            what = f"two {kind}s have the name {each.name!r}"
            raise source.refuse(what, remedy="rename one of them", at=at)
        seen.add(key)


def _of_case(case: model.Case) -> Iterator[Fault]:
    doc = case.doc
    names = (case.name, *case.axes, *case.tags, *(m.unit for m in case.metrics))
    yield from _of_texts(names, boundary.NAME_CHARACTERS)
    yield from _of_texts((doc, case.source, *(budget.reason for budget in case.budgets)))
    if not doc.strip() and sys.flags.optimize < NO_DOCSTRINGS:
        yield "the case has no docstring", "say in the builder's docstring what is measured"
    if not case.points:
        yield "the case has no point", "list one in smoke, nightly or full"
    if not case.source.strip():
        yield "the case has no source", "name the book, paper or manual: @case(source=...)"
    for axis in case.axes:
        yield from _of_axis(case, axis)
    for value in case.axes.get(case.ranks, ()):
        if type(value) is not int or value < 1:
            what = f"axis {case.ranks!r} holds ranks and has the value {value!r}"
            yield what, "use whole numbers from 1 on"
    for budget in case.budgets:
        yield from _of_metric(case, budget.metric, "a budget")
    yield from _of_needs(case.needs)


def _of_axis(case: model.Case, axis: str) -> Iterator[Fault]:
    """Yield values that no id can carry, and those that would give two variants one id."""
    if axis in RESERVED:
        what = f"axis {axis!r} has a reserved name"
        yield what, f"rename it; {', '.join(RESERVED)} mean other things in a selection"
    first: dict[str, model.Scalar] = {}
    for value in case.axes[axis]:
        is_number = isinstance(value, (int, float)) and boundary.is_measurable(value)
        if not (isinstance(value, str) or is_number) or not model.VALUE.match(
            model.format_value(value)
        ):
            what = f"axis {axis!r} has the value {boundary.shown(value)}, a {type(value).__name__}"
            yield what, f"use str, bool or finite numbers that match {model.VALUE.pattern}"
        text = model.format_value(value)
        yield from _of_texts((text,), boundary.NAME_CHARACTERS)
        if type(first.setdefault(text, value)) is not type(value):
            what = f"axis {axis!r} has two values that read {text!r}"
            yield what, "give it the same type in all tiers"


def _of_texts(texts: Iterable[Any], most: int = boundary.TEXT_CHARACTERS) -> Iterator[Fault]:
    """Yield texts that would garble or flood a terminal or a page."""
    for text in texts:
        told = boundary.shown(text)
        if not isinstance(text, str):
            yield f"{told} is of a wrong type, {type(text).__name__}", "write a text"
        elif len(text) > most:
            yield f"the text {told} has {len(text)} characters, more than {most}", "cut it"
        elif boundary.plain(text, most=most) != text:
            yield f"the text {told} has control characters", "leave them out"


def _of_metric(case: model.Case, metric: str, what: str) -> Iterator[Fault]:
    """Yield a metric that neither the case has nor perfsuite takes of it: nothing would hold it."""
    own = () if case.regime == model.Regime.EXACT else model.OWN_METRICS
    known = (*own, *(metric.name for metric in case.metrics))
    if metric not in known:
        remedy = f"declare it in metrics=..., or name one of {', '.join(known) or 'those it has'}"
        yield f"{what} is about the metric {boundary.shown(metric)}, which its case lacks", remedy


def _of_needs(needs: Sequence[Any]) -> Iterator[Fault]:
    for need in needs:
        if getattr(need, "kind", need) not in NEEDS:  # a bare word is no need
            yield f"unknown kind of need {getattr(need, 'kind', need)!r}", f"use {', '.join(NEEDS)}"
        if need.kind == "arch" and not ARCH.match(need.value):
            yield f"need arch {need.value!r} is no architecture", "write sm_90, sm_90a or sm_90+"
        if need.kind == "gpus" and not need.value.isdigit():
            yield f"need gpus {need.value!r} is no number", "write gpus(2)"


def _of_claim(claim: model.Claim, cases: Mapping[str, model.Case]) -> Iterator[Fault]:
    if not model.NAME.match(claim.name):
        name = boundary.shown(claim.name)
        yield f"claim name {name} must match {model.NAME.pattern}", "rename it"
    yield from _of_texts((claim.name,), boundary.NAME_CHARACTERS)
    text, than = (claim.than, {}) if isinstance(claim.than, str) else ("", claim.than)
    yield from _of_texts((claim.source, text))
    if claim.case not in cases:
        yield f"unknown case {claim.case!r}", f"use one of {', '.join(cases)}"
    yield from _of_needs(claim.needs)
    case = cases[claim.case]
    if claim.metric in model.NOISY:
        remedy = "leave metric=... out for the time, or name another"
        yield f"a claim is about an exact metric, and {claim.metric} has noise", remedy
    if claim.metric:
        yield from _of_metric(case, claim.metric, "the claim")
    bound = [(axis, (side[axis],)) for side in (claim.faster, than) for axis in side]
    for axis, values in (*bound, *claim.at.items()):
        known = case.axes.get(axis, ())
        if axis not in case.axes:
            yield f"case {case.name!r} has no axis {axis!r}", f"use one of {', '.join(case.axes)}"
        for value in [value for value in values if value not in known]:
            what = f"axis {axis!r} of case {case.name!r} has no value {value!r}"
            yield what, f"use one of {', '.join(map(repr, dict.fromkeys(known)))}"


def _of_kernel(kernel: model.Kernel) -> Iterator[Fault]:
    yield from _of_texts((kernel.name,), boundary.NAME_CHARACTERS)
    if not kernel.function:
        yield "the kernel names no function", "give the function's name"
    if kernel.file and not (Path(kernel.file).is_absolute() and Path(kernel.file).is_file()):
        remedy = "write str(Path(__file__).with_name(...)), and ship the file with the pack"
        yield f"{kernel.file!r} is no file with an absolute path", remedy
    if kernel.module and not all(word.isidentifier() for word in kernel.module.split(".")):
        yield f"{kernel.module!r} is no module's name", "write it as in an import statement"
    for target in [target for target in kernel.targets if not TARGET.match(target)]:
        yield f"target {target!r} is no architecture", "write sm_90a, sm_100f or sm_80"
    if len(set(kernel.targets)) < max(1, len(kernel.targets)):
        yield f"targets {kernel.targets!r} are none, or one twice", "name each target once"
    for target in sorted(set(kernel.expects) - set(kernel.targets)):
        yield f"expects names {target!r}, which is no target of it", "add it to targets"


class Listing(Struct, frozen=True):
    """A pack to be listed, from a tree if one is named; ``paths`` is the asker's ``sys.path``.

    A pack whose import brings in a module of ``heavy`` is refused. ``kernels`` are those of all
    packs, None as long as they are not known.
    """

    source: model.Pack
    tier: model.Tier
    heavy: tuple[str, ...]
    paths: tuple[str, ...]
    tree: model.Tree | None = None
    kernels: tuple[model.Kernel, ...] | None = None


def list_pack(asked: Listing, loaded: LoadedPack) -> model.Pack:
    """Expand a loaded pack's cases and claims; what its own formulas raise is a ``PackError``."""
    variants: list[model.Variant] = []
    claims: list[model.ClaimInstance] = []
    canaries: dict[str, list[model.Variant]] = defaultdict(list)
    ceilings: dict[str, list[model.Variant]] = defaultdict(list)
    for case in loaded.cases.values():
        each = _Expanded(loaded.pack, case)
        variants += (own := list(each.variants(asked.tier)))
        for claim in (claim for claim in loaded.claims if claim.case == case.name):
            claims += each.claims(claim, own)
        for device, bound in case.canary.items():
            axes = {axis: bound[axis] for axis in case.axes}
            canaries[device].append(each.variant(axes, model.Tier.FULL))
        every = list(each.variants(model.Tier.FULL)) if case.ceilings else []
        for name, shows in case.ceilings.items():
            shown_by = (one for one in every if each.called(shows, one.axes, f"ceilings[{name!r}]"))
            ceilings[name].extend(shown_by)
    tiers, note = [tier for case in loaded.cases.values() for tier, _ in case.points], ""
    if tiers and not variants:
        first = min(tiers, key=[*model.Tier].index)
        note = f"no variants in tier {asked.tier}; --perf-tier {first} has {tiers.count(first)}"
    return replace(
        loaded.pack,
        note="; ".join(filter(None, (loaded.pack.note, note))),
        version=asked.source.version,
        variants=tuple(variants),
        claims=tuple(claims),
        canaries={name: tuple(some) for name, some in canaries.items()},
        ceilings={name: tuple(some) for name, some in ceilings.items()},
    )


class _Expanded:
    """A case of a pack, and what its formulas say of its bindings."""

    def __init__(self, source: model.Pack, case: model.Case) -> None:
        self.source, self.case = source, case
        operator = getattr(case.build, "__self__", None)
        build: Any = operator.place if isinstance(operator, Operator) else case.build
        build = inspect.unwrap(getattr(build, "func", build))
        code = getattr(build, "__code__", None)
        self._info = model.CaseInfo(
            **{name: getattr(case, name) for name in model.Declared.__struct_fields__},
            pack=source.name,
            doc=inspect.cleandoc(case.doc),
            file=_place(code.co_filename) if code else "",
            line=code.co_firstlineno if code else 0,
            axes=tuple(case.axes),
        )
        try:
            read_json(encode(self._info), where=case.name)
        except boundary.StoreError as error:  # a budget or threshold that no run file could hold
            at, remedy = f"case {case.name!r}", "correct the case"
            raise source.refuse(error.what, remedy=remedy, at=at) from error

    def variants(self, tier: model.Tier) -> Iterator[model.Variant]:
        """Yield the variants of a tier; each tier contains those before."""
        for each in [*model.Tier][: [*model.Tier].index(tier) + 1]:
            for own, axes in self.case.points:
                if own is each:
                    yield self.variant(axes, own)

    def variant(self, axes: model.Axes, tier: model.Tier) -> model.Variant:
        """Return a binding as a variant."""
        case = self.case
        work: Any = self.called(case.work, axes, "work") if case.work else None
        if not isinstance(work, model.Work | None):
            told = f"returned {boundary.shown(work)}"
            raise self._refused("work", axes, told, "return a perfsuite.Work")
        size: Any = self.called(case.memory_bytes, axes, "memory_bytes") if case.memory_bytes else 0
        if not isinstance(size, (int, float)) or not 0 <= size <= boundary.MOST_WHOLE:
            remedy = "return the bytes of memory one process of the variant needs"
            raise self._refused("memory_bytes", axes, f"returned {boundary.shown(size)}", remedy)
        name = model.variant_id(self.source.name, case.name, axes)
        return model.Variant(
            id=name, case=self._info, axes=axes, tier=tier, work=work, memory_bytes=int(size)
        )

    def claims(
        self, claim: model.Claim, variants: Sequence[model.Variant]
    ) -> Iterator[model.ClaimInstance]:
        """Yield a claim of the case once per binding of the other axes that has both variants."""
        ids = {tuple(variant.axes.values()): variant.id for variant in variants}
        meant = [*claim.at.items(), *((axis, (value,)) for axis, value in claim.faster.items())]
        for variant in variants:
            axes, case = variant.axes, variant.case
            if isinstance(claim.than, str):  # whether there is that one, a run sees
                shown = {axis: model.format_value(value) for axis, value in axes.items()}
                than = self.called(claim.than.format, shown, f"claim {claim.name}")
            else:
                than = ids.get(tuple({**axes, **claim.than}.values()), "")
            if not than or not all(axes[axis] in values for axis, values in meant):
                continue
            if than == variant.id or not re.match(r"\w+\.\w+\[", than):
                told, remedy = f"compares with {than!r}", "name another one, as acme.copy[n={n}]"
                raise self._refused(f"claim {claim.name}", axes, told, remedy)
            others = {axis: value for axis, value in axes.items() if axis not in claim.faster}
            yield model.ClaimInstance(
                **{name: getattr(claim, name) for name in model.Ratio.__struct_fields__},
                id=model.variant_id(case.pack, f"{case.name}:{claim.name}", others),
                pack=case.pack,
                faster=variant.id,
                than=than,
                file=case.file,
                line=case.line,
            )

    def called(self, formula: Callable[..., T], axes: model.Axes, part: str) -> T:
        """Call a formula of the case; what it raises is the pack's error."""
        try:
            return formula(**axes)
        except Exception as error:
            told = f"raised {type(error).__name__}: {error}"
            raise self._refused(part, axes, told, f"correct the case's {part}") from error

    def _refused(self, part: str, axes: model.Axes, told: str, remedy: str) -> boundary.PackError:
        bound = ", ".join(f"{axis}={value!r}" for axis, value in axes.items())
        at = f"case {self.case.name!r}"
        return self.source.refuse(f"{part}({bound}) {told}", remedy=remedy, at=at)


def _place(file: str) -> str:
    """Return a path that means the same on other machines, and does not tell whose this one is.

    Inside the current folder's repository it leads there from that folder.
    """
    path, here = Path(file), Path.cwd()
    top = next((each for each in (here, *here.parents) if (each / ".git").exists()), here)
    if path.is_relative_to(top):
        return Path(os.path.relpath(path)).as_posix()
    return Path(*path.parts[-2:]).as_posix()


class Listeners:
    """The controller hooks of packs, contained as far as pytest's own process allows.

    What one raises is in ``notes``, and that hook of the pack is not called again. One that hangs
    stops pytest until Ctrl-C, and one that ends the process leaves nothing to write: the run file
    is whole before.
    """

    def __init__(self, packs: Sequence[model.Pack]) -> None:
        self.notes: list[str] = []
        self._hooks: dict[str, pluggy.PluginManager] = {}
        self._silenced: set[tuple[str, str]] = set()
        for pack in packs:
            if pack.controller and not pack.error:
                with self._contained(pack.name, f"module {pack.controller!r}"):
                    self._hooks[pack.name] = _listening(pack)

    def tell(self, run: model.Run) -> None:
        """Tell of each result and each verdict of a run, in a copy: a hook may change its own."""
        if not self._hooks:
            return
        run = deepcopy(run)
        variants = {one.id: one.variant for one in run.variants}
        for result in run.asked:
            if result.variant in variants:
                self._call("perf_result", result=result, variant=variants[result.variant])
        for verdict in run.verdicts:
            variant = variants[verdict.variant]
            self._call("perf_verdict", verdict=verdict, variant=variant, run=run)

    def sections(self, run: model.Run) -> tuple[model.Section, ...]:
        """Return what packs add to the report of a run."""
        if not self._hooks:
            return ()
        found: list[model.Section] = []
        self._call("perf_report_section", lambda each: found.extend(_cut(each)), run=deepcopy(run))
        return tuple(found)

    def _call(self, hook: str, take: Callable[[Any], object] = bool, **arguments: Any) -> None:
        """Call a hook of each pack; ``take`` is called with each thing that it returns."""
        for pack, manager in self._hooks.items():
            if (pack, hook) in self._silenced:
                continue
            with self._contained(pack, hook):
                for returned in getattr(manager.hook, hook)(**arguments):
                    take(returned)

    @contextmanager
    def _contained(self, pack: str, what: str) -> Iterator[None]:
        """Note what a pack's code raises, and silence it."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a pack costs no run
            self._silenced.add((pack, what))
            why = error.what if isinstance(error, boundary.PerfError) else told(error)
            self.notes.append(boundary.plain(f"pack {pack}, {what}: {boundary.plain(why)}"))


def _listening(pack: model.Pack) -> pluggy.PluginManager:
    # Last of all: nothing of a pack may stand before what pytest and its plugins import.
    if pack.folder and pack.folder not in sys.path:
        sys.path.append(pack.folder)
    before = HEAVY in sys.modules
    module = importlib.import_module(pack.controller)  # noqa: TID251 - a pack names it
    what = ""
    if HEAVY in sys.modules and not before:
        what = f"it imports {HEAVY} into pytest's process"
    elif pack.folder and not str(module.__file__).startswith(pack.folder):
        what = f"{module.__file__} is another one of that name"
    if what:
        raise pack.refuse(f"{what}; its hooks are not called")
    return _manager(hooks.Controller, module, pack.name)


def _cut(returned: model.Section | Sequence[model.Section]) -> Iterator[model.Section]:
    """Yield the sections that a hook returned, in plain text and no longer than a page bears."""
    for section in (returned,) if isinstance(returned, model.Section) else returned:
        if not isinstance(section, model.Section):
            raise TypeError(f"returned {section!r}, which is no perfsuite.Section")
        text = boundary.plain(section.text, most=boundary.PAGE_CHARACTERS)
        if lost := len(section.rows) - MOST_ROWS:
            text += f" {lost} more rows are not shown." if lost > 0 else ""
        columns, *rows = (
            tuple(map(boundary.plain, row)) for row in (section.columns, *section.rows[:MOST_ROWS])
        )
        title = boundary.plain(section.title, most=boundary.NAME_CHARACTERS)
        yield model.Section(title=title, text=text, columns=columns, rows=tuple(rows))


def chosen_accelerator(device: str, packs: Iterable[model.Pack]) -> model.Accelerator | None:
    """Return the device of a pack that is meant by ``device``; None where it is a built-in one.

    ``auto`` means the first that this machine has, by name. ``UsageError`` for a name that nothing
    has, or that two packs have.
    """
    known = [(pack.accelerator, pack.name) for pack in packs if pack.accelerator]
    known.sort(key=lambda pair: (pair[0].name, pair[1]))
    if device == "auto":
        return next((each for each, _ in known if each.units and each.is_automatic), None)
    named = [(each, owner) for each, owner in known if each.name == device]
    if not named and device in model.BUILT_IN_DEVICES:
        return None
    names = sorted({*model.BUILT_IN_DEVICES, *(each.name for each, _ in known)})
    what = f"unknown device {device!r}"
    remedy = f"choose auto, {', '.join(names)}; a pack brings more, if it can be listed"
    if len(named) > 1:
        what = f"two packs bring a device {device!r}: {' and '.join(own for _, own in named)}"
        remedy = "choose one of the packs with --perf-packs"
    if len(named) != 1:
        raise boundary.UsageError(what, where="--perf-device", remedy=remedy)
    return named[0][0]
