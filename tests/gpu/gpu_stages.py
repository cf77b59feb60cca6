"""Stages that keep a GPU or a processor busy while others do the same.

They talk to the test through a socket, as files that change meanwhile would repeat a stage.
"""

import select
import socket
import time

import numpy as np

from buildsys.workers.job import Job, StageResult

_LEAST_S = 1.0
_SIZE = 4096


def run(job: Job) -> StageResult:
    device = job.options["device"]
    work = use_gpu if device == "gpu" else use_processor
    with socket.create_connection(("127.0.0.1", job.options["port"])) as test:
        return StageResult(figures=work(test))


def use_gpu(test: socket.socket) -> dict[str, object]:
    """Multiply matrices on the GPU until the test ends it."""
    import torch

    matrix = torch.rand(_SIZE, _SIZE, device="cuda")
    torch.cuda.synchronize()
    begun, products = time.monotonic(), 0
    test.sendall(b"gpu")
    while time.monotonic() - begun < _LEAST_S or not select.select([test], [], [], 0)[0]:
        for _ in range(20):
            matrix = (matrix @ matrix).softmax(dim=0)
        torch.cuda.synchronize()
        products += 20
    return {
        "uuid": str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-"),
        "visible": torch.cuda.device_count(),
        "finite": bool(torch.isfinite(matrix).all()),
        "products": products,
        "span": [begun, time.monotonic()],
    }


def use_processor(test: socket.socket) -> dict[str, object]:
    """Multiply matrices on the processor once the test allows it."""
    test.sendall(b"cpu")
    test.recv(1)
    begun, matrix = time.monotonic(), np.eye(256)
    while time.monotonic() - begun < _LEAST_S:
        matrix = matrix @ matrix
    span = [begun, time.monotonic()]
    test.sendall(b"end")
    return {"span": span}
