"""Memory asked of the CUDA driver itself, past torch."""

from __future__ import annotations

from typing import Any


def asked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a call of cuda.bindings' driver gave; raises RuntimeError with its error."""
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"the CUDA driver says {error.name}")
    return tuple(values)


def stream() -> Any:
    """Return torch's current stream for the driver."""
    import torch
    from cuda.bindings import driver

    return driver.CUstream(torch.cuda.current_stream().cuda_stream)


def device_location() -> Any:
    """Return where the process's first GPU has its memory."""
    from cuda.bindings import driver

    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 0
    return location


def host_location() -> Any:
    """Return where the host has its memory."""
    from cuda.bindings import driver

    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    return location


def make_pool() -> Any:
    """Return a pool of device memory that keeps what is freed until it is destroyed."""
    from cuda.bindings import driver

    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = device_location()
    (pool,) = asked(driver.cuMemPoolCreate(wanted))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    asked(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(2**64 - 1)))
    return pool
