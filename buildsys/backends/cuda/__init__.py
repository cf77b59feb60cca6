"""CUDA through cuda-python: GPUs, memory, streams, events and graphs.

An engine's inputs and outputs are plain buffers, so the driver API is enough; the CUDA toolkit is
not needed.
"""
