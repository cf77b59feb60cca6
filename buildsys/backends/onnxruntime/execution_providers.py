"""Execution providers of ONNX Runtime: names, packages and options.

Standard library only: manifests, plans and ``can_run`` read this table as well.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from platform import machine
from typing import Any

CPU = "cpu"
OTHER_OPTIONS = "config"  # options of a provider that this table lacks, passed on
_CUDA_LIBRARIES = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12", "nvidia-cublas")
# options that name files or streams of their own
REFUSED_OPTIONS = (
    "trt_engine_cache_enable", "trt_engine_cache_path", "trt_timing_cache_enable",
    "trt_timing_cache_path", "trt_dump_ep_context_model", "cache_dir", "load_config",
    "ModelCacheDirectory", "has_user_compute_stream", "user_compute_stream", "enable_cuda_graph",
)  # fmt: skip
_ONNXRUNTIME_GPU = "pip uninstall onnxruntime; pip install onnxruntime-gpu"
_TUNABLE = "tunable_op_enable tunable_op_tuning_enable tunable_op_max_tuning_duration_ms"


@dataclass(frozen=True)
class Provider:
    """An execution provider, as ONNX Runtime 1.31 has it."""

    name: str  # in manifests
    title: str  # in ONNX Runtime
    install: str  # the command that installs it, or the place that has it
    options_text: str = ""  # names of its options, separated by spaces
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # option -> its values
    plugin: str = ""  # the one of them that adds it to any onnxruntime
    elsewhere: str = "run it on a machine with such a device"  # if the plugin finds none
    libraries: tuple[str, ...] = ()  # further distributions that decide what it computes
    needs_nvidia: bool = False
    # compiles nodes to kernels when a session is created; sessions cannot save them
    compiles: bool = True
    # the distribution that keeps these kernels in EPContext nodes and reads those of its version
    context_library: str = ""
    reads_older_contexts: bool = False  # made by an older version, too
    booleans: tuple[str, str] = ("0", "1")  # texts of false and true

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        return (*self.options_text.split(), *self.choices)


@dataclass(frozen=True)
class EngineProvider:
    """A provider of an engine with its options as ONNX Runtime takes them."""

    provider: Provider
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name in manifests."""
        return self.provider.name


_PROVIDERS = (
    Provider(
        "tensorrt",
        "TensorrtExecutionProvider",
        f"{_ONNXRUNTIME_GPU} tensorrt, on a machine with an NVIDIA GPU",
        "device_id trt_max_workspace_size trt_min_subgraph_size trt_max_partition_iterations"
        " trt_fp16_enable trt_bf16_enable trt_int8_enable trt_dla_enable trt_dla_core"
        " trt_layer_norm_fp32_fallback trt_build_heuristics_enable trt_builder_optimization_level"
        " trt_sparsity_enable trt_auxiliary_streams trt_tactic_sources trt_profile_min_shapes"
        " trt_profile_opt_shapes trt_profile_max_shapes trt_force_sequential_engine_build"
        " trt_context_memory_sharing_enable trt_engine_hw_compatible trt_detailed_build_log",
        libraries=("tensorrt", *_CUDA_LIBRARIES),
        needs_nvidia=True,
        context_library="tensorrt",
    ),
    Provider(
        "cuda",
        "CUDAExecutionProvider",
        f"{_ONNXRUNTIME_GPU}, on a machine with an NVIDIA GPU",
        "device_id gpu_mem_limit arena_extend_strategy cudnn_conv_algo_search"
        " cudnn_conv_use_max_workspace cudnn_conv1d_pad_to_nc1d do_copy_in_default_stream"
        " use_ep_level_unified_stream enable_skip_layer_norm_strict_mode use_tf32 prefer_nhwc"
        f" fuse_conv_bias sdpa_kernel {_TUNABLE}",
        libraries=_CUDA_LIBRARIES,
        needs_nvidia=True,
        compiles=False,
    ),
    Provider(
        "openvino",
        "OpenVINOExecutionProvider",
        "pip install onnxruntime-ep-openvino; on processors that are not Intel's, a toolchain with"
        " onnxruntime-openvino",
        "device_type num_of_threads num_streams disable_dynamic_shapes enable_qdq_optimizer"
        " enable_opencl_throttling reshape_input layout",
        choices={
            "precision": ("FP32", "FP16", "ACCURACY"),
            "model_priority": ("LOW", "MEDIUM", "HIGH", "DEFAULT"),
        },
        plugin="onnxruntime-ep-openvino",
        elsewhere="it supports Intel's only: use backend: openvino, or a toolchain with"
        " onnxruntime-openvino",
        context_library="onnxruntime-ep-openvino",
        booleans=("false", "true"),
    ),
    Provider(
        "coreml",
        "CoreMLExecutionProvider",
        "use the onnxruntime of a Mac: pip install onnxruntime",
        "ModelFormat MLComputeUnits RequireStaticInputShapes EnableOnSubgraphs"
        " SpecializationStrategy ProfileComputePlan AllowLowPrecisionAccumulationOnGPU",
    ),
    Provider(
        "directml",
        "DmlExecutionProvider",
        "pip uninstall onnxruntime; pip install onnxruntime-directml, on Windows",
        "device_id device_filter performance_preference disable_metacommands",
        booleans=("false", "true"),
    ),
    Provider(
        "qnn",
        "QNNExecutionProvider",
        "pip install onnxruntime-qnn",
        "backend_path device_id htp_performance_mode htp_graph_finalization_optimization_mode"
        " htp_arch soc_model vtcm_mb rpc_control_latency qnn_context_priority"
        " enable_htp_fp16_precision enable_htp_weight_sharing enable_htp_spill_fill_buffer"
        " offload_graph_io_quantization",
        # not saver and ir, which compute nothing and write files into the project
        choices={"backend_type": ("htp", "gpu", "cpu")},
        plugin="onnxruntime-qnn",
        context_library="onnxruntime-qnn",
        reads_older_contexts=True,
    ),
    Provider(
        "migraphx",
        "MIGraphXExecutionProvider",
        "pip uninstall onnxruntime; pip install onnxruntime-migraphx, on a machine with an AMD GPU",
        "device_id migraphx_fp16_enable migraphx_bf16_enable migraphx_fp8_enable"
        " migraphx_int8_enable migraphx_exhaustive_tune migraphx_mem_limit"
        " migraphx_arena_extend_strategy",
    ),
    Provider(
        "rocm",
        "ROCMExecutionProvider",
        "pip uninstall onnxruntime; pip install onnxruntime-rocm, on a machine with an AMD GPU",
        "device_id gpu_mem_limit arena_extend_strategy miopen_conv_exhaustive_search"
        f" miopen_conv_use_max_workspace do_copy_in_default_stream {_TUNABLE}",
        compiles=False,
    ),
    Provider(
        "xnnpack",
        "XnnpackExecutionProvider",
        "build onnxruntime with --use_xnnpack: no package of PyPI has it",
        "intra_op_num_threads",
    ),
    Provider(CPU, "CPUExecutionProvider", "pip install onnxruntime", compiles=False),
)
# properties of OpenVINO by option; and by its value where the text differs
_OPENVINO_PROPERTIES = {
    "num_of_threads": "INFERENCE_NUM_THREADS",
    "num_streams": "NUM_STREAMS",
    "model_priority": "MODEL_PRIORITY",
}
_OPENVINO_VALUES = {
    ("precision", "FP32"): {"INFERENCE_PRECISION_HINT": "f32"},
    ("precision", "FP16"): {"INFERENCE_PRECISION_HINT": "f16"},
    ("precision", "ACCURACY"): {"EXECUTION_MODE_HINT": "ACCURACY"},
    ("enable_opencl_throttling", "true"): {"PLUGIN_THROTTLE": "1"},
    ("enable_qdq_optimizer", "true"): {"NPU_QDQ_OPTIMIZATION": "YES"},
}
PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _PROVIDERS}
_BY_TITLE = {provider.title: provider for provider in _PROVIDERS}


def provider_entry(entry: object) -> tuple[str, Mapping[str, Any]]:
    """Return name and options of an entry: a name, or a map with one name."""
    if isinstance(entry, Mapping) and entry:
        name, options = next(iter(entry.items()))
        return str(name), options if isinstance(options, Mapping) else {}
    return str(entry), {}


def known_providers(options: Mapping[str, Any]) -> tuple[Provider, ...]:
    """Return an engine's providers without unknown ones; any values are accepted."""
    entries = options.get("providers")
    entries = entries if isinstance(entries, (list, tuple)) else ()
    names = [provider_entry(entry)[0] for entry in entries or [options.get("provider", CPU)]]
    providers = (PROVIDERS.get(name) or _BY_TITLE.get(name) for name in names)
    return tuple(provider for provider in providers if provider is not None)


def engine_providers(options: Mapping[str, Any]) -> tuple[EngineProvider, ...]:
    """Return an engine's providers, preferred first.

    Names of ONNX Runtime are known too: ``engine.json`` has had them from the first version on.
    """
    providers = []
    for entry in options.get("providers") or [options.get("provider", CPU)]:
        name, options_of = provider_entry(entry)
        provider = PROVIDERS.get(name) or _BY_TITLE.get(name)
        if provider is None:
            raise ValueError(f"unknown execution provider {name!r}")
        others = options_of.get(OTHER_OPTIONS) or {}
        own = {option: value for option, value in options_of.items() if option != OTHER_OPTIONS}
        texts = {
            option: provider.booleans[value] if isinstance(value, bool) else str(value)
            for option, value in {**own, **others}.items()
        }
        providers.append(EngineProvider(provider, texts))
    return tuple(providers)


def provider_name(title: str) -> str:
    """Return the name in manifests of ONNX Runtime's provider ``title``."""
    return _BY_TITLE[title].name if title in _BY_TITLE else title


def openvino_plugin_options(values: Mapping[str, str], device: str) -> dict[str, str]:
    """Return OpenVINO's options for its plugin, which ignores most of them.

    It takes these as properties of OpenVINO for ``device``: CPU, GPU or NPU.
    """
    options, properties = dict(values), dict[str, str]()
    for option, value in values.items():
        if option in _OPENVINO_PROPERTIES:
            properties[_OPENVINO_PROPERTIES[option]] = options.pop(option)
        elif (option, value) in _OPENVINO_VALUES:
            del options[option]
            properties |= _OPENVINO_VALUES[option, value]
    options.pop("device_type", None)  # it chose the device
    return options | ({"load_config": json.dumps({device: properties})} if properties else {})


def runs_on_cpu_only(options: Mapping[str, Any]) -> bool:
    """Check whether the CPU's provider is the only one."""
    return all(selected.name == CPU for selected in engine_providers(options))


def allows_cpu(options: Mapping[str, Any]) -> bool:
    """Check whether nodes may run on the CPU: it is listed, or there is no list."""
    return not options.get("providers") or any(
        selected.name == CPU for selected in engine_providers(options)
    )


def is_simulated(options: Mapping[str, Any]) -> bool:
    """Check for QNN on x86 processors, where its libraries simulate Qualcomm's devices."""
    return engine_providers(options)[0].name == "qnn" and machine() in ("x86_64", "AMD64")


def compiles(options: Mapping[str, Any]) -> bool:
    """Check whether a provider compiles nodes: the engine then is the graph before that."""
    return any(selected.provider.compiles for selected in engine_providers(options))
