"""Planted changes through the whole product: the report alone says what each is made of."""

from __future__ import annotations

import gzip
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfsuite.model import Settings, Tier
from perfsuite.packs.find import discover
from perfsuite.report.data import RunView, read
from perfsuite.report.html import write_report
from perfsuite.run.config import Config
from perfsuite.run.expected import source_of
from perfsuite.run.run import Outcome, entries_in, execute
from perfsuite.store.runs import load_run
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.process import inventory

PLANTED = Path(__file__).parent / "packs" / "planted.py"
QUICK = Settings(screen_rounds=3, samples=5, sample_us=50.0)
# A sort that takes ten times as long as all before it.


# A copy that loses its wide loads, a fill that is new, and tensor cores let into a product.
GPU_PACK = """
    import os
    from pathlib import Path
    import perfsuite

    IS_NOW = bool(os.environ.get("PERFSUITE_TEST_PLANTED"))

    def work(kind):
        size = 4 * 4096**2
        flops = 2 * 4096**3 if kind == "switched" else 0
        return perfsuite.Work(read_bytes=size, write_bytes=size, flops=flops, rate_dtype="tf32")

    @perfsuite.case(
        axes={"kind": ["slower", "extra", "switched"]},
        source="made up", needs=[perfsuite.cuda()], work=work,
    )
    def planted(ctx, kind):
        '''Copy or multiply matrices.'''
        import torch

        now = int(IS_NOW and kind == "slower")
        copy = ctx.load_cuda(
            Path(__file__).with_name("copy.cu"), "copy_rows", options=[f"-DNOW={now}"]
        )
        other = torch.empty(2**24, device="cuda")

        def fn(x, y):
            if kind == "switched":
                torch.backends.cuda.matmul.allow_tf32 = IS_NOW
                torch.mm(x, x, out=y)
                return
            copy(2**24 // 4 // 256, 256, x, y, 2**24 // 4)
            if kind == "extra" and IS_NOW:
                other.fill_(1.0)

        return perfsuite.Workload(
            fn=fn, make_inputs=lambda rng: (rng.randn(4096, 4096), rng.empty(4096, 4096)),
            reference=lambda x, y: (x.double() @ x.double()) if kind == "switched" else x.clone(),
            wrong=lambda x, y: y.copy_(2 * x), tolerance=0.01,
        )

    @perfsuite.hookimpl
    def perf_cases():
        return [planted]
"""
COPY = """
extern "C" __global__ void copy_rows(const float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
#if NOW
#pragma unroll 1
    for (int part = 0; part < 4; part++) y[4 * i + part] = 1.0f * x[4 * i + part];
#else
    if (i < n) ((float4*)y)[i] = ((const float4*)x)[i];
#endif
}
"""


class Silent:
    """Is told of a run and keeps nothing."""

    def planned(self, *_: object) -> None: ...
    def phase(self, *_: object) -> None: ...
    def finished(self, *_: object) -> None: ...
    def note(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Told:
    """Two runs, before and after what was planted, and what the report says of each kind."""

    outcome: Outcome
    book: RunView
    page: str

    @property
    def headlines(self) -> Mapping[str, str]:
        return {
            subject.variant.id.partition("kind=")[2].rstrip("]"): subject.explained
            for subject in self.book.variants
            if subject.explained
        }


def request(folder: Path, pack: str, **fields: Any) -> Config:
    (folder / "acme.py").write_text(textwrap.dedent(pack), encoding="utf-8")
    sources = discover(None, extra=[folder / "acme.py"], allow=["acme"])
    packs = load_catalogue(sources, tier=Tier.FULL)
    return Config(
        variants=tuple(variant for pack in packs for variant in pack.variants),
        claims=(),
        packs=packs,
        **{"device": "fake", "settings": QUICK, **fields},
        root=folder,
        baselines=(folder / "baselines",),
    )


def told(outcome: Outcome, folder: Path) -> Told:
    book = read(
        outcome.run,
        baselines=entries_in(outcome.run),
        source=source_of(outcome.run),
        previous=outcome.basis.previous,
    )
    page = write_report(book, folder / "report")
    return Told(outcome, book, page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Told:
    folder = tmp_path_factory.mktemp("fake")
    patch.setattr(tempfile, "tempdir", str(folder))
    pack = PLANTED.read_text(encoding="utf-8")
    execute(request(folder, pack), Silent())
    patch.setenv("PERFSUITE_TEST_PLANTED", "1")
    outcome = execute(request(folder, pack), Silent())
    patch.delenv("PERFSUITE_TEST_PLANTED")
    return told(outcome, folder)


def test_a_slower_kernel_is_named_with_what_its_code_takes_now(fake: Told) -> None:
    found = fake.headlines["slower"].replace("\u202f", " ")
    assert found == (
        "scale_rows takes 125 µs instead of 100 µs (100 % of the change), its code changed: "
        "registers 64 → 128"
    )
    assert "-mov.u32 %r1;" in fake.page
    assert "+st.local" in fake.page


def test_an_extra_launch_is_named_with_what_it_takes(fake: Told) -> None:
    found = fake.headlines["extra"].replace("\u202f", " ")
    assert found == (
        "one more kernel, zero_fill, takes 15.0 µs of each launch (100 % of the change)"
    )


def test_a_throttled_gpu_is_told_by_its_clock_and_not_by_a_kernel(fake: Told) -> None:
    found = fake.headlines["throttled"].replace("\u202f", " ")
    start = "the SM clock was 8.0 % lower, power cap active in 18 of 18 blocks: time +8."
    assert found.startswith(start)
    assert found.rpartition(", SM cycles ")[2].lstrip("+\u2212") in {"0.0 %", "0.1 %"}
    assert "scale_rows" not in found


def test_a_library_s_switch_is_told_by_both_names(fake: Told) -> None:
    found = fake.headlines["switched"].replace("\u202f", " ")
    start = "library switch, another kernel for the matrix product: nvjet_hsh_128x256_64x4"
    assert found.startswith(start)
    assert "instead of cutlass_80_tensorop_s16816gemm_f16_128x128_64x3<float, 4>, " in found
    assert found.endswith("130 µs instead of 100 µs (100 % of the change)")


def test_the_same_code_in_another_time_is_not_the_kernel_s_doing(fake: Told) -> None:
    assert "by the same code to the letter: the machine or a library" in fake.headlines["machine"]


def test_what_no_kernel_takes_lies_between_them(fake: Told) -> None:
    found = fake.headlines["gaps"].replace("\u202f", " ")
    assert found.startswith("+20.0 µs are in no kernel (100 % of the change): gaps")


def test_a_crash_loses_that_variant_s_trace_alone_and_says_so(fake: Told) -> None:
    traces = {trace.variant: trace for trace in fake.outcome.run.traces}
    assert len(traces) == len(fake.outcome.run.variants)
    lost = [trace for trace in traces.values() if not trace.kernels]
    assert [trace.variant for trace in lost] == ["acme.planted[kind=lost]"]
    assert lost[0].reason == "its tracing ended: killed by SIGKILL during trace"
    assert lost[0].reason in fake.page


def test_a_kernel_s_name_is_text_and_stands_whole_in_its_title(fake: Told) -> None:
    assert "<script>alert(1)" not in fake.page
    assert f'title="{"&lt;script&gt;alert(1)&lt;/script&gt;" * 4}"' in fake.page
    assert "…" in fake.headlines["hostile"]


def test_traces_are_stored_with_the_run_and_its_texts_beside_it(fake: Told) -> None:
    run = fake.outcome.run
    assert load_run(fake.outcome.run_file) == run
    assert run.phases_s["trace"] > 0
    code = next(c for t in run.traces if "slower" in t.variant for c in t.codes)
    kept = fake.outcome.run_file.parents[1] / "artefacts" / f"{code.ptx}.ptx.gz"
    assert "st.local" in gzip.decompress(kept.read_bytes()).decode()


def test_what_stayed_the_same_is_not_traced_again_and_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pack = PLANTED.read_text(encoding="utf-8").replace("list(KINDS)", '["extra"]')
    runs = [execute(request(tmp_path, pack), Silent()).run for _ in range(3)]
    assert [len(run.traces) for run in runs] == [1, 0, 0]
    monkeypatch.setenv("PERFSUITE_TEST_PLANTED", "1")
    outcome = execute(request(tmp_path, pack), Silent())
    assert "zero_fill" in told(outcome, tmp_path).headlines["extra"]


@pytest.mark.skipif(not inventory(), reason="needs a GPU")
def test_kernels_and_their_code_explain_changes_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copy.cu").write_text(COPY, encoding="utf-8")
    gpu = {"device": "cuda", "settings": Settings()}
    execute(request(tmp_path, GPU_PACK, **gpu), Silent())
    monkeypatch.setenv("PERFSUITE_TEST_PLANTED", "1")
    found = told(execute(request(tmp_path, GPU_PACK, **gpu), Silent()), tmp_path)
    with capsys.disabled():
        for trace in found.outcome.run.traces:
            sys.stdout.write(f"{trace}\n")
        for kind, text in found.headlines.items():
            sys.stdout.write(f"{kind}: {text}\n")
    headlines = {kind: text.replace("\u202f", " ") for kind, text in found.headlines.items()}
    assert headlines["slower"].startswith("copy_rows takes ")
    assert "global load width 16 → 4" in headlines["slower"]
    assert headlines["extra"].startswith("one more kernel, ")
    assert headlines["switched"].startswith("library switch, another kernel for the matrix product")
    kernels = [kernel for trace in found.outcome.run.traces for kernel in trace.kernels]
    # Copies and fills by the driver have no shape.
    shaped = [kernel for kernel in kernels if not kernel.name.startswith(("Memcpy", "Memset"))]
    assert shaped
    assert all(kernel.grid and kernel.block and kernel.registers for kernel in shaped)
