"""Loading one pack: import it, register it, call its hooks and refuse what does not hold."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from perfsuite import hookspecs
from perfsuite.model import Accelerator, Case, Claim, Kernel
from perfsuite.packs.sources import GROUP
from perfsuite.packs.validity import Place, check_cases, check_claims, check_kernels


@dataclass(frozen=True, slots=True)
class LoadedPack:
    """The cases by name, the claims and the kernels of an imported pack.

    ``kernels`` have the pack's name before their own, and the folder to import them from.
    ``wants_kernels`` says that the pack makes its cases of the kernels of all packs;
    ``controller`` is the module of its hooks for pytest's process.
    """

    cases: Mapping[str, Case]
    claims: tuple[Claim, ...]
    kernels: tuple[Kernel, ...] = ()
    wants_kernels: bool = False
    controller: str = ""
    accelerator: Accelerator | None = None


def load_pack(name: str, origin: str, kernels: Sequence[Kernel] | None = ()) -> LoadedPack:
    """Import a pack and return what it declares; whatever is wrong with it is a ``PackError``.

    ``kernels`` are those of all packs, for a pack that wants them; with None, which says that they
    are not known yet, such a pack is not asked for its cases. Runs the pack's code, so only in the
    catalogue child, a worker or a pack author's own test.
    """
    place = Place(name, origin)
    manager = _registered(place, _imported(place))
    own = _kernels(place, manager)
    wants = _wants_kernels(manager)
    declared = _declared(place, manager, kernels or ()) if kernels is not None or not wants else ()
    cases = [each for each in declared if isinstance(each, Case)]
    claims = tuple(each for each in declared if isinstance(each, Claim))
    check_cases(place, cases)
    by_name = {case.name: case for case in cases}
    check_claims(place, by_name, claims)
    listened, device = _controller(place, manager), _accelerator(place, manager)
    return LoadedPack(by_name, claims, own, wants, listened, device)


def _imported(place: Place) -> Any:
    """Return the module, or the object, that the pack registers."""
    kind, _, value = place.origin.partition(":")
    if kind not in {"module", "file"} or not value:
        raise place.refuse("the origin is neither module:NAME@FOLDER nor file:PATH")
    try:
        return _from_file(place.name, Path(value)) if kind == "file" else _from_module(place, value)
    except (Exception, SystemExit) as error:
        raise place.refuse(
            f"importing the pack raised {told(error)}",
            remedy="make the pack importable; what needs a GPU library belongs in a case's builder",
        ) from error


def _from_file(name: str, path: Path) -> ModuleType:
    module_name = f"perfsuite_file_{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: dataclasses and inspect look a class's module up there.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _from_module(place: Place, value: str) -> Any:
    name, _, folder = value.partition("@")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    return EntryPoint(name=place.name, value=name, group=GROUP).load()


def _registered(place: Place, provider: Any) -> pluggy.PluginManager:
    """Register the provider with a manager of its own; refuse hooks that nobody would call."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    hooks = sorted(name for name in vars(manager.hook) if name.startswith("perf_"))
    remedy = f"the hooks are {', '.join(hooks)}; perfsuite.hookspecs states their arguments"
    try:
        manager.register(provider, name=place.name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise place.refuse(f"a hook is not as specified: {error}", remedy=remedy) from error
    _check_marked(place, provider, hooks)
    if not manager.get_hookcallers(provider):
        raise place.refuse("the pack implements no hook", remedy=remedy)
    return manager


def _wants_kernels(manager: pluggy.PluginManager) -> bool:
    return any("kernels" in impl.argnames for impl in manager.hook.perf_cases.get_hookimpls())


def _declared(
    place: Place, manager: pluggy.PluginManager, kernels: Sequence[Kernel]
) -> Sequence[Any]:
    kinds = (Case, Claim)
    remedy = "return cases (builders decorated with @perfsuite.case) and claims only"
    return _called(place, manager.hook.perf_cases, kinds, remedy, kernels=tuple(kernels))


def _kernels(place: Place, manager: pluggy.PluginManager) -> tuple[Kernel, ...]:
    """Return the pack's kernels as others know them: its name in front, and where they lie."""
    remedy = "return perfsuite.Kernel objects only"
    kernels: Sequence[Kernel] = _called(place, manager.hook.perf_kernels, (Kernel,), remedy)
    check_kernels(place, kernels)
    return tuple(
        replace(kernel, name=f"{place.name}.{kernel.name}", folder=import_folder(place))
        for kernel in kernels
    )


def _controller(place: Place, manager: pluggy.PluginManager) -> str:
    """Return the module of the pack's hooks for pytest's process, which is not imported here."""
    remedy = "return the name of a module, in words that import takes"
    found = _returned(place, manager.hook.perf_controller)
    if found is not None and not (isinstance(found, str) and found):
        raise place.refuse(f"perf_controller() returned {found!r}", remedy=remedy)
    return found or ""


def _accelerator(place: Place, manager: pluggy.PluginManager) -> Accelerator | None:
    """Return the device that the pack brings, with where it is imported from."""
    found = _returned(place, manager.hook.perf_device)
    if found is not None and not isinstance(found, Accelerator):
        remedy = "return a perfsuite.Accelerator, or None where there is none"
        raise place.refuse(f"perf_device() returned {found!r}", remedy=remedy)
    return replace(found, folder=import_folder(place)) if found else None


def import_folder(place: Place) -> str:
    """Return what a pack's modules need on ``sys.path``; nothing if it is installed."""
    kind, _, value = place.origin.partition(":")
    return str(Path(value).parent) if kind == "file" else value.partition("@")[2]


def _called(
    place: Place, hook: Any, kinds: tuple[type, ...], remedy: str, **arguments: Any
) -> Sequence[Any]:
    """Return the list that a hook returns, if it is one of these kinds; empty if it has none."""
    if not hook.get_hookimpls():
        return ()
    declared = _returned(place, hook, **arguments)
    if not isinstance(declared, (list, tuple)):
        raise place.refuse(f"{hook.name}() returned {declared!r}", remedy=f"{remedy}, in a list")
    for each in declared:
        if not isinstance(each, kinds):
            raise place.refuse(
                f"{hook.name}() returned a list with {each!r}, a {type(each).__name__}",
                remedy=remedy,
            )
    return declared


def _returned(place: Place, hook: Any, **arguments: Any) -> Any:
    """Return what the pack's own implementation of a hook returns; None if it has none."""
    try:
        returned = hook(**arguments)
    except (Exception, SystemExit) as error:
        raise place.refuse(
            f"{hook.name}() raised {told(error)}", remedy="correct the hook or what it imports"
        ) from error
    return returned[0] if returned else None


def _check_marked(place: Place, provider: Any, hooks: Sequence[str]) -> None:
    """Refuse functions that look like hooks and that pluggy would pass over in silence."""
    home = provider if isinstance(provider, ModuleType) else type(provider)
    root = (home.__name__ if isinstance(home, ModuleType) else home.__module__).partition(".")[0]
    for name, function in inspect.getmembers(provider, inspect.isroutine):
        is_own = (getattr(function, "__module__", None) or "").partition(".")[0] == root
        if not name.startswith("perf_") or not is_own or hasattr(function, f"{GROUP}_impl"):
            continue
        what = f"{name}() is not marked as a hook" if name in hooks else f"{name}() is no hook"
        raise place.refuse(
            what,
            remedy=f"mark hooks with @perfsuite.hookimpl; they are {', '.join(hooks)}; other "
            "functions of the module must not be named perf_*",
        )


def told(error: BaseException) -> str:
    """Return the error's type, text and the last line of the pack that it passed through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    if isinstance(error, SyntaxError):
        at = f" ({error.filename}:{error.lineno})"
    else:
        at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{at}"
