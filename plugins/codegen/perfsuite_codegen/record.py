"""Records what a pack's launches compile: python -m perfsuite_codegen.record PACK [--write].

Each variant of the pack is launched once on this machine's GPU; nothing is compared or timed. What
Triton and NVRTC compiled meanwhile is held against the pack's codegen.json, or added to it.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from perfsuite import Kernel, Loaded, PerfError, Tier
from perfsuite_codegen.compiling import TRITON_OPTIONS

FILE, SCHEMA = "codegen.json", "perfsuite.codegen/1"
COLUMNS = 100
# What people say of a kernel; the rest is what it is compiled from.
SAID = {"name", "targets", "expects", "triton", "folder"}
ALIGNED = ["tt.divisibility", 16]
LONGEST = 80  # name that is made up
EXIT = (
    "The exit code is 1 where a launch compiles what no file has, or the full tier does not launch "
    "what a file has. It is 2 where a pack cannot be read. Kernels that a smaller tier leaves out "
    "are named, and change no exit code."
)
# A kernel with roles is launched with more warps than it is compiled with.
_WARPS = re.compile(r'"ttg\.num-warps" = (\d+)')
_PLAIN = msgspec.to_builtins(Kernel(name="a", language="cuda", function="f", file="f.cu"))


def main(words: Sequence[str] | None = None) -> int:
    """Record each pack; return 1 where its file is not what was launched."""
    from perfsuite.testing import launch_pack

    parser = argparse.ArgumentParser(prog="python -m perfsuite_codegen.record", epilog=EXIT)
    parser.add_argument("packs", nargs="+", metavar="PACK", help="a pack's name, or its folder")
    parser.add_argument("--tier", type=Tier, default=Tier.NIGHTLY, choices=list(Tier))
    parser.add_argument("--write", action="store_true", help=f"add what is new to its {FILE}")
    given = parser.parse_args(words)
    ends = []
    for pack in given.packs:
        try:
            ends.append(record(launch_pack(pack, tier=given.tier), given.tier, write=given.write))
        except PerfError as error:  # the other packs are recorded all the same
            say(str(error))
            ends.append(2)
    return max(ends)


def record(variants: Iterable[Any], tier: Tier, *, write: bool) -> int:
    """Hold what the variants of a pack launch against its file, and say how the two differ."""
    count, last = 0, None
    with listening() as heard:
        for last in variants:
            count += 1
            if last.why:
                say(f"not launched: {last.variant}: {last.why}")
    if last is None:
        say("no variant can be launched here")
        return 1
    pack = last.pack.name
    package = re.split("[@:]", last.pack.origin)[1]
    folder = Path(sys.modules[package].__path__[0])
    listed = [
        replace(each, name=each.name.removeprefix(f"{pack}."), folder="")
        for each in last.pack.kernels
    ]
    found = [*of_cuda(last.device.loaded(), folder)]
    for module, made in heard:
        if module.partition(".")[0] == package.partition(".")[0]:
            if isinstance(made, Kernel):
                found.append(made)
            else:
                say(f"cannot be listed: {made}")
    new, gone = compared(listed, found, last.device.facts().arch)
    say(f"{pack}: {count} variants, {len(listed)} kernels in {FILE}")
    is_full = tier is Tier.FULL
    idle = "launched in no tier here" if is_full else f"left out by the tier {tier.value}"
    for what, some in ((f"in {FILE} and {idle}", gone), (f"not in {FILE}", new)):
        say(f"  {len(some)} {what}" + ":" * bool(some))
        for each in some:
            say(f"    {each.name}: {each.function} of {Path(each.file).name or each.module}")
    if write and new:
        beside = folder / f".{FILE}.{os.getpid()}.tmp"
        beside.write_text(written([*listed, *new], folder), encoding="utf-8")
        beside.replace(folder / FILE)
    return int(bool((gone and is_full) or (new and not write)))


def say(text: str) -> None:
    """Print a line at once: the next launch may hang."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def listening() -> Iterator[list[tuple[str, Kernel | str]]]:
    """Collect what Triton compiles or takes from its cache, by module; text is why it cannot be."""
    from triton import knobs

    heard: list[tuple[str, Kernel | str]] = []
    before = knobs.compilation.listener

    def note(*, src: Any, metadata: Any, metadata_group: Any, **_: Any) -> None:
        function = getattr(src, "fn", None)
        try:
            made: Kernel | str = of_triton(src, metadata, metadata_group)
        except Exception as error:  # noqa: BLE001 - no launch fails for being recorded
            made = f"{getattr(function, '__name__', '')}: {error}"
        heard.append((getattr(function, "__module__", ""), made))

    knobs.compilation.listener = note
    try:
        yield heard
    finally:
        knobs.compilation.listener = before


def of_triton(src: Any, metadata: dict[str, Any], files: dict[str, str]) -> Kernel:
    """Return a kernel that Triton or Gluon compiled; ValueError for what is no plain data."""
    names = src.fn.arg_names
    constants: dict[str, Any] = {}
    for path, given in src.constants.items():
        name, value = names[path[0]], getattr(given, "value", given)
        if len(path) > 1 or not isinstance(value, str | int | float | None):
            raise ValueError(f"its constant {name} is {value!r}")
        constants[name] = value
    for name, usual in TRITON_OPTIONS.items():
        if metadata.get(name, usual) != usual:
            constants[name] = metadata[name]
    compiled = next(Path(path) for name, path in files.items() if name.endswith(".ttgir"))
    warps = _WARPS.search(compiled.read_text(encoding="utf-8"))
    return Kernel(
        name=plain(src.fn.__name__),
        language="gluon" if src.fn.is_gluon() else "triton",
        module=src.fn.__module__,
        function=src.fn.__name__,
        signature={name: str(kind) for name, kind in src.signature.items() if kind != "constexpr"},
        constants=constants,
        aligned=tuple(names[path[0]] for path, each in src.attrs.items() if ALIGNED in each),
        num_warps=int(warps[1]) if warps else metadata["num_warps"],
        num_stages=metadata["num_stages"],
    )


def of_cuda(loaded: Iterable[Loaded], folder: Path) -> Iterator[Kernel]:
    """Yield the CUDA C++ kernels whose source lies in the folder."""
    for each in loaded:
        with suppress(ValueError):  # it lies elsewhere, or was not compiled by NVRTC
            inside = Path(each.file).relative_to(folder)
            yield Kernel(
                name=plain(each.name),
                language="cuda",
                function=each.name,
                file=str(folder / inside),
                options=each.options,
            )


def plain(text: str) -> str:
    """Return a text with nothing that a kernel's name cannot have."""
    return re.sub(r"\W+", "_", text).strip("_")


def identity(kernel: Kernel) -> str:
    """Return what a kernel is compiled from as a text that is equal for those that are one."""
    kinds = {name: kind.replace(" ", "") for name, kind in kernel.signature.items()}
    held = {**msgspec.to_builtins(kernel), "signature": kinds, "aligned": sorted(kernel.aligned)}
    held["options"] = sorted(kernel.options)
    return json.dumps({name: held[name] for name in held if name not in SAID}, sort_keys=True)


def compared(
    listed: Sequence[Kernel], found: Iterable[Kernel], arch: str
) -> tuple[list[Kernel], list[Kernel]]:
    """Return what was found and is not listed, with names, and what is listed and was not found.

    What is listed for other architectures alone cannot be found on this one, and what is new is
    known to compile for this one alone.
    """
    known = {identity(each) for each in listed}
    seen = {identity(each): each for each in found}
    new = [seen[key] for key in sorted(seen.keys() - known)]
    gone = [each for each in listed if arch in each.targets and identity(each) not in seen]
    return [replace(each, targets=(arch,)) for each in named(new, listed)], gone


def named(new: Iterable[Kernel], listed: Sequence[Kernel]) -> list[Kernel]:
    """Return new kernels, named by function and by what tells each from others of its function."""
    new, taken = list(new), {each.name for each in listed}
    found = []
    for each in new:
        alike = [
            o for o in (*listed, *new) if o.function == each.function and _place(o) == _place(each)
        ]
        told = [details(one) for one in alike]
        own = details(each).items()
        words = [plain(v) for k, v in own if any(one.get(k) != v for one in told)]
        stem = "_".join(dict.fromkeys([each.name, *filter(None, words)]))[:LONGEST]
        names = (stem, *(f"{stem}.{number}" for number in range(2, len(taken) + len(new) + 2)))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        found.append(replace(each, name=name))
    return found


def _place(kernel: Kernel) -> str:
    return kernel.file or kernel.module


def details(kernel: Kernel) -> dict[str, str]:
    """Return what kernels of one function may differ in, each as a word."""
    options = dict(option[2:].partition("=")[::2] for option in kernel.options)
    other = {"aligned": " ".join(kernel.aligned), "warps": kernel.num_warps}
    held = {**options, **kernel.constants, **kernel.signature, **other, "stages": kernel.num_stages}
    return {name: str(value) for name, value in held.items()}


def written(kernels: Iterable[Kernel], folder: Path) -> str:
    """Return the text of a pack's file of kernels, which lies in the folder: a few lines each."""
    blocks = ",\n".join(_block(_entry(kernel, folder)) for kernel in kernels)
    return f'{{"schema": {json.dumps(SCHEMA)}, "kernels": [\n{blocks}\n]}}\n'


def _entry(kernel: Kernel, folder: Path) -> dict[str, Any]:
    """Return what is not as usual; the source's name comes before what is said of it."""
    held = msgspec.to_builtins(kernel)
    if kernel.file:
        held["file"] = Path(kernel.file).relative_to(folder).as_posix()
    order = dict.fromkeys(("name", "language", "file", "module", "function", *held))
    asked = {"name", "language", "file", "function"}
    kept = {name: held[name] for name in order if name in asked or held[name] != _PLAIN[name]}
    return {name: value for name, value in kept.items() if value}


def _block(entry: dict[str, Any]) -> str:
    """Return an object in lines of few columns; no value is broken."""
    lines = [""]
    for name, value in entry.items():
        text = f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}, "
        if lines[-1] and len(lines[-1]) + len(text) > COLUMNS:
            lines.append("")
        lines[-1] += text
    return " {" + "\n  ".join(line.rstrip() for line in lines).rstrip(",") + "}"


if __name__ == "__main__":
    sys.exit(main())
