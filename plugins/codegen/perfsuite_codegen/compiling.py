"""Compiles one kernel for one target, with no GPU and no driver."""

import importlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite import CaseError, Kernel
from perfsuite.gpu import INCLUDED

# Options of Triton's compiler that a kernel's constants may hold beside its own arguments, and what
# they are where nobody says.
TRITON_OPTIONS = {"num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True, "launch_pdl": False}
# Line information holds the paths of sources, and with it the code depends on where they lie.
TRITON_SETTINGS = {"TRITON_DISABLE_LINE_INFO": "1"}
_SMEM = re.compile(r"(\d+) bytes smem")
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")


@dataclass(frozen=True, slots=True)
class Binary:
    """What a compiler made: an ELF image, the kernel's name in it, and what it needs to launch.

    ``shared_bytes`` are static ones and, of Triton's, those asked for at launch. ``warps`` of a
    block are known of Triton's alone, those with roles among them. ``assembly`` is
    LLVM's text of a kernel for AMD, which has no disassembler here.
    """

    cubin: bytes
    symbol: str
    shared_bytes: int
    tensor_memory_columns: int = 0
    warps: int = 0
    assembly: str = ""


def compile_kernel(kernel: Kernel, target: str) -> Binary:
    """Return the machine code of a kernel for sm_90a, gfx942, ...; raises ``CaseError``.

    Where LLVM has no instruction of the target for what a kernel asks, it ends the process.
    """
    make = _compile_cuda if kernel.language == "cuda" else _compile_triton
    try:
        return make(kernel, target)
    except CaseError:
        raise
    except Exception as error:
        raise refusal(kernel, f"does not compile for {target}: {_telling_line(error)}") from error


def refusal(kernel: Kernel, what: str) -> CaseError:
    """Return the error that names the kernel and where it is written."""
    return CaseError(
        f"kernel {kernel.name!r} {what}",
        where=f"{kernel.function} of {kernel.file or kernel.module}",
        remedy="correct the kernel, or what its pack says of it",
    )


def _compile_cuda(kernel: Kernel, target: str) -> Binary:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        std="c++17",
        arch=target,
        ptxas_options="-v",
        no_cache=True,  # what comes from the cache brings no word of ptxas
        **_nvrtc_options(kernel),
    )
    program = Program(Path(kernel.file).read_text(encoding="utf-8"), "c++", options)
    said = io.StringIO()
    made = program.compile("cubin", name_expressions=(kernel.function,), logs=said)
    # A template's instance is mangled; what is extern "C" is its own name.
    lowered = made.symbol_mapping.get(kernel.function, kernel.function)
    symbol = lowered.decode() if isinstance(lowered, bytes) else str(lowered)
    return Binary(bytes(made.code), symbol, _static_shared(said.getvalue(), symbol))


def _nvrtc_options(kernel: Kernel) -> dict[str, Any]:
    """Return cuda.core's names of the options that ``ctx.load_cuda`` takes."""
    macros: list[Any] = []
    includes = [str(Path(kernel.file).parent), INCLUDED]
    chosen: dict[str, Any] = {"include_path": includes}
    for option in kernel.options:
        if option.startswith("-D"):
            macro, _, value = option[2:].partition("=")
            macros.append((macro, value) if value else macro)
        elif option.startswith("-I"):
            includes.append(option[2:])
        elif option in {"-use_fast_math", "--use_fast_math"}:
            chosen["use_fast_math"] = True
        else:
            raise refusal(
                kernel, f"has the option {option!r}: use -DNAME=VALUE, -I, -use_fast_math"
            )
    return chosen | ({"define_macro": macros} if macros else {})


def _static_shared(said: str, symbol: str) -> int:
    """Return what ptxas says; the image itself adds the KiB of each block that CUDA reserves."""
    parts = _ENTRY.split(said)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found = _SMEM.search(text)
        if name == symbol:
            return int(found[1]) if found else 0
    raise CaseError(f"ptxas said nothing of {symbol!r}: {said.strip()[:200]!r}")


def _compile_triton(kernel: Kernel, target: str) -> Binary:
    from triton.backends.compiler import GPUTarget

    if target.startswith("gfx"):
        made = _made_by_triton(kernel, GPUTarget("hip", target, 64))
        meta, text = made.metadata, made.asm["amdgcn"]
        return Binary(made.asm["hsaco"], meta.name, meta.shared, 0, meta.num_warps, text)
    number = re.fullmatch(r"sm_(\d+)(a?)", target)
    if number is None or (int(number[1]) >= 90) != bool(number[2]):  # noqa: PLR2004
        raise refusal(kernel, f"cannot be compiled for {target}: Triton takes sm_90a, sm_89, ...")
    made = _made_by_triton(kernel, GPUTarget("cuda", int(number[1]), 32))
    meta = made.metadata
    columns = getattr(meta, "tmem_size", None) or 0
    return Binary(made.asm["cubin"], meta.name, meta.shared, columns, meta.num_warps)


def _made_by_triton(kernel: Kernel, target: Any) -> Any:
    with _fresh_triton():
        import triton

        source = _source(kernel, importlib.import_module(reachable(kernel)))
        options = _triton_options(kernel, source.fn.arg_names)
        return triton.compile(
            source,
            target=target,
            options={"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **options},
        )


@contextmanager
def _fresh_triton() -> Iterator[None]:
    """Let Triton compile anew, into a folder of its own, and the same wherever the sources lie."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TRITON_SETTINGS, TRITON_CACHE_DIR=folder)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def reachable(kernel: Kernel) -> str:
    """Return the name of a kernel's module, which can be found now."""
    if kernel.folder and kernel.folder not in sys.path:
        sys.path.insert(0, kernel.folder)
    return kernel.module


def _source(kernel: Kernel, module: Any) -> Any:
    """Return what ``triton.compile`` takes."""
    from triton.compiler import ASTSource

    if kernel.language == "gluon":
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    function = _function(kernel, module)
    names = list(function.arg_names)
    for name in (*kernel.signature, *kernel.aligned):
        if name not in names:
            raise refusal(kernel, f"has no argument {name!r}; it has {', '.join(names)}")
    constants = {name: value for name, value in kernel.constants.items() if name in names}
    for name in names:
        if (name in kernel.signature) == (name in constants):
            raise refusal(kernel, f"needs argument {name!r} in its signature or its constants")
    return ASTSource(
        function,
        {name: kernel.signature.get(name, "constexpr") for name in names},
        constants,
        {(names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned},
    )


def _function(kernel: Kernel, module: Any) -> Any:
    """Return the function below what wraps it, such as an autotuner."""
    import triton

    function = getattr(module, kernel.function, None)
    while function is not None and not isinstance(function, triton.JITFunction):
        function = getattr(function, "fn", None)
    if function is None:
        raise refusal(kernel, f"is not a function for Triton: {kernel.function!r}")
    return function


def _triton_options(kernel: Kernel, names: list[str]) -> dict[str, Any]:
    left = {name: value for name, value in kernel.constants.items() if name not in names}
    for name in left:
        if name not in TRITON_OPTIONS:
            raise refusal(
                kernel, f"has the constant {name!r}, which is no argument and no option of Triton"
            )
    return left


def _telling_line(error: Exception) -> str:
    """Return the line of a compiler's log that says what is wrong: its first error, or its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror\s*:", line)]
    return (telling[:1] or lines[-1:] or [type(error).__name__])[0]
