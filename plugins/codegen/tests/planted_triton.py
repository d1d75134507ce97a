"""A matrix product in which mistakes can be planted: it leaves tensor cores with PRECISION ieee."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def product(a, b, c, PRECISION: tl.constexpr, SIZE: tl.constexpr):
    """Write the product of two SIZE x SIZE matrices of one program."""
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    product = tl.dot(tl.load(a + at), tl.load(b + at), input_precision=PRECISION)
    tl.store(c + at, product)


tuned = triton.autotune([triton.Config({})], key=[])(product)
