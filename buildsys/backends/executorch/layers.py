"""Times of layers, from the event tracer of the runtime."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.backends.executorch.runtime import ExecuTorchSession
from buildsys.backends.interface import Figures, slowest
from buildsys.onnx_graphs.tensors import Tensor

_MOST_RUNS, _PROFILE_S = 20, 0.5
_KERNEL = "native_call_"
_RUN = "Execute"
_TYPES = {  # in XNNPACK's names of operators: Convolution (NHWC, QS8, QC8W) IGEMM #1
    "QS8": "int8", "QU8": "uint8", "QD8": "int8", "F16": "float16", "F32": "float32",
}  # fmt: skip
_TYPE = re.compile(rf"\b({'|'.join(_TYPES)})\b")


def layers_by_time(engine: Path, threads: int, inputs: Mapping[str, Tensor]) -> list[Figures]:
    """Return the slowest operators of the delegate and the slowest kernels, by their medians."""
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    session = ExecuTorchSession(engine, threads, traced=True)
    run, began = session.bind(inputs), time.monotonic()
    for _ in range(_MOST_RUNS):
        run()
        if time.monotonic() - began > _PROFILE_S:
            break
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace"
        session.write_trace(file)
        trace = deserialize_from_etdump_flatcc(file.read_bytes())
    session.close()
    times_ms: dict[str, list[float]] = {}
    for number, events in enumerate(each.events for each in trace.run_data if each.name == _RUN):
        for name, duration_ms in _layers(events) if number else ():  # the first run allocates
            times_ms.setdefault(name, []).append(duration_ms)
    medians = {name: statistics.median(times) for name, times in times_ms.items()}
    return [
        {
            "name": name,
            "kind": re.split(r" [(#]", name)[0],
            "precision": _TYPES[found[1]] if (found := _TYPE.search(name)) else None,
            **figures,
        }
        for name, figures in slowest(medians)
    ]


def _layers(events: list[Any]) -> Iterator[tuple[str, float]]:
    """Yield name and time of what ran; a repeated name gets the number of its instruction."""
    seen: dict[str, int] = {}
    for event in (each.profile_event for each in events if each.profile_event is not None):
        name = event.delegate_debug_id_str or ""
        if (event.name or "").startswith(_KERNEL):
            name = event.name.removeprefix(_KERNEL).partition(".")[0]
        if name:
            at = event.instruction_id
            shown = name if seen.setdefault(name, at) == at else f"{name}, instruction {at}"
            yield shown, (event.end_time - event.start_time) / 1e6
