"""The pack's cases: what they list, what they count, and that references refuse the mistakes."""

from perfsuite_hopper import cluster_dsmem, gemm, tma_copy

from perfsuite.packs.load import load_pack

CASES = load_pack("hopper", "module:perfsuite_hopper@").cases


def test_odd_matrices_end_within_every_tile_but_keep_rows_at_16_bytes() -> None:
    odd = next(axes for _, axes in CASES["wgmma_gemm"].points if int(axes["m"]) % 2)
    assert odd["m"] % gemm.TILE_M
    assert odd["n"] % gemm.TILE_N
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
