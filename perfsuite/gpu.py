"""What cases on a GPU have in common: torch once it is used, the chip's size, the driver, products.

Importing it is free: ``from perfsuite.gpu import torch`` in a pack's module imports torch when a
case is built, not when it is listed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module  # noqa: TID251 - what a pack asks for by name
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from perfsuite.model import Case, Claim, Need
from perfsuite.packs.declare import Operator


class Later(ModuleType):
    """A module that is imported when a name of it is first used, such as one of Triton kernels."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # to look at it is not to import it
            raise AttributeError(name)
        found = getattr(import_module(self.__name__), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import torch as torch  # noqa: PLC0414, TID251 - for type checkers alone
    from cuda.bindings import driver as driver  # noqa: PLC0414
else:
    torch, driver = Later("torch"), Later("cuda.bindings.driver")


# Where #include <ptx.cuh> finds what kernels in CUDA C++ have in common.
INCLUDED = str(Path(__file__).parent / "devices")
# What a kernel in Triton needs.
TRITON = (Need("device", "cuda"), Need("package", "triton"))


def load(ctx: Any, module: str, name: str, **macros: object) -> Any:
    """Return a kernel of the .cu file beside a module, whose ``__file__`` is given."""
    options = tuple(f"-D{macro}={value}" for macro, value in macros.items())
    return ctx.load_cuda(Path(module).with_suffix(".cu"), name, options=options)


def declared_in(package: str, modules: str) -> list[Any]:
    """Return the cases and claims of a package's modules, which are named in order."""
    found: dict[int, Any] = {}
    for name in modules.split():
        for value in vars(import_module(f"{package}.{name}")).values():
            every = value if isinstance(value, tuple) else (value,)
            found |= {id(e): e for e in every if isinstance(e, Case | Claim | Operator)}
    return [*found.values()]


# torch's names of the words that ids have.
DTYPES = {f"fp{bits}": f"float{bits}" for bits in (16, 32, 64)}
DTYPES |= {"bf16": "bfloat16", "tf32": "float32"}


def properties(place: Any = 0) -> Any:
    """Return torch's properties of a GPU."""
    return torch.cuda.get_device_properties(place)


def sm_count(place: Any = 0) -> int:
    """Return how many SMs a GPU has; a CPU, or a machine without a GPU, counts as one."""
    if place == "cpu" or not torch.cuda.is_available():
        return 1
    return int(properties(place).multi_processor_count)


def compiled(fn: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """Return ``fn`` compiled by torch, whole and for fixed sizes, at its first launch.

    Two processes must time the same code: Inductor's choice of a tile by timing is off. It keeps
    no CUDA graphs of its own, so that the engine can capture the launch, and compiles in this
    process, not in a pool that would outlive it. ``more`` are further options of Inductor.
    """
    setattr(import_module("torch._inductor.config"), "compile_threads", 1)  # noqa: B010 - untyped
    options = {"triton.autotune_pointwise": False, **more}
    made: Callable[..., Any] = torch.compile(fn, fullgraph=True, dynamic=False, options=options)
    return made


def asked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a call of ``driver`` gave; raises RuntimeError with its error."""
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"the CUDA driver says {error.name}")
    return tuple(values)


def stream() -> int:
    """Return the handle of torch's current stream, which ``driver`` takes.

    It is what Triton's launcher and torch's own compiled code ask for. The public
    ``torch.cuda.current_stream()`` looks for GPUs and makes an object, which takes longer than all
    else that Python does for a launch.
    """
    return int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))  # noqa: SLF001


def by_rows(formula: Callable[[Any], Any], x: Any, rows: int = 1024) -> Any:
    """Return a formula of the rows of ``x`` in float64, so many at a time."""
    out: Any = None
    for start in range(0, len(x), rows):
        part = formula(x[start : start + rows].double())
        out = part.new_empty((len(x), *part.shape[1:])) if out is None else out
        out[start : start + rows] = part
    return out


def mm(a: Any, b: Any, out: Any) -> None:
    """Write a @ b by torch, that is, by cuBLAS on a GPU: what kernels are held against."""
    torch.mm(a, b, out=out)


def matmul64(a: Any, b: Any, *, rows: int = 2048) -> Any:
    """Return a @ b in float64, ``rows`` of a at a time so that only b is held twice."""
    wide = b.double()
    return by_rows(lambda part: torch.mm(part, wide), a, rows)


def tensor_map(matrix: Any, rows: int) -> Any:
    """Return TMA's map of a row-major bf16 matrix in boxes of ``rows`` x 64, swizzled 128 bytes.

    The launch takes it by value, so a captured graph keeps its own copy.
    """
    kinds = Later("cuda.core._tensor_map")  # its enumerations have no public name yet
    # As 16-bit integers: numpy, whose names of dtypes the view speaks, has no bf16.
    made, whole = Later("cuda.core.utils").StridedMemoryView, matrix.view(torch.uint16)
    how = kinds.TensorMapSwizzle.SWIZZLE_128B, kinds.TensorMapL2Promotion.L2_256B
    view = made.from_any_interface(whole, stream_ptr=-1)
    return view.as_tensor_map((rows, 64), swizzle=how[0], l2_promotion=how[1])
