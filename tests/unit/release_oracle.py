"""An oracle for choices: the documented rules as a table, applied to plain JSON.

It shares no code with buildsys. A row of RULES is a backend, a kind of reason, and the condition
under which the engine ``e`` (of an index) is refused on the machine ``m``.
"""

from collections.abc import Callable
from typing import Any

from packaging.version import Version

Json = dict[str, Any]
MODULES = {
    "onnxruntime": "onnxruntime", "openvino": "openvino", "tensorrt": "tensorrt", "torch": "torch",
    "executorch": "executorch", "ncnn": "ncnn", "coreml": "coremltools",
}  # fmt: skip


def built(e: Json) -> str:
    return str(e["rules"]["built_with"][MODULES[e["backend"]]])


def here(e: Json, m: Json) -> str | None:
    version: str | None = m["libraries"].get(MODULES[e["backend"]])
    return version


def minor(version: str) -> Version:
    return Version(".".join(version.split(".")[:2]))


def is_older(e: Json, m: Json) -> bool:
    return here(e, m) is not None and minor(str(here(e, m))) < minor(built(e))


def setting(e: Json, name: str) -> Any:
    return e["rules"]["settings"].get(name)


def lacks(e: Json, m: Json, *only: str) -> set[str]:
    names = set(e["rules"]["built_with"].get("instructions", ()))
    return (names & set(only) if only else names) - set(m["instructions"])


def tensorrt_differs(e: Json, m: Json) -> bool:
    if (installed := here(e, m)) is None:
        return False
    old, new = Version(built(e)).release, Version(installed).release
    if not e["rules"]["portability"].get("version_compatible"):
        return old[:3] != new[:3] or (len(old) > 3 < len(new) and old[3] != new[3])
    return not ((old[0] == new[0] and new >= old) or f"{old[0]}-{new[0]}" in ["8-10", "10-11"])


def capability_differs(e: Json, m: Json) -> bool:
    if not m["gpus"]:
        return False
    own = m["gpus"][0]["compute_capability"]
    if (
        e["backend"] == "tensorrt"
        and e["rules"]["portability"].get("hardware_compatibility") == "ampere_plus"
    ):
        return float(own) < 8
    return bool(own != e["rules"]["built_with"]["compute_capability"])


def driver_is_old(e: Json, m: Json) -> bool:
    wanted = m["cuda"].get("tensorrt") or e["rules"]["built_with"].get("cuda_runtime")
    return bool(m["gpus"]) and float(m["gpus"][0]["cuda_driver"]) < int(wanted)


def vnni(names: list[str]) -> bool:
    return any("vnni" in name for name in names)


def overflows(e: Json, m: Json) -> bool:
    is_int8 = "int8" in e["rules"]["precision_shares"]["weights"]
    names = e["rules"]["built_with"]["instructions"]
    return is_int8 and "avx" in m["instructions"] and vnni(names) and not vnni(m["instructions"])


def on_cpu(e: Json) -> bool:
    return setting(e, "provider") != "cuda"


Refused = Callable[[Json, Json], object]
RULES: list[tuple[str, str, Refused]] = [
    *((backend, "library", lambda e, m: here(e, m) is None) for backend in MODULES),
    *((backend, "version", is_older) for backend in ("onnxruntime", "executorch", "ncnn")),
    *(
        (backend, "platform", lambda e, m: m["platform"].split()[1] != "x86_64")
        for backend in ("onnxruntime", "openvino")
    ),
    *(
        (backend, "platform", lambda e, m: m["platform"] != "Linux x86_64")
        for backend in ("tensorrt", "torch")
    ),
    ("coreml", "platform", lambda e, m: not m["platform"].startswith("Darwin")),
    ("coreml", "version", lambda e, m: m["macos"] and float(m["macos"]) < 14),
    ("onnxruntime", "gpu", lambda e, m: not on_cpu(e) and not m["gpus"]),
    ("onnxruntime", "library", lambda e, m: here(e, m) is not None
        and (not on_cpu(e)) and "CUDAExecutionProvider" not in m["providers"]),
    ("onnxruntime", "processor", lambda e, m: on_cpu(e) and overflows(e, m)),
    ("onnxruntime", "processor", lambda e, m: on_cpu(e)
        and setting(e, "graph_optimization_level") == "all"
        and lacks(e, m, "avx", "avx2", "avx512f")),
    ("openvino", "version", lambda e, m: not setting(e, "compiled") and is_older(e, m)),
    ("openvino", "version", lambda e, m: setting(e, "compiled")
        and here(e, m) not in (None, built(e))),
    ("openvino", "processor", lambda e, m: setting(e, "compiled")
        and {*m["instructions"]} != {*e["rules"]["built_with"]["instructions"]}),
    ("torch", "version", lambda e, m: here(e, m) is not None
        and minor(str(here(e, m))) != minor(built(e))),
    ("torch", "processor", lambda e, m: setting(e, "mode") == "aot_inductor" and lacks(e, m)),
    ("torch", "gpu", lambda e, m: setting(e, "mode") == "compile"
        and (not m["gpus"] or capability_differs(e, m))),
    ("tensorrt", "version", tensorrt_differs),
    ("tensorrt", "gpu", lambda e, m: not m["gpus"]),
    ("tensorrt", "driver", driver_is_old),
    ("tensorrt", "compute capability", capability_differs),
]  # fmt: skip


def kinds(e: Json, m: Json, wishes: Json) -> list[str]:
    """List the kinds of reasons against an engine."""
    refused = [kind for backend, kind, rule in RULES if backend == e["backend"] and rule(e, m)]
    if "platform" in refused and e["backend"] == "coreml":
        refused = ["platform"]  # nothing else matters there
    for name in ("backend", "precision"):
        refused += ["request"] if wishes.get(name, e[name]) != e[name] else []
    limit = wishes.get("max_error")
    refused += (
        ["request"]
        if limit is not None and (9.0 if e["error"] is None else e["error"]) > limit
        else []
    )
    return sorted(refused)


def latency(e: Json, m: Json) -> tuple[float, int]:
    """Return the latency that counts, and 0 if it is of a device of this name."""
    devices = {one["device"]["name"]: one["p50_ms"] for one in e["measured"]}
    for name in [*(gpu["name"] for gpu in m["gpus"][:1]), m["cpu"]]:
        if name in devices:
            return devices[name], 0
    similar = [
        one["p50_ms"]
        for one in e["measured"]
        if one["device"]["kind"] == "cpu" or (one["device"]["kind"] == "gpu" and m["gpus"])
    ]
    return (min(similar), 1) if similar else (float("inf"), 1)


def choose(index: Json, m: Json, wishes: Json) -> tuple[list[str], dict[str, list[str]]]:
    """Return the names of usable engines, the best first, and the kinds of reasons by name."""
    waiting, refused = [], {}
    for e in index["variants"]:
        name = f"{e['model']}:{e['engine']}"
        if reasons := kinds(e, m, wishes):
            refused[name] = reasons
        else:
            waiting.append((*latency(e, m), 9.0 if e["error"] is None else e["error"], name))
    ranked = []
    while waiting:
        best = waiting[0]
        for other in waiting:
            if other < best:
                best = other
        waiting.remove(best)
        ranked.append(best[-1])
    return ranked, refused
