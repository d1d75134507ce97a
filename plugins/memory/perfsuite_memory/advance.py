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
    """Return int32 values after so many rounds, by squaring: a round twice is again a v + c."""
    factor, shift, power, offset = MULTIPLIER, INCREMENT, 1, 0
    while rounds:
        if rounds & 1:
            power, offset = power * factor % MODULUS, (offset * factor + shift) % MODULUS
        factor, shift = factor * factor % MODULUS, (factor + 1) * shift % MODULUS
        rounds >>= 1
    # A product beyond 63 bits wraps modulo 2**64, which leaves its low 32 bits right.
    now = (values.long() * power + offset) & (MODULUS - 1)
    return (now - ((now >> 31) << 32)).int()
