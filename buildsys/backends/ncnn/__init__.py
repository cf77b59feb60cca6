"""ncnn as a backend."""
