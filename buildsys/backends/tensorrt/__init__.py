"""TensorRT in its generations 8.6, 10, 11 and TensorRT-RTX: one backend over whichever library is there.

``adapter`` alone knows how the generations differ; the other modules use what all of them have. Nothing here imports
a TensorRT: the library comes in as a ``Library``, so that two can be used in one process.
"""
