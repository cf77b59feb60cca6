"""Artifacts for other programs, checked by what others publish: protobuf, schemas, a registry."""

import hashlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from release_folder import publish_engine, release_engines

from buildsys.errors import StageError
from buildsys.release.serving import ServedEngine, fetch_engine
from buildsys.release.serving.card import bill_of_materials, model_card
from buildsys.release.serving.oci import push_layout, write_layout
from buildsys.release.serving.triton import write_repository
from buildsys.store.remote_folder import connect

GPU = {"backend": "tensorrt", "device": {"kind": "gpu", "name": "NVIDIA H200"}}
PROFILES = [{"x": {"min": [1, 8], "opt": [4, 8], "max": [16, 8]}}]
RANGES = {"x": [[1, 8], 8]}
# modelpack/model-spec, schema/config-schema.json: what an engine has of it
CONFIG_SCHEMA = {
    "type": "object",
    "required": ["descriptor", "config", "modelfs"],
    "additionalProperties": False,
    "properties": {
        "descriptor": {"required": ["name"], "additionalProperties": False, "properties": {
            name: {"type": "string"} for name in ("name", "title", "version")}},
        "config": {"additionalProperties": False, "properties": {
            name: {"type": "string"} for name in ("format", "precision")}},
        "modelfs": {"required": ["type", "diffIds"], "properties": {
            "type": {"enum": ["layers"]}, "diffIds": {"type": "array", "minItems": 1}}},
    },
}  # fmt: skip


def bench(**p50_ms: float) -> dict[str, Any]:
    cases = {
        name: {"dims": {}, "batch": int(name[1:]), "contenders": {"engine": {"p50_ms": ms}}}
        for name, ms in p50_ms.items()
    }
    return {"bench": {"stage": "bench", "status": "passed", "cases": cases}}


def serve(tmp_path: Path, **engines: dict[str, Any]) -> list[ServedEngine]:
    folder = connect(str(tmp_path / "rel"))
    for name, options in engines.items():
        publish_engine(folder, tmp_path / "built", "1.4.0", name, **options)
    index = release_engines(folder, "1.4.0")
    made = tmp_path / "served"
    return [fetch_engine(folder.open_to_read, index, v, made) for v in index.variants]


def tensorrt(capability: str, **changes: Any) -> dict[str, Any]:
    built_with = {"tensorrt": "10.9.0.34", "compute_capability": capability}
    ports = {n: [{"name": n, "dtype": "float16", "shape": [-1, 8]}] for n in ("x", "y")}
    return {
        **GPU, "built_with": built_with, "profiles": PROFILES, "content": capability.encode(),
        "settings": {"precision": "fp16"}, "inputs": ports["x"], "outputs": ports["y"], **changes,
    }  # fmt: skip


def config_of(folder: Path) -> Any:
    """Read a configuration with Triton's own protobuf, which knows every field and enumeration."""
    client = pytest.importorskip("tritonclient")
    file = Path(client.__path__[0], "grpc/model_config_pb2.py")  # its package needs grpcio
    spec = spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    pb2: Any = module_from_spec(spec)
    if "model_config_pb2" not in sys.modules:  # a message can be registered once
        spec.loader.exec_module(pb2)
        sys.modules["model_config_pb2"] = pb2
    from google.protobuf import text_format

    message = sys.modules["model_config_pb2"].ModelConfig()
    return text_format.Parse((folder / "config.pbtxt").read_text(), message)


def test_a_triton_repository_is_read_by_the_published_protobuf(tmp_path: Path) -> None:
    port = {"name": "x", "dtype": "int64", "shape": [3, "t"]}
    fixed = {"inputs": [port], "ranges": {"x": [3, [2, 9]]}}
    engines = serve(
        tmp_path,
        ort={"ranges": RANGES, "results": bench(b1=1.0, b4=2.0, b8=6.0)},
        slow={"ranges": RANGES, "results": bench(b1=1.0, b8=8.0)},
        fixed=fixed,
        ov={"backend": "openvino", "ranges": RANGES},
        h200=tensorrt("9.0", results=bench(b1=0.5)),
        t4=tensorrt("7.5"),
        again=tensorrt("7.5", content=b"again"),
        other=tensorrt("8.0", inputs=[{"name": "z", "dtype": "float16", "shape": [-1, 8]}]),
        aoti={"backend": "torch"},
        swish={"operators": {"custom::swish": "library"}},
        dml={"settings": {"providers": ["DmlExecutionProvider", "CPUExecutionProvider"]}},
        odd={"formats": {"x": "CHW4"}},
    )  # fmt: skip
    models, refused = write_repository(engines, tmp_path / "triton", 3)
    assert models["net-tensorrt-fp16"] == ["net:h200", "net:again"]
    assert refused == {
        "net:aoti": "no backend of Triton runs torch engines",
        "net:dml": "it uses the execution provider DmlExecutionProvider",
        "net:odd": "a tensor of it is not linear in memory",
        "net:other": "its inputs are not those of net:h200",
        "net:swish": "it has custom operators, which Triton needs as libraries of its own",
        "net:t4": "net:again is for the same GPUs",
    }
    config = config_of(tmp_path / "triton/net-ort")
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 8)
    assert [*config.input[0].dims] == [8]
    assert [*config.dynamic_batching.preferred_batch_size] == [4]
    assert config.dynamic_batching.max_queue_delay_microseconds == 1000
    (warm_up,) = config.model_warmup
    assert (warm_up.batch_size, warm_up.inputs["x"].zero_data) == (4, True)
    assert not config_of(tmp_path / "triton/net-slow").HasField("dynamic_batching")
    static = config_of(tmp_path / "triton/net-fixed")
    assert (static.max_batch_size, [*static.input[0].dims]) == (0, [3, -1])
    assert [*static.model_warmup[0].inputs["x"].dims] == [3, 2]
    assert config_of(tmp_path / "triton/net-ov").max_batch_size == 0
    plan = config_of(tmp_path / "triton/net-tensorrt-fp16")
    assert dict(plan.cc_model_filenames) == {"9.0": "h200.plan", "7.5": "again.plan"}
    assert (plan.max_batch_size, plan.platform) == (16, "tensorrt_plan")
    assert plan.instance_group[0].kind == plan.instance_group[0].KIND_GPU
    assert (tmp_path / "triton/net-tensorrt-fp16/3/h200.plan").read_bytes() == b"9.0"
    assert (tmp_path / "triton/net-ort/3/model.onnx").is_file()
    with pytest.raises(StageError, match=r"fp16/3 exists already; name another folder"):
        write_repository(engines, tmp_path / "triton", 3)
    write_repository(engines[:1], tmp_path / "triton", 4)


@pytest.mark.parametrize(
    "record", [{"files": {"../x": {"sha256": "0"}}}, {"files": {}}, {"inputs": [{"name": 5}]}]
)
def test_an_engine_json_that_names_other_files_is_refused(tmp_path: Path, record: Any) -> None:
    folder = connect(str(tmp_path / "rel"))
    publish_engine(folder, tmp_path / "built", "1.4.0", "a")
    index = release_engines(folder, "1.4.0")
    path = tmp_path / "rel/net/a/1.4.0/engine.json"
    content = json.dumps({**json.loads(path.read_text()), **record}).encode()
    path.write_bytes(content)
    (variant,) = index.variants
    facts = len(content), hashlib.sha256(content).hexdigest()
    forged = replace(variant, files={**variant.files, "engine.json": facts})
    with pytest.raises(StageError):
        fetch_engine(folder.open_to_read, index, forged, tmp_path / "served")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    if (program := shutil.which("docker-registry")) is None:
        pytest.skip("apt-get install docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "registry.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    command = [program, "serve", str(tmp_path / "registry.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
        server.terminate()


def test_a_registry_takes_and_returns_the_artifact(tmp_path: Path, registry: str) -> None:
    pytest.importorskip("oras")
    engines = serve(tmp_path, ort={"ranges": RANGES})
    layout = tmp_path / "layout"
    assert write_layout(engines, layout) == {"net:ort": "net-ort-1.4.0"}
    (reference,) = push_layout(layout, f"{registry}/models/net", insecure=True)
    name, _, digest = reference.partition("@")
    assert name == f"{registry}/models/net:net-ort-1.4.0"

    def get(path: str) -> bytes:
        request = urllib.request.Request(f"http://{registry}/v2/models/net/{path}")
        request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
        with urllib.request.urlopen(request) as reply:
            return bytes(reply.read())

    manifest = json.loads(get("manifests/net-ort-1.4.0"))
    assert json.loads(get(f"manifests/{digest}")) == manifest
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    config = json.loads(get(f"blobs/{manifest['config']['digest']}"))
    jsonschema.validate(config, CONFIG_SCHEMA)
    files = {}
    for layer, diff_id in zip(manifest["layers"], config["modelfs"]["diffIds"], strict=True):
        content = get(f"blobs/{layer['digest']}")
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == layer["digest"] == diff_id
        files[layer["annotations"]["org.cncf.model.filepath"]] = content, layer["mediaType"]
    engine = (engines[0].folder / "engine.onnx").read_bytes()
    assert files["engine.onnx"] == (engine, "application/vnd.cncf.model.weight.v1.raw")
    assert files.keys() == {"engine.onnx", "engine.json", "README.md"}
    (layout / "blobs/sha256" / manifest["config"]["digest"][7:]).unlink()
    with pytest.raises(StageError, match=r"cannot upload to .*/other: .*; check the registry"):
        push_layout(layout, f"{registry}/other", insecure=True)
    with pytest.raises(StageError, match=r"cannot upload to 127\.0\.0\.1:1/x: .*refused"):
        push_layout(layout, "127.0.0.1:1/x", insecure=True)


def test_card_and_bill_of_materials_say_what_the_release_knows(tmp_path: Path) -> None:
    evaluate = {"title": "top-1", "value": 0.75, "original": 0.8, "samples": 100, "is_share": True}
    results = {**bench(b1=1.25), "evaluate": evaluate}
    engines = serve(tmp_path, ort={"results": results}, trt=tensorrt("9.0"))
    card = model_card(engines)
    assert card.startswith('---\ntags: ["buildsys", "onnxruntime", "tensorrt"]\n')
    assert "| 1.25 ms |" in card
    assert "- net:ort: top-1 75.0 %; the original model has 80.0 %, on 100 samples" in card
    assert "license" not in card
    bom = bill_of_materials(engines)
    (model, _, library, _) = bom["components"]
    metrics = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert [metric["value"] for metric in metrics] == ["1.25", "0.75"]
    assert library["purl"] == "pkg:pypi/onnxruntime@1.20.0"
    validation = pytest.importorskip("cyclonedx.validation.json")
    from cyclonedx.schema import SchemaVersion

    strict = validation.JsonStrictValidator(SchemaVersion.V1_6)
    assert strict.validate_str(json.dumps(bom)) is None
    model["type"] = "an engine"
    assert strict.validate_str(json.dumps(bom)) is not None
