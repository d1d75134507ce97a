"""The fused cases' kernels, compiled for Hopper and interpreted on the CPU: no GPU is needed."""

import pytest
from kernel_codes import codes_of


def test_rows_at_multiples_of_16_bytes_are_read_by_16_bytes() -> None:
    for name in ("norm_rms_4096", "norm_rms_4095"):
        found = codes_of("compute")[name].code.opcodes
        assert found.has("LDG.E.128")
        assert found.has("STG.E.128")


@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("interval_attention", "UTMALDG"),
        ("softcap_attention", "UTMALDG"),
        ("decode_4", "UTMALDG"),
        ("mla_decode", "UTMALDG"),
        ("interval_attention", "HGMMA"),
        ("softcap_attention", "HGMMA"),
        ("decode_4", "HMMA"),
        ("mla_decode", "HGMMA"),
        ("mla_decode_gluon", "HGMMA"),
        ("mla_decode_gluon", "UTMALDG"),
        ("ssm_state", "HGMMA"),
        ("ssm_scan", "HGMMA"),
        ("ssm_scan", "UTMALDG"),
        ("ssm_scan", "UTMASTG"),
        ("norm_rms_backward", "LDGSTS"),
    ],
)
def test_kernels_use_tensor_cores_and_copies_that_run_ahead(name: str, opcode: str) -> None:
    assert codes_of("compute")[name].count(opcode)


@pytest.mark.parametrize("name", ["pointwise_16", "rope", "swiglu", "cross_entropy_65536"])
def test_streams_move_16_bytes_an_access(name: str) -> None:
    found = codes_of("compute")[name].code.opcodes
    assert found.has("LDG.E.128")
    assert found.has("STG.E.128")
