"""Which product a device is, and what keeps two results apart."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfsuite.boundary import DeviceError
from perfsuite.model import DeviceFacts
from perfsuite.store.sku import blocked_by, fingerprint_differs, sku_of, slugify

H200 = DeviceFacts(
    device="cuda",
    name="NVIDIA H200",
    unit="0123456789ab",
    identity={"vendor": "nvidia", "sm_count": "132", "memory_gib": "140", "mig": "off"},
    state={"ecc": "on", "enforced_power_limit_w": "700"},
    gpus=8,
    memory_bytes=150_109_880_320,
)
CPU = DeviceFacts(
    device="cpu",
    name="Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
    unit="0123456789ab",
    identity={"vendor": "cpu", "cores": "2"},
    memory_bytes=1 << 33,
)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("AMD EPYC™ 7B12", "amd-epyc-7b12"),
        (" 1g.18gb ", "1g.18gb"),
    ],
)
def test_slug_is_the_plain_product_name(name: str, slug: str) -> None:
    assert slugify(name) == slug


def test_sku_of_a_gpu_ignores_how_many_the_node_has() -> None:
    assert sku_of(H200).slug == "nvidia-h200"
    assert sku_of(H200, gpus=2).slug == "nvidia-h200-x2"


@pytest.mark.parametrize(
    ("board", "slug"),
    [("692-2G520-0282-001", "nvidia-h200-0282-001"), ("Rev B", "nvidia-h200-rev-b")],
)
def test_board_revision_is_a_sku_of_its_own(board: str, slug: str) -> None:
    revised = replace(H200, identity={**H200.identity, "board": board})
    assert sku_of(revised).slug == slug
    assert sku_of(revised, gpus=2).slug == f"{slug}-x2"


def test_mig_slice_is_a_sku_of_its_own() -> None:
    sliced = replace(H200, identity={**H200.identity, "mig": "1g.18gb"})
    assert sku_of(sliced).slug == "nvidia-h200-mig-1g.18gb"


def test_cpu_sku_names_model_and_cores() -> None:
    assert sku_of(CPU).slug == "cpu-intel-xeon-platinum-8481c-2c"


def test_fake_device_has_a_fixed_slug() -> None:
    assert sku_of(replace(H200, device="fake", name="Fake Device")).slug == "fake"


def test_device_without_a_name_is_refused() -> None:
    with pytest.raises(DeviceError, match="'!'"):
        sku_of(replace(H200, name="!"))


def test_memory_is_a_class_so_that_a_driver_may_report_a_little_less() -> None:
    less = replace(H200, memory_bytes=149_700_000_000, identity={**H200.identity})
    assert fingerprint_differs(sku_of(H200), sku_of(less).facts) == ""
    assert "memory_gib" not in sku_of(H200).facts
    half = sku_of(replace(H200, memory_bytes=H200.memory_bytes // 2))
    assert fingerprint_differs(half, sku_of(H200).facts).startswith("memory was 136-152 GiB")


def test_unknown_memory_is_no_fact() -> None:
    assert "memory" not in sku_of(replace(H200, memory_bytes=0)).facts


def test_small_memory_has_finer_classes() -> None:
    assert sku_of(replace(H200, memory_bytes=24 << 30)).facts["memory"] == "22-26 GiB"


def test_other_chip_under_the_same_name_is_named() -> None:
    other = replace(H200, identity={**H200.identity, "sm_count": "114"})
    assert fingerprint_differs(sku_of(other), sku_of(H200).facts) == ("sm count was 132 and is 114")


def test_state_blocks_a_comparison_where_both_sides_know_it() -> None:
    assert blocked_by({"ecc": "on"}, H200) == ""
    assert blocked_by({"enforced_power_limit_w": "500", "ecc": "on"}, H200) == (
        "enforced power limit w was 500 and is 700"
    )
    assert blocked_by({"mig": "on"}, H200) == ""
