"""The pack's cases: what they list, what they count, and that references refuse the mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from perfsuite_hopper import cluster_dsmem, gemm, tma_copy

import perfsuite
from perfsuite.packs.load import load_pack

LOADED = load_pack("hopper", "module:perfsuite_hopper@")
CASES, CLAIMS = LOADED.cases, LOADED.claims


def _check(workload: object) -> float | None:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    assert isinstance(workload, perfsuite.Workload)
    return check(open_device("cpu"), workload, seed=3).known_error


def _context() -> Any:
    from perfsuite.devices.protocol import open_device

    return open_device("cpu").context(3)


def test_every_case_needs_hopper_exactly() -> None:
    assert set(CASES) == {"wgmma_gemm", "warp_specialization", "tma_copy", "cluster_dsmem"}
    for case in CASES.values():
        assert {(need.kind, need.value) for need in case.needs} >= {
            ("device", "cuda"),
            ("arch", "sm_90"),
        }
        assert all(not need.axes for need in case.needs if need.kind == "arch")


def test_odd_matrices_end_within_every_tile_but_keep_rows_at_16_bytes() -> None:
    odd = next(axes for _, axes in CASES["wgmma_gemm"].points if int(axes["m"]) % 2)
    assert odd["m"] % gemm.TILE_M
    assert odd["m"] % gemm.MMA_TILE
    assert odd["n"] % gemm.TILE_N
    assert odd["n"] % gemm.MMA_TILE
    assert odd["k"] % gemm.STEP
    assert odd["n"] % 8 == odd["k"] % 8 == 0


def test_odd_copies_and_counts_end_within_a_tile() -> None:
    even, odd = tma_copy.BYTES
    assert even % tma_copy.CHUNK == 0
    assert odd % tma_copy.CHUNK
    assert odd % 16 == 0
    n = CASES["cluster_dsmem"].axes["n"][0]
    assert isinstance(n, int)
    assert n % 4 == 0
    assert n % (4 * cluster_dsmem.THREADS)


def test_library_multiplication_is_right_and_a_dropped_step_refused() -> None:
    error = _check(CASES["wgmma_gemm"].build(_context(), m=130, n=200, k=520, impl="cublas"))
    assert error is not None
    assert 1e-4 < error < 1e-2


def test_a_dropped_step_is_refused_at_every_size() -> None:
    from perfsuite.devices.protocol import open_device

    for k in (4096, 8192):
        a, b, c = gemm.make_inputs(open_device("cpu").rng(3), 64, 64, k)
        gemm.without_last_step(a, b, c)
        comparison = open_device("cpu").compare(c, gemm.reference(a, b, c), None)
        assert comparison.error > 5e-2


def test_copy_is_exact() -> None:
    for size in (tma_copy.CHUNK, 3 * tma_copy.CHUNK - 48):
        assert _check(CASES["tma_copy"].build(_context(), size=size, impl="torch")) == 0


def test_listing_the_pack_imports_no_kernel_library() -> None:
    roots = [str(Path(perfsuite.__file__).parents[1]), str(Path(__file__).parents[1])]
    code = (
        f"import json, sys; sys.path[:0] = {roots!r}; import perfsuite_hopper as pack;"
        "assert pack.perf_cases();"
        "print(json.dumps([m for m in ('torch', 'triton', 'numpy', 'cuda') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
