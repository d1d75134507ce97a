"""Why it changed: traces of kernels, code parts and counters."""
