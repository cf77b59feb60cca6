"""The network of a model: options to create and call it, and what its results depend on."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from buildsys.manifest.shape_cases import example_dims
from buildsys.plan.graph_points import GraphPoint, Spec
from buildsys.system.user_modules import source_of, split_reference
from buildsys.system.weight_names import INDEX_SUFFIX

DataEntry = Mapping[str, Any]  # source of input values
_LIBRARIES = {
    "torchvision": ("torchvision",),
    "timm": ("timm", "torchvision"),
    "transformers": ("transformers",),
    "exported_program": (),
    "python": (),
    "numpy": (),
}
# of a checkpoint of transformers; a missing one may appear
_CHECKPOINT_FILES = ("config.json", "model.safetensors", f"model{INDEX_SUFFIX}")


class PlannedNetwork:
    """The original network: its outputs are the golden outputs."""

    def __init__(self, spec: Spec, source: Mapping[str, Any], exported: GraphPoint) -> None:
        self.source = source
        self._spec = spec
        self._exported = exported
        self.is_onnx = "onnx" in source
        self.is_torch = bool(source) and "numpy" not in source and not self.is_onnx
        self.on_gpu = source.get("device") == "cuda"  # not its engines
        self.data = {name: tensor["data"] for name, tensor in spec["inputs"].items()}

    @property
    def is_made(self) -> bool:
        """True if a callable makes the ONNX model."""
        return bool(split_reference(self.source.get("onnx", ""))[1])

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options to create and call the network; for PyTorch with the example."""
        if self.is_onnx:
            return {"source": self.source, "inputs": self._exported.inputs, "data": self.data}
        inputs, outputs = self._spec["inputs"].items(), self._spec["outputs"].items()
        return {
            "source": self.source,
            "example": example_dims(self._exported.dims),
            "inputs": {n: {f: t[f] for f in ("shape", "dtype", "keyword")} for n, t in inputs},
            "outputs": {n: {f: t[f] for f in ("shape", "dtype", "key")} for n, t in outputs},
            "data": self.data,
            **({"call": self._spec["call"]} if self._spec["call"] else {}),
        }

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The user's files that make the network."""
        if self.is_onnx:
            file = self.source["onnx"]
            return (source_of(file) if self.is_made else file,)
        function = self.source.get("python") or self.source.get("numpy")
        own = (source_of(function),) if function else ()
        return (*own, *data_files(self.data.values()))

    @property
    def weights(self) -> dict[str, str | None]:
        """The user's state dicts and checkpoints with their required digests.

        A commit of the Hub or a digest, in the options, identifies those elsewhere.
        """
        return {file: digest for file, digest in self._files.items() if "://" not in file}

    @cached_property
    def _files(self) -> dict[str, str | None]:
        source, files = self.source, dict[str, str | None]()
        if isinstance(weights := source.get("weights"), dict):
            files[weights["file"]] = weights["sha256"]
        if folder := source.get("checkpoint"):
            files = dict.fromkeys(f"{folder.rstrip('/')}/{name}" for name in _CHECKPOINT_FILES)
        if "exported_program" in source:
            files[source["exported_program"]] = None
        if isinstance(source.get("config"), str):
            files[source["config"]] = None
        return files

    @cached_property
    def tools(self) -> tuple[str, ...]:
        """Libraries that make the network, without the user's imports."""
        if self.is_onnx:
            return ("python", "numpy") if self.is_made else ()
        images = image_tools(self.data.values())
        if not self.is_torch:
            return ("python", "numpy", *images)
        libraries = (*_LIBRARIES[self._kind], *images)
        is_safe = any(file.endswith((".safetensors", INDEX_SUFFIX)) for file in self._files)
        libraries += ("safetensors",) if is_safe else ()
        return ("python", "torch", "numpy", *dict.fromkeys(libraries))

    @property
    def code(self) -> tuple[str, ...]:
        """Our modules that make the network."""
        if self.is_onnx:
            return ()
        if not self.is_torch:
            return ("buildsys.models.numpy_function",)
        return (f"buildsys.models.sources.{self._kind}",)

    @property
    def environment(self) -> tuple[str, ...]:
        """Families of variables that decide its outputs."""
        return ("torch", *(("gpu",) if self.on_gpu else ())) if self.is_torch else ()

    @property
    def _kind(self) -> str:
        return next(kind for kind in self.source if kind in _LIBRARIES)


def data_files(entries: Iterable[DataEntry | None]) -> tuple[str, ...]:
    """List the user's files in ``entries``, image folders with a slash."""
    files = []
    for entry in entries:
        data = entry or {}
        files += [data["npz"]] if data.get("npz") else []
        files += [source_of(data["python"])] if data.get("python") else []
        files += [f"{data['images'].rstrip('/')}/"] if data.get("images") else []
    return tuple(dict.fromkeys(files))


def image_tools(entries: Iterable[DataEntry | None]) -> tuple[str, ...]:
    """Name the library for images, if any entry has images."""
    return ("pillow",) if any("images" in (entry or ()) for entry in entries) else ()
