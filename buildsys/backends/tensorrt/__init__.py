"""TensorRT 8.6, 10, 11 and TensorRT-RTX: one backend over the installed library.

``version_adapter`` alone knows how the generations differ; the other modules use names that all of
them have. Nothing here imports a TensorRT: the library is passed in as a ``Library``, so that two
can be used in one process.
"""
