"""Compiles the kernels on stdin for two targets, and prints metrics and digests as JSON."""

import hashlib
import json
import sys

import msgspec
from perfsuite_codegen.compiling import compile_kernel
from perfsuite_codegen.kernel import metrics_of

from perfsuite import Kernel, read_code


def main() -> None:
    found = {}
    for kernel in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Kernel]):
        for target in ("sm_90a", "sm_100a"):
            binary = compile_kernel(kernel, target)
            metrics = metrics_of(binary, read_code(binary.cubin, binary.symbol))
            # ptxas picks uniform registers by chance where there is tcgen05, and nothing else.
            is_certain = target == "sm_90a"
            digest = hashlib.sha256(binary.cubin).hexdigest() if is_certain else ""
            found[f"{kernel.name} {target}"] = (metrics, digest)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
