"""The hooks through which packs and features reach the core.

A feature is a package beside the core; it is there by its line in ``FEATURES``, and its hooks,
those of ``Feature``, stand in its ``__init__``. The other hooks are a pack's. Those of
``perf_cases``, ``perf_kernels``, ``perf_device`` and ``perf_controller`` stand in the pack's own
module, which is imported in child processes only. Those of ``Controller`` stand in the module that
``perf_controller`` names: it alone is imported in pytest's process, after the last measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module  # noqa: TID251 - features are packages of ours
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from datetime import date

    import typer
    from markupsafe import Markup

    from perfsuite import model
    from perfsuite.packs.declare import Implementation, Operator
    from perfsuite.report.data import Explained, RunView, SideView, VariantView
    from perfsuite.run.config import Config, Exceptions
    from perfsuite.run.run import Steps, Work
    from perfsuite.store.baselines import Root

# Without its line a feature is not there, and all else is.
FEATURES = (
    "perfsuite.explain",
    "perfsuite.history",
    "perfsuite.interop",
    "perfsuite.nightly",
    "perfsuite.prove",
)

hookspec = pluggy.HookspecMarker("perfsuite")
hookimpl = pluggy.HookimplMarker("perfsuite")


@hookspec
def perf_cases(  # type: ignore[empty-body]
    kernels: Sequence[model.Kernel],
) -> Sequence[model.Case | Operator | model.Claim]:
    """Return the pack's cases and claims.

    ``kernels`` are those that all packs hand over, each named ``pack.kernel``; most packs leave
    the argument out.

    Called in the catalogue child to list variants, and again in each worker to build one. Must
    not import torch or a kernel: a case's builder does that when it is called. Example::

        import perfsuite

        @perfsuite.case(smoke={"n": [1000, 1001]}, source="a cookbook", needs=[perfsuite.cuda()])
        def add(ctx, n):
            '''Add one to n floats.'''
            return perfsuite.Workload(
                fn=lambda x: x + 1,
                make_inputs=lambda rng: (rng.randn(n),),
                reference=lambda x: x.double() + 1,
                wrong=lambda x: x,
            )

        @perfsuite.hookimpl
        def perf_cases():
            return [add]
    """


@hookspec
def perf_implementations() -> Mapping[str, Sequence[Implementation]]:  # type: ignore[empty-body]
    """Return implementations of other packs' operators, by case.

    Each gets the operator's inputs at all its points and is held against its reference; the
    variants are this pack's, with baselines of its own. Called where ``perf_cases`` is. Example::

        import perfsuite

        def softmax(x, y):
            import acme

            acme.softmax(x, out=y)

        @perfsuite.hookimpl
        def perf_implementations():
            return {"compute.softmax": [perfsuite.Implementation(name="acme", function=softmax)]}
    """


@hookspec
def perf_kernels() -> Sequence[model.Kernel]:  # type: ignore[empty-body]
    """Return the pack's kernels as plain data, to be compiled and inspected where no GPU is.

    Those of ``codegen.json`` in the pack's package are added: most packs need no hook.

    Called in the catalogue child; must import neither torch nor a kernel. Example::

        from pathlib import Path

        import perfsuite

        @perfsuite.hookimpl
        def perf_kernels():
            file = str(Path(__file__).with_name("softmax.cu"))
            softmax = perfsuite.Kernel(name="softmax", language="cuda", function="f", file=file)
            return [softmax]
    """


@hookspec
def perf_device() -> model.Accelerator | None:
    """Return the device that the pack brings, as plain data; None where it can bring none.

    Called in the catalogue child, within the time limit of listing: look for units without
    starting a driver. ``opens`` is called in workers and in ``perfsuite doctor`` and returns a
    ``perfsuite.Device``; its module may import what it needs. Example::

        from pathlib import Path

        import perfsuite

        @perfsuite.hookimpl
        def perf_device():
            units = tuple(path.name for path in Path("/dev").glob("acme[0-9]*"))
            return perfsuite.Accelerator(name="acme", opens="perfsuite_acme.a1:A1", units=units)
    """


@hookspec
def perf_controller() -> str:  # type: ignore[empty-body]
    """Return the name of the module with the pack's hooks of ``Controller``.

    Called in the catalogue child, where that module is not imported. Only light things may be
    imported in it, and by the packages around it: it shares pytest's process. Example::

        import perfsuite

        @perfsuite.hookimpl
        def perf_controller():
            return "perfsuite_acme.controller"
    """


class Controller:
    """What a pack may listen to and add in pytest's process, in the module that it names for it.

    All are called once the run is measured, judged and stored, so that none disturbs a measurement;
    of every pack that the session listed, whatever packs were measured. What one raises becomes a
    note of the report that names pack and hook, and the exit status is not 0; that hook of the pack
    is not called again. One that hangs stops pytest until Ctrl-C. One that ends the process
    (``os._exit``) ends pytest with the status that it names, 0 as well: only the missing summary
    and report tell. What hooks are handed is a copy of theirs.
    """

    @hookspec
    def perf_result(self, result: model.Result, variant: model.Variant) -> None:
        """Take notice of how one variant ended in one stage: screen, and confirm if there was one.

        Example::

            import perfsuite

            @perfsuite.hookimpl
            def perf_result(result, variant):
                with open("acme.log", "a") as log:
                    print(variant.id, result.stage.value, result.status.value, file=log)
        """

    @hookspec
    def perf_verdict(self, verdict: model.Verdict, variant: model.Variant, run: model.Run) -> None:
        """Take notice of the verdict on one variant; ``run`` is the whole run.

        Example::

            import perfsuite

            @perfsuite.hookimpl
            def perf_verdict(verdict, variant, run):
                if verdict.fails and variant.pack == "acme":
                    with open("tickets.log", "a") as log:
                        print(run.commit, variant.id, verdict.reason, file=log)
        """

    @hookspec
    def perf_report_section(self, run: model.Run) -> model.Section | Sequence[model.Section] | None:
        """Return what the report is to say besides: a section, several, or none.

        Also called when a report is made again from a run file. A section holds text and a table,
        shown as text wherever they go. Example::

            import perfsuite

            @perfsuite.hookimpl
            def perf_report_section(run):
                rows = [(r.variant, f"{r.wall_s:.1f}") for r in run.asked if "acme." in r.variant]
                return perfsuite.Section(
                    title="Acme: wall time", text="What each variant cost.",
                    columns=("variant", "seconds"), rows=rows,
                )
        """


class Feature:
    """What a feature adds. It is imported with pytest's plugin: its ``__init__`` must be light."""

    @hookspec
    def perf_options(self) -> Mapping[str, Mapping[str, Any]]:  # type: ignore[empty-body]
        """Return options of pytest by name, ``--perf-x``, and settings, ``perf_x``."""

    @hookspec
    def perf_commands(self, app: typer.Typer, baseline: typer.Typer) -> None:
        """Add commands to ``perfsuite`` and to ``perfsuite baseline``."""

    @hookspec(firstresult=True)
    def perf_past(  # type: ignore[empty-body]
        self, run: model.Run, config: Config, steps: Steps | None
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return what is known of a run's variants, and notes on what is not.

        A new run is kept first. It has ``steps``: what fails is one of them, and costs nothing
        else. Called again once the run was accepted.
        """

    @hookspec
    def perf_files(self) -> Mapping[str, Callable[[RunView], str]]:  # type: ignore[empty-body]
        """Return files of a report by name, and what makes the text of each."""

    @hookspec(firstresult=True)
    def perf_exceptions(self, roots: Sequence[Root], today: date) -> Exceptions:  # type: ignore[empty-body]
        """Return what may not fail a run, before anything is measured."""

    @hookspec(firstresult=True)
    def perf_fit(self, work: Work) -> Any:
        """Return what chooses the variants of a run that was just opened, None where all are.

        Its ``chosen(variants)`` returns them in order, its ``cut(run)`` the run with what was left.
        """

    @hookspec
    def perf_judged(self) -> Callable[..., model.Run]:  # type: ignore[empty-body]
        """Return what looks closer at a judged run while its devices are held.

        It is called with the run and the work that it is of; it returns the run with what it found.
        """

    @hookspec(firstresult=True)
    def perf_explained(  # type: ignore[empty-body]
        self, change: model.Change | None, before: SideView, now: SideView
    ) -> Explained:
        """Say what a change of a variant's time is made of; nothing of what is not known."""

    @hookspec
    def perf_variant_section(self, variant_view: VariantView) -> Markup:  # type: ignore[empty-body]
        """Return what the page shows of a variant besides."""

    @hookspec
    def perf_doctor(self) -> Sequence[str]:  # type: ignore[empty-body]
        """Return lines about a machine with GPUs."""

    @hookspec
    def perf_testing(self) -> Mapping[str, object]:  # type: ignore[empty-body]
        """Return what ``perfsuite.testing`` has besides, by name."""


@cache
def features() -> pluggy.PluginManager:
    """Return the features' hooks."""
    manager = pluggy.PluginManager("perfsuite")
    manager.add_hookspecs(Feature)
    for name in FEATURES:
        manager.register(import_module(name), name)
    return manager


def added(hook: str) -> dict[str, Any]:
    """Return what the features add through a hook that returns a mapping."""
    return {
        name: value
        for mapping in getattr(features().hook, hook)()
        for name, value in mapping.items()
    }
