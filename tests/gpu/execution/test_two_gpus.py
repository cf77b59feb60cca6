"""Two equal GPUs: one target on each at a time, and others on the processor meanwhile.

It needs torch with CUDA, and no TensorRT.
"""

import importlib.util
import json
import socketserver
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from buildsys.execution.executor import Executor
from buildsys.execution.local_runs import Folders
from buildsys.plan.action import Action, FileRef
from buildsys.store.object_store import Store
from buildsys.system.devices import equal_gpus
from buildsys.workers.pool import WorkerPool

ROOT = Path(__file__).resolve().parents[3]
GPUS = equal_gpus()
LIMIT_S = 300.0  # for workers to import torch
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(len(GPUS) < 2, reason="fewer than two equal GPUs"),
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch"),
]


class Meeting(socketserver.ThreadingTCPServer):
    """Lets GPUs work until two have begun and a stage on the processor has run meanwhile."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Guest)
        self.change, self.gpus, self.is_over = threading.Condition(), 0, False


class Guest(socketserver.BaseRequestHandler):
    """The connection of one stage."""

    server: Meeting

    def handle(self) -> None:
        meeting, is_gpu = self.server, self.request.recv(3) == b"gpu"
        with meeting.change:
            meeting.gpus += is_gpu
            meeting.change.notify_all()
            meeting.change.wait_for(lambda: meeting.gpus >= 2, LIMIT_S)
            if is_gpu:
                meeting.change.wait_for(lambda: meeting.is_over, LIMIT_S)
        self.request.sendall(b".")
        if not is_gpu:
            self.request.recv(3)
            with meeting.change:
                meeting.is_over = True
                meeting.change.notify_all()


def action(name: str, device: str, port: int) -> Action:
    return Action(
        target=f"engine:{name}:e",
        stage="tests.gpu.gpu_stages",
        model=name,
        variant="e",
        options={"device": device, "port": port},
        inputs={},
        outputs={"result": FileRef(f"{name}/engine/e.json")},
        alone_on_gpu=device == "gpu",
    )


def test_equal_gpus_and_the_processor_work_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"gpu{number}" for number in range(len(GPUS) + 1)]  # one more than there are GPUs
    kinds = {**dict.fromkeys(names, "gpu"), "processor": "processor"}
    meeting = Meeting()
    threading.Thread(target=meeting.serve_forever, daemon=True).start()
    port = meeting.server_address[1]
    graph = {one.target: one for one in (action(*item, port) for item in kinds.items())}
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("BUILDSYS_MACHINE_LOCK", str(tmp_path / "locks"))
    monkeypatch.setenv("BUILDSYS_WORKER_IDLE", "0")
    waited: list[str] = []

    def notice(target: str, event: dict[str, Any]) -> None:
        if event["event"] == "waiting":
            waited.append(target)

    project, build = tmp_path / "project", tmp_path / "project/build"
    project.mkdir()
    with WorkerPool(project / ".buildsys") as pool:
        store = Store(tmp_path / "store")
        executor = Executor(
            Folders(project, build, project / ".buildsys"),
            graph,
            pool=pool,
            store=store,
            on_event=notice,
        )
        threads = [threading.Thread(target=executor.run, args=(target,)) for target in graph]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        executor.close()
    meeting.shutdown()
    meeting.server_close()

    results = {name: json.loads((build / f"{name}/engine/e.json").read_text()) for name in kinds}
    begun, ended = results.pop("processor")["span"]
    assert all(result["visible"] == 1 and result["finite"] for result in results.values())
    assert {f"GPU-{result['uuid']}" for result in results.values()} == set(GPUS)
    spans = {name: result["span"] for name, result in results.items()}
    by_gpu: dict[str, list[list[float]]] = {}
    for name, result in results.items():
        by_gpu.setdefault(result["uuid"], []).append(spans[name])
    for times in by_gpu.values():  # one after the other on each
        times.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(times))
    during = [name for name, (start, end) in spans.items() if start <= begun and ended <= end]
    assert len({results[name]["uuid"] for name in during}) >= 2, (spans, begun, ended)
    assert any(target.startswith("engine:gpu") for target in waited)
    figures = {name: (result["uuid"], *result["span"]) for name, result in results.items()}
    print(json.dumps({"processor": [begun, ended], **figures}, indent=1))
