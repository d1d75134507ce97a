"""Lists the GPUs of this node as JSON, in a process of its own; run as ``python -m``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any


def list_gpus() -> list[dict[str, Any]]:
    """Return index, uuid, name and board of each GPU that CUDA_VISIBLE_DEVICES leaves visible."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - any failure of the driver means: no GPU to measure
        return []
    try:
        return _visible(list(_gpus(pynvml)), os.environ.get("CUDA_VISIBLE_DEVICES"))
    finally:
        pynvml.nvmlShutdown()


def _gpus(pynvml: Any) -> Iterator[dict[str, Any]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        yield {
            "index": index,
            "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
            "name": _text(pynvml.nvmlDeviceGetName(handle)),
            "board": _board(pynvml, handle),
        }


def _visible(gpus: list[dict[str, Any]], mask: str | None) -> list[dict[str, Any]]:
    if mask is None:
        return gpus
    chosen = []
    for part in (p.strip() for p in mask.split(",")):
        match = [g for g in gpus if part in (str(g["index"]), g["uuid"])]
        if part.startswith("MIG-"):
            match = [{"index": -1, "uuid": part, "name": "MIG"}]
        chosen += match
    return chosen


def _board(pynvml: Any, handle: Any) -> str:
    try:
        return _text(pynvml.nvmlDeviceGetBoardPartNumber(handle))
    except pynvml.NVMLError:
        return ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    json.dump(list_gpus(), sys.stdout)
