"""TensorRT's timing caches: shared by builds, merged, and kept by digest so that a manifest can pin one."""
