"""A chain of small dependent steps, which several cases run: smoothing 8192 values on a ring."""

from typing import Any

from perfsuite import Work, capture
from perfsuite.gpu import load, torch

# A step reads 32 KiB and writes 32 KiB: the smallest working set of gpu-benches' small kernels.
N = 8192
THREADS = 256
BLOCKS = N // THREADS
GPU_BENCHES = (
    "te42kyfo/gpu-benches, gpu-small-kernels, H200, 4096 doubles (64 KiB): 26 GB/s launched one by "
    "one, which is 2.5 us a kernel; 48 to 52 in a graph, 1.3 us; 50 to 63 as one kernel with a "
    "grid-wide barrier, 1.0 to 1.3 us"
)


def work(steps: int, *, kernels: int = 0, graph: bool = False) -> Work:
    """Return what so many steps read and write; those of a ``graph`` are started as its nodes."""
    moved, start = steps * N * 4, "graph_node" if graph else "launch"
    return Work(read_bytes=moved, write_bytes=moved, kernels=kernels, start=start)


def inputs(rng: Any) -> tuple[Any, Any]:
    """Return the values and room for the result."""
    return rng.randn(N), rng.empty(N)


def load_step(ctx: Any, name: str = "step", *, blocks: int = BLOCKS) -> Any:
    """Return a kernel of smoothing.cu for so many blocks: a power of two, 8 or more."""
    return load(ctx, __file__, name, N=N, THREADS=N // blocks)


def load_chain(ctx: Any, steps: int, *, blocks: int = BLOCKS) -> Any:
    """Return ``chain(x, y)``: one kernel a step, the last of which writes y."""
    step = load_step(ctx, blocks=blocks)
    scratch = torch.empty(N, device=ctx.place)

    def chain(x: Any, y: Any) -> None:
        source = x
        for left in reversed(range(steps)):
            target = scratch if left % 2 else y
            step(blocks, N // blocks, source, target)
            source = target

    return chain


def load_resident(ctx: Any, steps: int, *, blocks: int = BLOCKS, name: str = "steps") -> Any:
    """Return ``run(x, y)``: one kernel whose blocks meet at a barrier after each step."""
    kernel = load_step(ctx, name, blocks=blocks)
    scratch = torch.empty(N, device=ctx.place)
    arrivals = torch.zeros(1, dtype=torch.int32, device=ctx.place)
    return lambda x, y: kernel(blocks, N // blocks, x, y, scratch, arrivals, steps)


def captured(run: Any, x: Any, y: Any) -> Any:
    """Return the replay of ``run(x, y)``: a graph reads and writes these tensors alone."""
    graph = capture(lambda: run(x, y))
    graph.instantiate()

    def replay(x: Any, y: Any) -> Any:
        graph.replay()
        return y

    return replay


def reference(x: Any, y: Any, *, steps: int) -> Any:
    """Return x after ``steps`` steps in float64: one multiplication a frequency, on the host."""
    spectrum = torch.fft.rfft(x.cpu().double())
    angle = 2 * torch.pi * torch.arange(len(spectrum), dtype=torch.float64) / len(x)
    return torch.fft.irfft(spectrum * (0.5 + 0.5 * angle.cos()) ** steps, n=len(x))


def smooth(x: Any, steps: int) -> Any:
    """Return x after ``steps`` steps in its own precision."""
    for _ in range(steps):
        x = 0.5 * x + 0.25 * (x.roll(1) + x.roll(-1))
    return x


def smooth_apart(x: Any, y: Any, *, steps: int, blocks: int = BLOCKS) -> Any:
    """Take the steps as if a block never saw what others write: the barrier is missing."""
    rows = x.view(blocks, N // blocks)
    before, after = rows.roll(1, 0)[:, -1:], rows.roll(-1, 0)[:, :1]
    for _ in range(steps):
        ring = torch.cat((before, rows, after), dim=1)
        rows = 0.5 * rows + 0.25 * (ring[:, :-2] + ring[:, 2:])
    return rows.reshape(-1)
