"""The only package that speaks torch, CUDA and NVML."""
