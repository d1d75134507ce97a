"""Convolutions of ResNet-50: where the channels lie in memory, and in what numbers."""

from functools import partial
from typing import Any, NamedTuple

from perfsuite import Beats, Claim, arch, cuda, operator
from perfsuite.gpu import DTYPES, torch


class Layer(NamedTuple):
    """A convolution of square images; its padding keeps their size, but for the stride."""

    channels: int
    filters: int
    image: int
    kernel: int
    stride: int = 1


# ResNet-50 (arXiv:1512.03385, table 1): its first layer has 3 channels, no multiple of a vector.
LAYERS = {
    "stem": Layer(3, 64, 224, 7, 2),
    "conv2": Layer(64, 64, 56, 3),
    "conv3": Layer(128, 128, 28, 3),
    "conv4": Layer(256, 256, 14, 3),
    "tiny": Layer(8, 16, 15, 3),
}


@operator(
    smoke={"dtype": "fp32", "layer": "tiny", "n": 2, "impl": "channels_last"},
    nightly=[
        {"dtype": "bf16", "layer": ["conv2", "conv4", "stem"], "n": 256, "impl": "channels_last"},
        {"dtype": ["fp32", "bf16"], "layer": "conv2", "n": 256, "impl": "nchw"},
    ],
    full=[
        # Not in fp32: cuDNN multiplies less there (Winograd), and is at 155 % of what FMA can do.
        {"dtype": ["tf32", "bf16"], "layer": "conv3", "n": 256},
        {"dtype": ["tf32", "bf16"], "layer": ["conv2", "conv4"], "n": 256, "impl": "nchw"},
        {"dtype": "fp32", "layer": "tiny", "n": 2, "impl": "nchw"},
    ],
    needs=[need.when(dtype=("tf32", "bf16")) for need in (cuda(), arch("sm_80+"))],
    rate_dtype=lambda *, dtype: dtype,
    # tf32 has 10 bits of mantissa in 4-byte numbers.
    tolerance=lambda *, dtype: 1e-3 if dtype == "tf32" else None,
    # Of the stem, which takes most: all twice, for a library that turns it round, and float64.
    memory_bytes=lambda n, **_: 18_600_000 * n,
    tags=["convolution", "tensor-cores", "library"],
    source="PyTorch tutorial, Channels Last Memory Format; ResNet (arXiv:1512.03385), table 1",
)
def conv(rng: Any, *, dtype: str, layer: str, n: int, impl: str) -> tuple[Any, ...]:
    """Convolve n images with one layer of ResNet-50, forward, by PyTorch (cuDNN).

    ``nchw`` is PyTorch's layout, a plane for each channel, ``channels_last`` has a pixel's
    channels side by side, as tensor cores take them: with the former, cuDNN turns images round on
    the way in and out, or runs without tensor cores. cuDNN chooses its kernel by its heuristics,
    not by timing (``cudnn.benchmark`` is off), so that two processes time the same one. The stem
    stays far from the ceiling: its three channels are 6 bytes a pixel, less than the 16 that the
    tensor cores' kernels load at once, and its products, 147 deep, fill no whole steps of theirs.
    """
    of, form = LAYERS[layer], torch.contiguous_format if impl == "nchw" else torch.channels_last
    shapes = ((n, of.channels, of.image), (of.filters, of.channels, of.kernel))
    given = (rng.randn(*shape, shape[-1], dtype=DTYPES[dtype]) for shape in shapes)
    return tuple(each.contiguous(memory_format=form) for each in given)


def _by_patches(x: Any, weight: Any, *, stride: int = 1, at_once: int = 1) -> Any:
    """Return the convolution as a matrix product of patches in float64, some inputs at a time."""
    results, axes = [], range(2, x.dim())
    for part in x.split(at_once):
        patches = torch.nn.functional.pad(part, (weight.shape[2] // 2,) * 2 * len(axes)).double()
        for axis in axes:
            patches = patches.unfold(axis, weight.shape[axis], stride)
        summed = [1, *range(x.dim(), patches.dim())], [1, *axes]
        results.append(torch.tensordot(patches, weight.double(), summed).movedim(-1, 1))
    return torch.cat(results)


@conv.reference
def _reference(x: Any, weight: Any, *, layer: str) -> Any:
    return _by_patches(x, weight, stride=LAYERS[layer].stride, at_once=16)


def _convolve(x: Any, weight: Any, layer: str) -> Any:
    stride, padding = LAYERS[layer].stride, LAYERS[layer].kernel // 2
    return torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding)


# A convolution as mathematicians write it, with the kernel turned round.
conv.wrong(lambda x, weight, *, layer: _convolve(x, weight.flip(2, 3), layer))


@conv.impl
def _nchw(ctx: Any, *, dtype: str, layer: str) -> Any:
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.benchmark = False
    return partial(_convolve, layer=layer)


conv.impl(
    _nchw,
    name="channels_last",
    beats=Beats(
        "nchw",
        1.08,
        "PyTorch tutorial, Channels Last Memory Format: training is 8 to 35 % faster over many "
        "models on tensor cores, 22 % for ResNet-50; the least of these is asked for",
        at={"dtype": "bf16", "layer": ("conv2", "conv4")},
    ),
)


@operator(
    nightly={"channels": 64, "frames": 16, "size": 56, "n": 8},
    full=[
        {"channels": 128, "frames": 8, "size": 28, "n": 32},
        {"channels": 8, "frames": 5, "size": 9, "n": 2},
    ],
    rate_dtype="bf16",
    tags=["convolution", "tensor-cores", "library"],
    source="R3D-18 (arXiv:1711.11248), table 1: layers conv2_x and conv3_x",
)
def conv3d(rng: Any, *, channels: int, frames: int, size: int, n: int, impl: str) -> Any:
    """Convolve n clips with 3 x 3 x 3 filters, as many as channels, in bf16 by PyTorch (cuDNN).

    ``ncdhw`` and ``channels_last`` are the layouts of ``conv``, with frames as one more dimension.
    """
    like = torch.contiguous_format if impl == "ncdhw" else torch.channels_last_3d
    shapes = ((n, channels, frames, size, size), (channels, channels, 3, 3, 3))
    given = (rng.randn(*shape, dtype="bfloat16") for shape in shapes)
    return tuple(each.contiguous(memory_format=like) for each in given)


conv3d.reference(_by_patches)


@conv3d.impl(name="ncdhw")
@conv3d.impl(
    name="channels_last",
    beats=Beats(
        "ncdhw",
        1.09,
        "ModelTC/LightX2V#860: six 3 x 3 x 3 layers are 9 % faster with torch 2.8, 78 % with 2.9; "
        "sgl-project/sglang#27431: a Conv3d 2.7 to 3.7 times on Hopper; the least is asked for",
        {"channels": (64, 128)},
        (cuda(),),
    ),
)
def _convolve3(x: Any, weight: Any) -> Any:
    return torch.nn.functional.conv3d(x, weight, padding=1)


# Filters turned round.
conv3d.wrong(lambda x, weight: _convolve3(x, weight.flip(2, 3, 4)))


TENSOR_CORES = Claim(
    name="conv_tensor_cores",
    case="conv",
    faster={"dtype": "bf16", "impl": "channels_last"},
    than={"dtype": "fp32", "impl": "nchw"},
    by=4.0,
    at={"layer": ("conv2",)},
    needs=(arch("sm_90"),),
    source="H200 datasheet: 989.5 TFLOP/s in bf16 against 67 in fp32, 14.8; less, since half the "
    "bytes remain to be moved and tensor cores reach a smaller share of their peak",
)
