"""Matrix products under torch.compile, beside the same in eager mode."""

from typing import Any

from perfsuite import cuda, operator
from perfsuite.gpu import TRITON, compiled


@operator(
    nightly=[
        {"op": "mm", "b": 1, "m": 2048, "n": 2048, "k": 2048},
        {"op": "bmm", "b": 64, "m": 512, "n": 512, "k": 128},
    ],
    needs=[cuda()],
    rate_dtype="bf16",
    tags=["compile", "tensor-cores"],
    source="pytorch/pytorch#163608: torch.compile of mm and bmm is slower in 2.9 than in 2.8",
)
def matmul(rng: Any, *, op: str, b: int, m: int, n: int, k: int) -> Any:
    """Multiply two bf16 matrices, or b of them, and add a row to the product.

    ``compiled`` is torch.compile in its default mode: Inductor calls cuBLAS for the product, and
    chooses how the sum is fused. ``eager`` is a kernel for each.
    """
    batch = (b,) if op == "bmm" else ()
    x, y = (rng.randn(*batch, *shape, dtype="bfloat16") for shape in ((m, k), (k, n)))
    return x, y, rng.randn(n, dtype="bfloat16")


matmul.reference(lambda x, y, row: x.double() @ y.double() + row.double())
matmul.wrong(lambda x, y, row: x @ y)


@matmul.impl
def _eager(x: Any, y: Any, row: Any) -> Any:
    return x @ y + row


@matmul.impl(needs=TRITON)
def _compiled(ctx: Any) -> Any:
    return compiled(lambda x, y, row: x @ y + row)
