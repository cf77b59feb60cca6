"""The machine: interpreters, libraries, compilers, CPU, GPUs, files, processes."""
