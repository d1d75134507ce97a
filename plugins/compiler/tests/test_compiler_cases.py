"""What the pack counts and runs, with no GPU."""

import operator
from pathlib import Path

from kernel_codes import wrong_in
from perfsuite_compiler.autotune_triton import softmax_kernel
from perfsuite_compiler.compile_time import calls_of


def test_the_tuned_kernel_is_right_in_the_interpreter() -> None:
    assert wrong_in(Path(__file__).with_name("interpret.py"), 3, 1e-6) == {}


def test_each_call_of_a_function_is_counted() -> None:
    def act(times: int) -> int:
        return calls_of(lambda: [operator.neg(each) for each in range(times)])

    assert act(5) - act(2) == 3


def test_a_kernel_s_only_annotations_are_those_that_triton_knows() -> None:
    """Triton 3.6 looks up all others when it compiles, and refuses what it finds."""
    assert set(softmax_kernel.fn.__annotations__) == {"BLOCK"}
