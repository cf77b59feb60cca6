"""Models of transformers, from a configuration or a checkpoint."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.sources.source_module import SourceModule, filled
from buildsys.models.state_dicts import key_of, largest_state, shortened
from buildsys.models.user_code import import_library, reraise_as_stage_error
from buildsys.models.weights_files import LoadedWeights, is_present, locate, read_weights
from buildsys.system.files import read_limited, sha256_of
from buildsys.system.printable import did_you_mean
from buildsys.system.weight_names import INDEX_SUFFIX, shards_of

CONFIG = "config.json"
_MAX_CONFIG_BYTES = 16 << 20
_WEIGHTS = ("model.safetensors", f"model{INDEX_SUFFIX}")
_PAST, _PRESENT = "past_key_values", "present"
_CACHE = "cache"  # in transformers 5.24 and newer, for past_key_values


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Build a model of transformers. Code of a checkpoint is never executed.

    Raises: StageError: class or configuration are unknown or fail, or the weights do not fit.
    """
    library = import_library("transformers", project)
    config = _config(library, source, project)
    name = source["transformers"]
    kwargs = {"dtype": "float32", **source["kwargs"]}
    if not isinstance(dtype := getattr(torch, str(kwargs["dtype"]), None), torch.dtype):
        problem = f"source.kwargs.dtype: torch has no dtype {kwargs['dtype']}"
        raise StageError(problem, "e.g. float32, bfloat16")
    kwargs["dtype"] = dtype
    with reraise_as_stage_error(
        f"{name} with the configuration {config.model_type} failed", project
    ):
        with torch.device("meta"):
            outline = _from_config(_model_class(library, name, config), config, kwargs)
        if weights := _weights(source, project):
            module, loaded = _pretrained(outline, config, weights, project, kwargs)
            made = SourceModule(module, loaded.origin, file=loaded)
        else:
            module = _from_config(type(outline), config, kwargs)
            made = filled(module, {**source, "weights": None}, project, name)
    if source["cache"]:
        module = WithCache(module, library)
    return replace(made, module=module, by_keyword=True)


class WithCache(nn.Module):
    """A decoder with past key values as tensors.

    They are inputs ``past_key_values.N.key`` and outputs ``present.N.key``, with ``value``.
    """

    def __init__(self, model: nn.Module, library: Any) -> None:
        super().__init__()
        self.model = model
        self._library = library

    def forward(self, **inputs: torch.Tensor) -> dict[str, Any]:
        """Call the model with a cache of the past inputs."""
        arguments = {name: t for name, t in inputs.items() if not name.startswith(f"{_PAST}.")}
        if len(arguments) < len(inputs):
            parameters = inspect.signature(self.model.forward).parameters
            arguments[_CACHE if _CACHE in parameters else _PAST] = self._cache(inputs)
        result = dict(self.model(**arguments, use_cache=True))
        cache = next((result.pop(name) for name in (_CACHE, _PAST) if name in result), None)
        layers = getattr(cache, "layers", [cache])
        if not all(hasattr(layer, "keys") for layer in layers):
            text = f"{type(self.model).__name__} is not a decoder with past key values"
            raise StageError(text, "remove source.cache")
        result[_PRESENT] = [{"key": layer.keys, "value": layer.values} for layer in layers]
        return result

    def _cache(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        past = {name: tensor for name, tensor in inputs.items() if name.startswith(f"{_PAST}.")}
        cache = self._library.DynamicCache()
        for number in range((len(past) + 1) // 2):
            names = [f"{_PAST}.{number}.{kind}" for kind in ("key", "value")]
            if not past.keys() >= {*names}:
                raise StageError(f"layer {number} lacks an input", f"add {' and '.join(names)}")
            # update() would concatenate them with an empty tensor of rank 1, which ONNX refuses
            layer = self._library.cache_utils.DynamicLayer()
            layer.lazy_initialization(*(past[name] for name in names))
            layer.keys, layer.values = (past[name] for name in names)
            cache.layers.append(layer)
        return cache


def read_config(source: Mapping[str, Any], project: Path) -> tuple[Mapping[str, Any], str]:
    """Read the fields of the configuration, and their origin.

    Raises: StageError: they cannot be read.
    """
    config = source["config"]
    if isinstance(config, Mapping):
        return config, "source.config"
    origin = config if config is not None else f"{source['checkpoint'].rstrip('/')}/{CONFIG}"
    try:
        fields = dict(json.loads(read_limited(locate(origin, project), _MAX_CONFIG_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        problem = f"cannot read the configuration {origin}: {error}"
        raise StageError(problem, "name the config.json of a transformers model") from error
    return fields, origin


def _config(library: Any, source: Mapping[str, Any], project: Path) -> Any:
    """Read the configuration. Raises: StageError: it cannot be read, or is unknown."""
    values, origin = read_config(source, project)
    fields = {key: value for key, value in values.items() if key not in ("auto_map", "model_type")}
    kind, mapping = values.get("model_type"), library.CONFIG_MAPPING
    if not isinstance(kind, str) or kind not in mapping:
        raise StageError(
            f"{origin}: transformers {library.__version__} has no model_type {kind}",
            did_you_mean(str(kind), list(mapping), "update transformers"),
        )
    with reraise_as_stage_error(f"{origin} failed", project):
        if source["config"] is values:  # transformers would keep a misspelled field as it is
            plain = mapping[kind]()
            if unknown := [field for field in fields if not hasattr(plain, field)]:
                hint = did_you_mean(unknown[0], list(plain.to_dict()), "remove it")
                raise StageError(f"{origin}: {kind} has no field {unknown[0]}", hint)
        config = mapping[kind].from_dict(fields)
    for part in (config, config.get_text_config()):
        if hasattr(part, "use_cache"):
            part.use_cache = source["cache"]
    return config


def _model_class(library: Any, name: str, config: Any) -> Any:
    """Find the class of a model, also by a task. Raises: StageError: there is none."""
    if name[:1].isupper():
        model_class = getattr(library, name, None)
        if hasattr(model_class, "_model_mapping") or hasattr(model_class, "_from_config"):
            return model_class
        names = [attribute for attribute in dir(library) if "Model" in attribute]
        problem = f"transformers {library.__version__} has no model class {name}"
        raise StageError(problem, did_you_mean(name, names))
    from transformers.pipelines import PIPELINE_REGISTRY

    tasks = PIPELINE_REGISTRY.get_supported_tasks()
    autos = PIPELINE_REGISTRY.check_task(name)[1]["pt"] if name in tasks else ()
    if auto := next((auto for auto in autos if type(config) in auto._model_mapping), None):
        return auto
    problem = f"transformers has no task {name} for models of type {config.model_type}"
    near = tasks if name not in tasks else ()
    raise StageError(problem, did_you_mean(name, near, "name the class of the model", cutoff=0.4))


def _from_config(kind: Any, config: Any, kwargs: Mapping[str, Any]) -> nn.Module:
    if hasattr(kind, "_model_mapping"):
        kwargs = {**kwargs, "trust_remote_code": False}
        return kind.from_config(config, **kwargs)  # type: ignore[no-any-return]
    return kind._from_config(config, **kwargs)  # type: ignore[no-any-return]


def _weights(source: Mapping[str, Any], project: Path) -> Mapping[str, Any] | None:
    """Locate the file of weights. Raises: StageError: the checkpoint has none, or others."""
    if source["checkpoint"] is None:
        declared: Mapping[str, Any] | None = source["weights"]
        return declared
    folder = source["checkpoint"].rstrip("/")
    if not (file := weights_file(folder, project)):
        raise StageError(
            f"{folder} has neither {' nor '.join(_WEIGHTS)}",
            f"save safetensors with model.save_pretrained({folder!r}), or name only its"
            " config.json under source.config for random weights",
        )
    expected = source.get("sha256")
    if expected and (digest := checkpoint_digest(folder, project)) != expected:
        raise StageError(
            f"the checkpoint {folder} has the sha256 {digest}, the manifest expects {expected}",
            "restore its files, or update the digest in the manifest",
        )
    return {"file": file, "sha256": None, "key": None, "strict": True}


def weights_file(folder: str, project: Path) -> str:
    """Locate the weights of a checkpoint, the index if they have shards; "" without weights."""
    places = (f"{folder.rstrip('/')}/{name}" for name in _WEIGHTS)
    return next((place for place in places if is_present(place, project)), "")


def checkpoint_digest(folder: str, project: Path) -> str:
    """Compute the digest of the configuration and weights of a checkpoint.

    Raises: StageError: a file is missing.
    """
    folder = folder.rstrip("/")
    weights = locate(weights_file(folder, project), project)
    files = [locate(f"{folder}/{CONFIG}", project), weights]
    shards = [locate(f"{folder}/{file.name}", project) for file in shards_of(weights)]
    return sha256_of(*files, *shards)


def _pretrained(
    outline: Any, config: Any, weights: Mapping[str, Any], project: Path, kwargs: Mapping[str, Any]
) -> tuple[nn.Module, LoadedWeights]:
    """Load a model with weights, and their origin. transformers renames old tensors.

    Raises: StageError: tensors are missing or have other shapes.
    """
    loaded, title = read_weights(weights, project), weights["file"]
    module, info = type(outline).from_pretrained(
        None,
        config=config,
        state_dict=dict(largest_state(loaded, key_of(weights), title)),
        output_loading_info=True,
        **kwargs,
    )
    missing = sorted(info["missing_keys"])
    wrong = {key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]}
    is_strict = weights["strict"] or len(missing) == len(module.state_dict())
    if wrong := wrong | {*missing} if is_strict else wrong:
        saved_by = " or ".join(config.architectures or ())
        raise StageError(
            f"the state dict in {weights['file']} does not fit {type(module).__name__}: no weights"
            f" of this shape for {shortened(sorted(wrong))}",
            f"it was saved by {saved_by}: name that class" if saved_by else "",
        )
    unused = len(info["unexpected_keys"])
    origin = f"from {weights['file']}" + (f" without {unused} unused tensors" if unused else "")
    return module, LoadedWeights(origin, missing=missing)
