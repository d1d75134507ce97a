"""What a run records: by Triton's own launcher for a driver that is not there, and by NVRTC."""

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from perfsuite_codegen import record
from perfsuite_codegen.compiling import compile_kernel

from perfsuite import Kernel, Tier, read_code
from perfsuite.devices.sass import forget_compiled
from perfsuite.packs.load import load_pack
from perfsuite.testing import launch_pack

HERE = Path(__file__).parent
PACK = """
    import perfsuite

    @perfsuite.case(smoke={"size": [1024, 8191], "block": [128, 256]}, source="a book")
    def adding(ctx, *, size, block):
        '''Add one.'''
        from recorded_pack.kernels import add
        import torch

        def launch(x, y):
            if size == 8191 and block == 256:
                raise RuntimeError("no such launch")
            given = torch.float32, torch.float32, None, x.numel()
            add.warmup(*given, BLOCK=block, num_warps=2, grid=(1,))

        return perfsuite.Workload(
            fn=launch, make_inputs=lambda rng: (rng.randn(size), rng.empty(size)),
            reference=lambda x, y: x.double() + 1,
        )

    @perfsuite.hookimpl
    def perf_cases():
        return [adding]
"""
KERNELS = """
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, bias, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        more = 1 if bias is None else tl.load(bias + at, mask=at < n)
        tl.store(y + at, tl.load(x + at, mask=at < n) + more, mask=at < n)
"""


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a pack whose launches end at Triton's compiler for Hopper."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    hopper = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    monkeypatch.setattr(triton.runtime.driver, "_active", hopper)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    package = tmp_path / "recorded_pack"
    package.mkdir()
    for name, text in (("__init__", PACK), ("kernels", KERNELS)):
        (package / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    entry = '[project]\nname = "x"\n[project.entry-points.perfsuite]\nrecorded = "recorded_pack"\n'
    (tmp_path / "pyproject.toml").write_text(entry, encoding="utf-8")
    return tmp_path


def test_a_run_is_recorded_and_what_it_wrote_is_what_the_next_one_launches(
    pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device: Any = SimpleNamespace(loaded=list, facts=lambda: SimpleNamespace(arch="sm_90a"))

    def ran(tier: Tier = Tier.SMOKE, **given: Any) -> tuple[int, str]:
        forget_compiled()  # as in a process of its own
        launched = launch_pack(pack, device="cpu", tier=tier)
        variants = (each._replace(device=device) for each in launched)
        return record.record(variants, tier, **given), capsys.readouterr().out

    code, said = ran(write=False)
    assert code == 1
    assert "not launched: recorded.adding[size=8191,block=256]: RuntimeError: no such" in said
    assert "recorded: 4 variants, 0 kernels in codegen.json\n" in said
    assert "  3 not in codegen.json:\n    add_128" in said
    assert ran(write=True)[0] == 0
    kernels = load_pack("recorded", f"module:recorded_pack@{pack}").pack.kernels
    known = {each.name: (each.constants, each.aligned, each.num_warps) for each in kernels}
    assert {each.targets for each in kernels} == {("sm_90a",)}
    assert known == {
        "recorded.add_128_x_y_n": ({"BLOCK": 128, "bias": None}, ("x", "y", "n"), 2),
        "recorded.add_128_x_y": ({"BLOCK": 128, "bias": None}, ("x", "y"), 2),
        "recorded.add_256_x_y_n": ({"BLOCK": 256, "bias": None}, ("x", "y", "n"), 2),
    }
    assert read_code(compile_kernel(kernels[0], "sm_90a").cubin, "add").opcodes.of("LDG") == 1
    code, said = ran(write=False)
    assert code == 0
    assert "3 kernels in codegen.json" in said
    assert "  0 not in codegen.json\n" in said
    text = record.written([*kernels, replace(kernels[0], name="old", constants={})], pack)
    (pack / "recorded_pack" / "codegen.json").write_text(text, encoding="utf-8")
    for tier, ends, why in (
        (Tier.SMOKE, 0, "left out by the tier smoke"),
        (Tier.FULL, 1, "launched in no tier here"),
    ):
        code, said = ran(tier, write=False)
        assert (code, f"  1 in codegen.json and {why}:\n    old: " in said) == (ends, True)


def test_what_is_listed_and_launched_otherwise_is_told_on_its_architecture(pack: Path) -> None:
    listed = [Kernel(name="old", language="cuda", function="f", file="/f.cu", options=("-DN=1",))]
    listed += [replace(listed[0], name="later", options=(), targets=("sm_100a",))]
    found = [replace(listed[0], name="f", options=("-DN=2",))]
    new, gone = record.compared(listed, found, "sm_90a")
    assert ([each.name for each in new], [each.name for each in gone]) == (["f_2"], ["old"])
    assert record.compared(listed, listed, "sm_90a") == ([], [])


def test_what_a_builder_loads_is_recorded_with_its_file_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.core")
    from perfsuite.devices import cuda

    made = SimpleNamespace(symbol_mapping={}, code=b"")
    compiler = SimpleNamespace(compile=lambda *_, **__: made)
    monkeypatch.setattr(cuda, "_program", lambda *_: compiler)  # PTX needs a driver
    monkeypatch.setattr(cuda, "_kernel", lambda *_: None)
    context = cuda.CudaContext(3, "cuda", "cuda", "sm_90a")
    context.load_cuda(tmp_path / "f.cu", "f<4>", options=["-DN=3"])
    loaded = [each() for each in context.loaded]
    (found,) = record.of_cuda(loaded, tmp_path)
    assert (found.name, found.function, found.options) == ("f_4", "f<4>", ("-DN=3",))
    assert found.file == str(tmp_path / "f.cu")
    assert list(record.of_cuda(loaded, HERE)) == []


@pytest.mark.parametrize(
    "name", ["blackwell", "compute", "hopper", "inference", "memory", "scheduling"]
)
def test_file_of_a_pack_is_as_it_would_be_written(name: str) -> None:
    folder = HERE.parents[1] / name / f"perfsuite_{name}"
    loaded = load_pack(name, f"module:perfsuite_{name}@{folder.parent}").pack.kernels
    kernels = [replace(k, name=k.name.removeprefix(f"{name}."), folder="") for k in loaded]
    assert record.written(kernels, folder) == (folder / "codegen.json").read_text("utf-8")
