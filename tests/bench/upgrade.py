"""Precision and recall of `buildsys upgrade`, with regressions planted into wheels.

For each version of a library, two wheels are made of the one that pip downloads, an old and a new
one. They differ in their version, and in a patch that makes some models wrong, slower, larger, less
precise or faster, by the name of their input. All else is equal, so the right verdict on each model
is known. The projects are built in an environment with the old wheel.
"""

import argparse
import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import yaml
from _harness import ROOT, environment, log, publish, workspace
from gates import network

from buildsys.upgrade.shadow import make_shadow

# verdict -> models with it
PLANTED = {"wrong": 2, "precision lost": 2, "slower": 2, "larger": 2, "faster": 1, "unchanged": 2}
LIBRARIES = {
    "onnxruntime": ("ort", ("1.31.1", "1.32.0")),
    "openvino": ("ov", ("2026.3.1", "2026.4.1")),
}
SLOWDOWN = 0.3
_EFFECTS = """

def _plant(side):  # by tests/bench/upgrade.py
    import time

    def is_planted(name, kind, on="new"):
        return side == on and name.startswith(kind + "_")

    def outputs(name, arrays):
        for array in arrays:
            if is_planted(name, "wrong"):
                array *= 1.5
            if is_planted(name, "precise"):
                array += 2e-4 * abs(array).max()

    def delay(name, seconds):
        if is_planted(name, "slower") or is_planted(name, "faster", "old"):
            end = time.perf_counter() + SLOWDOWN * seconds
            while time.perf_counter() < end:
                pass

    def memory(name):
        return b"\\1" * (96 << 20) if is_planted(name, "larger") else b""

    return outputs, delay, memory


_outputs, _delay, _memory = _plant(SIDE)
"""
_PATCHES = {
    "onnxruntime": """
class InferenceSession(InferenceSession):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._planted = self.get_inputs()[0].name
        self._held = _memory(self._planted)

    def _timed(self, run, *args, **kwargs):
        import time

        begun = time.perf_counter()
        result = run(*args, **kwargs)
        _delay(self._planted, time.perf_counter() - begun)
        return result

    def run(self, *args, **kwargs):
        results = self._timed(super().run, *args, **kwargs)
        _outputs(self._planted, results)
        return results

    def run_with_iobinding(self, *args, **kwargs):
        return self._timed(super().run_with_iobinding, *args, **kwargs)
""",
    "openvino": """
def _patch():
    import time

    from openvino import _ov_api

    class InferRequest(_ov_api.InferRequest):
        def infer(self, *args, **kwargs):
            begun = time.perf_counter()
            result = super().infer(*args, **kwargs)
            _delay(self._planted, time.perf_counter() - begun)
            _outputs(self._planted, [tensor.data for tensor in self.output_tensors])
            return result

    def create_infer_request(self):
        request = InferRequest(super(_ov_api.CompiledModel, self).create_infer_request())
        request._planted = self.inputs[0].get_any_name()
        request._held = _memory(request._planted)
        return request

    _ov_api.CompiledModel.create_infer_request = create_infer_request


_patch()
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=LIBRARIES, help="only this one")
    parser.add_argument("--only", choices=PLANTED, help="models of this kind only")
    parser.add_argument("--models", type=int, default=0, help="most models of a kind")
    parser.add_argument("--duration", default="0.1", help="of a process, in s")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    cases: list[dict[str, Any]] = []
    with workspace() as folder:
        for library, (backend, versions) in LIBRARIES.items():
            for version in versions if given.library in (None, library) else ():
                place = folder / f"{library}-{version}"
                planted = {kind: min(n, given.models or n) for kind, n in PLANTED.items()}
                planted = {given.only: planted[given.only]} if given.only else planted
                cases += judge(place, library, version, backend, planted, given.duration)
    report(cases, given.json)


def judge(
    folder: Path,
    library: str,
    version: str,
    backend: str,
    planted: Mapping[str, int],
    duration: str,
) -> list[dict[str, Any]]:
    """Upgrade from the old to the new wheel of a version; return a case per model."""
    folder.mkdir()
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*download, f"{library}=={version}"], check=True, stderr=subprocess.DEVNULL)
    wheel = next(folder.glob("*.whl"))
    old, new = (patched_wheel(wheel, library, version, side) for side in ("old", "new"))
    project = folder / "project"
    kinds = make_project(project, backend, planted)
    python = make_shadow(folder / "environment", None, [str(old)], []).python
    options = ["--json", "--tolerance", "10%", "--duration", duration, "--summary", "upgrade.md"]
    done = subprocess.run(
        [str(python), "-m", "buildsys", "upgrade", str(new), *options],
        cwd=project, env=environment(), stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), f"the upgrade ended with {done.returncode}"
    engines = json.loads(done.stdout)["engines"]
    verdicts = {engine["model"]: engine["verdicts"] or ["unchanged"] for engine in engines}
    log((project / "upgrade.md").read_text(encoding="utf-8"))
    return [
        {"library": library, "version": version, "model": model, "planted": kind,
         "verdicts": verdicts.get(model, ["unchanged"])}
        for model, kind in kinds.items()
    ]  # fmt: skip


def patched_wheel(wheel: Path, library: str, version: str, side: str) -> Path:
    """Make a wheel of a local version with a patch appended to its main module."""
    target = wheel.with_name(wheel.name.replace(f"-{version}", f"-{version}+{side}", 1))
    effects = _EFFECTS.replace("SLOWDOWN", str(SLOWDOWN)).replace("SIDE", repr(side))
    info, local = f"{library}-{version}.dist-info", f"{library}-{version}+{side}.dist-info"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as result:
        for item in source.infolist():
            content, name = source.read(item), item.filename.replace(info, local, 1)
            if name == f"{library}/__init__.py":
                content += (effects + _PATCHES[library]).encode()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
                line = f"{name},sha256={digest.rstrip('=')},{len(content)}\n"
            elif name == f"{local}/METADATA":
                content = content.replace(
                    f"Version: {version}".encode(), f"Version: {version}+{side}".encode(), 1
                )
            elif name == f"{local}/RECORD":
                text = re.sub(rf"^{library}/__init__\.py,.*\n", line, content.decode(), flags=re.M)
                text = re.sub(
                    rf"^{re.escape(info)}/METADATA,.*\n", f"{local}/METADATA,,\n", text, flags=re.M
                )
                content = text.replace(info, local).encode()
            item.filename = name
            result.writestr(item, content, zipfile.ZIP_DEFLATED)
    return target


def make_project(project: Path, backend: str, planted: Mapping[str, int]) -> dict[str, str]:
    """Write a project of small networks; return the planted verdict of each model."""
    (project / "configs/models").mkdir(parents=True)
    (project / "dodo.py").write_bytes((ROOT / "dodo.py").read_bytes())
    engine = {"name": "e", "backend": {"ort": "onnxruntime", "ov": "openvino"}[backend]}
    engine |= {"ort": {"intra_op_threads": 1}, "ov": {"threads": 1}}[backend]
    kinds = {}
    for kind, count in planted.items():
        for number in range(count):
            name = f"{'precise' if kind == 'precision lost' else kind}{number}"
            port = f"{name.rstrip('0123456789')}_{number}"
            model = network(12 + number, 256)
            model.graph.input[0].name = port
            model.graph.node[0].input[0] = port
            onnx.save(model, project / f"{name}.onnx")
            manifest = {
                "model": name,
                "source": {"onnx": f"{name}.onnx"},
                "inputs": {port: {"shape": ["batch", 256]}},
                "outputs": {"y": {"shape": ["batch", 256]}},
                "dims": {"batch": {"min": 1, "opt": 64, "max": 64}},
                "engines": [engine],
                "bench": {"baselines": [], "warmup": "50ms"},
            }
            (project / f"configs/models/{name}.yaml").write_text(yaml.safe_dump(manifest))
            kinds[name] = kind
    return kinds


def report(cases: Sequence[Mapping[str, Any]], file: Path | None) -> None:
    """Print precision and recall per verdict."""
    rows = []
    for kind in PLANTED:
        given = {
            case["library"] + case["version"] + case["model"]
            for case in cases
            if kind in case["verdicts"]
        }
        true = {
            case["library"] + case["version"] + case["model"]
            for case in cases
            if kind == case["planted"]
        }
        both = len(given & true)
        rows.append(
            (kind, str(len(true)), str(len(given)), share(both, len(given)), share(both, len(true)))
        )
    others = Counter(v for case in cases for v in case["verdicts"] if v not in PLANTED)
    rows += [(verdict, "0", str(count), "", "") for verdict, count in others.items()]
    right = sum([case["planted"]] == case["verdicts"] for case in cases)
    title = f"buildsys upgrade: {right} of {len(cases)} models have exactly the planted verdict"
    publish(title, ("verdict", "planted>", "given>", "precision>", "recall>"), rows, cases, file)
    for case in cases:
        if [case["planted"]] != case["verdicts"]:
            print(f"- {case['library']} {case['version']} {case['model']}: {case['verdicts']}")


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "—"


if __name__ == "__main__":
    main()
