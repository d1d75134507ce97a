"""The fused cases' kernels, compiled for Hopper and interpreted on the CPU: no GPU is needed."""

import pytest
from kernel_codes import codes_of


@pytest.mark.parametrize(
    ("opcode", "names"),
    [
        ("HGMMA", "interval_attention softcap_attention mla_decode mla_decode_gluon ssm_state"),
        ("UTMALDG", "interval_attention softcap_attention decode_4 mla_decode mla_decode_gluon"),
        ("HGMMA UTMALDG", "tile_attention"),
        ("HGMMA UTMALDG UTMASTG", "ssm_scan"),
        ("HMMA", "decode_4"),
        ("LDGSTS", "norm_rms_backward"),
    ],
)
def test_kernels_use_tensor_cores_and_copies_that_run_ahead(opcode: str, names: str) -> None:
    codes = codes_of("compute")
    assert all(codes[name].count(each) for name in names.split() for each in opcode.split())


def test_streams_move_16_bytes_an_access_in_rows_of_any_length() -> None:
    names = ("norm_rms_4096", "norm_rms_4095", "pointwise_16", "rope", "swiglu")
    for name in (*names, "cross_entropy_65536"):
        found = codes_of("compute")[name].code.opcodes
        assert found.has("LDG.E.128"), name
        assert found.has("STG.E.128"), name
