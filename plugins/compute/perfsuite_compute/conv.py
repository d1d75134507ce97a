"""Convolutions of ResNet-50: where the channels lie in memory, and in what numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

_DTYPES = {"bf16": ("bfloat16", 2), "tf32": ("float32", 4), "fp32": ("float32", 4)}
_REFERENCE_IMAGES = 16


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of square images: channels in and out, image, kernel, stride; padding keeps."""

    channels: int
    filters: int
    image: int
    kernel: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """Pixels added on each side."""
        return self.kernel // 2

    @property
    def out(self) -> int:
        """The result's height and width."""
        return (self.image + 2 * self.padding - self.kernel) // self.stride + 1


# ResNet-50 (arXiv:1512.03385, table 1): its first layer has 3 channels, no multiple of a vector.
LAYERS = {
    "stem": Layer(3, 64, 224, 7, 2),
    "conv2": Layer(64, 64, 56, 3),
    "conv3": Layer(128, 128, 28, 3),
    "conv4": Layer(256, 256, 14, 3),
    "tiny": Layer(8, 16, 15, 3),
}
_NIGHTLY = {
    ("stem", "bf16"): ("channels_last",),
    ("conv2", "fp32"): ("nchw",),
    ("conv2", "tf32"): ("nchw",),
    ("conv2", "bf16"): ("nchw", "channels_last"),
    ("conv4", "tf32"): ("nchw",),
    ("conv4", "bf16"): ("nchw", "channels_last"),
}


def _is_asked(dtype: str, layer: str, n: int, impl: str) -> bool:
    return layer in ("conv3", "tiny") or impl in _NIGHTLY.get((layer, dtype), ())


def _elements(layer: str, n: int) -> tuple[int, int, int]:
    """Return how many numbers the images, the weight and the result have."""
    of = LAYERS[layer]
    weight = of.filters * of.channels * of.kernel**2
    return n * of.channels * of.image**2, weight, n * of.filters * of.out**2


def _work(dtype: str, layer: str, n: int, impl: str) -> Work:
    size = _DTYPES[dtype][1]
    images, weight, result = _elements(layer, n)
    of = LAYERS[layer]
    return Work(
        read_bytes=(images + weight) * size,
        write_bytes=result * size,
        flops=2 * result * of.channels * of.kernel**2,
        rate_dtype=dtype,
    )


def _memory_bytes(dtype: str, layer: str, n: int, impl: str) -> int:
    images, weight, result = _elements(layer, n)
    of = LAYERS[layer]
    patches = min(n, _REFERENCE_IMAGES) * of.out**2 * of.channels * of.kernel**2
    # Twice each for a library that turns them round.
    return 2 * (images + weight + result) * _DTYPES[dtype][1] + 8 * (result + 2 * patches)


@perfsuite.case(
    axes={
        "dtype": ["fp32", "tf32", "bf16"],
        "layer": ["stem", "conv2", "conv4"],
        "n": [256],
        "impl": ["nchw", "channels_last"],
    },
    smoke={"dtype": ["fp32"], "layer": ["tiny"], "n": [2]},
    full={"layer": ["stem", "conv2", "conv3", "conv4"]},
    only=_is_asked,
    full_only=[
        {"dtype": ["tf32"]},
        {"layer": ["conv4", "tiny"], "impl": ["nchw"]},
    ],
    needs=(
        package("torch"),
        cuda().when(dtype=("tf32", "bf16")),
        arch("sm_80+").when(dtype=("tf32", "bf16")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["convolution", "tensor-cores", "library"],
    source="PyTorch tutorial, Channels Last Memory Format; ResNet (arXiv:1512.03385), table 1",
)
def conv(ctx: Any, dtype: str, layer: str, n: int, impl: str) -> Workload:
    """Convolve n images with one layer of ResNet-50, forward, by PyTorch (cuDNN).

    ``nchw`` is PyTorch's layout, a plane for each channel, ``channels_last`` has a pixel's
    channels side by side, as tensor cores take them: with the former, cuDNN turns images round on
    the way in and out, or runs without tensor cores. cuDNN chooses its kernel by its heuristics,
    not by timing (``cudnn.benchmark`` is off), so that two processes time the same one. The stem
    stays far from the ceiling: its three channels are 6 bytes a pixel, less than the 16 that the
    tensor cores' kernels load at once, and its products, 147 deep, fill no whole steps of theirs.
    """
    import torch

    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.benchmark = False
    name, of = _DTYPES[dtype][0], LAYERS[layer]
    form = torch.channels_last if impl == "channels_last" else torch.contiguous_format

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        shapes = ((n, of.channels, of.image), (of.filters, of.channels, of.kernel))
        given = (rng.randn(*shape, shape[-1], dtype=name) for shape in shapes)
        x, weight = (each.contiguous(memory_format=form) for each in given)
        return x, weight

    def launch(x: Any, weight: Any) -> Any:
        return torch.nn.functional.conv2d(x, weight, stride=of.stride, padding=of.padding)

    return Workload(
        fn=launch,
        make_inputs=make_inputs,
        reference=_reference_of(of),
        # A convolution as mathematicians write it, with the kernel turned round.
        wrong=lambda x, weight: launch(x, weight.flip(2, 3)),
        # tf32 has 10 bits of mantissa in 4-byte numbers.
        tolerance=1e-3 if dtype == "tf32" else None,
    )


def _reference_of(of: Layer) -> Callable[..., Any]:
    """Return the convolution as a matrix product of patches in float64, some images at a time."""
    import torch
    from torch.nn.functional import unfold

    def reference(x: Any, weight: Any) -> Any:
        flat = weight.double().reshape(of.filters, -1)
        shape = (x.shape[0], of.filters, of.out, of.out)
        result = torch.empty(shape, dtype=torch.float64, device=x.device)
        for start in range(0, x.shape[0], _REFERENCE_IMAGES):
            part = x[start : start + _REFERENCE_IMAGES].double()
            patches = unfold(part, of.kernel, padding=of.padding, stride=of.stride)
            result[start : start + _REFERENCE_IMAGES] = (flat @ patches).reshape(-1, *shape[1:])
        return result

    return reference


CASES: tuple[perfsuite.Case | Claim, ...] = (
    conv,
    Claim(
        name="conv_channels_last",
        case="conv",
        faster={"impl": "channels_last"},
        than={"impl": "nchw"},
        by=1.08,
        at={"dtype": ("bf16",), "layer": ("conv2", "conv4")},
        needs=(cuda(),),
        source=(
            "PyTorch tutorial, Channels Last Memory Format: training is 8 to 35 % faster over many "
            "models on tensor cores, 22 % for ResNet-50; the least of these is asked for"
        ),
    ),
    Claim(
        name="conv_tensor_cores",
        case="conv",
        faster={"dtype": "bf16", "impl": "channels_last"},
        than={"dtype": "fp32", "impl": "nchw"},
        by=4.0,
        at={"layer": ("conv2",)},
        needs=(cuda(), arch("sm_90")),
        source=(
            "H200 datasheet: 989.5 TFLOP/s in bf16 against 67 in fp32, 14.8; less, since half the "
            "bytes remain to be moved and tensor cores reach a smaller share of their peak"
        ),
    ),
)
