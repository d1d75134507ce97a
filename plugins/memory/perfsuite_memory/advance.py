"""The kernel of advance.cu: work on data that was moved, and what it must come to."""

from typing import Any

from perfsuite import gpu

THREADS = 256
MULTIPLIER, INCREMENT, MODULUS = 1664525, 1013904223, 2**32


def load(ctx: Any, rounds: int) -> Any:
    """Return ``launch(values, n)``, which steps n int32 values where they lie."""
    kernel = gpu.load(ctx, __file__, "advance", ROUNDS=rounds)
    return lambda values, n: kernel(-(-n // THREADS), THREADS, values, n)


def expected(values: Any, rounds: int) -> Any:
    """Return int32 values after so many rounds: a**r v + c (a**r - 1) / (a - 1) modulo 2**32."""
    power = MULTIPLIER**rounds
    offset = INCREMENT * (power - 1) // (MULTIPLIER - 1)
    now = (values.long() * (power % MODULUS) + offset % MODULUS) % MODULUS
    return (now - ((now >> 31) << 32)).int()
