"""Build an engine from an ONNX file with TensorRT's builder.

References to the logger, the builder and the network are kept for as long as anything made from them lives, since
the library does not.
"""

from __future__ import annotations

from buildsys.backends.base import BuildRequest, Figures
from buildsys.backends.trt import adapter
from buildsys.backends.trt.library import Library
from buildsys.backends.trt.messages import log_of
from buildsys.backends.trt.parsing import check_parsed, network_facts, parse
from buildsys.backends.trt.plugins import load_plugins
from buildsys.backends.trt.profiles import resolve_profiles
from buildsys.backends.trt.settings import add_profiles, configure, settings_in_force
from buildsys.errors import StageError


def build(library: Library, request: BuildRequest) -> Figures:
    """Write the engine; return its settings, profiles, tensors and layers.

    The layers and the share of each type are those of the parsed network, before TensorRT fuses it.
    Raises: GraphRefusedError: all nodes that the parser refuses. StageError: why the builder gave up.
    """
    options = request.options
    profiles = resolve_profiles(request.inputs, request.dims, options["profiles"])
    with log_of(library).collected() as messages:
        plugins = load_plugins(library, request.operators)
        parsed = parse(library, request.onnx)
        check_parsed(library, request, parsed, messages)
        builder, network = parsed.builder, parsed.network
        config = builder.create_builder_config()
        monitor = adapter.monitor_progress(library, config, request.progress)
        configure(library, builder, config, options, messages)
        add_profiles(library, builder, config, profiles)
        settings = settings_in_force(library, builder, config, options)
        engine = builder.build_serialized_network(network, config)
        del monitor
        if engine is None or messages.errors:  # an error is fatal even where TensorRT goes on without
            raise StageError(f"model {request.model}: {messages.sentence(f'{library.title} built no engine')}")
        request.engine.write_bytes(engine)
        facts = network_facts(library, network)
    named = {"plugins": plugins} if plugins else {}
    warnings = list(dict.fromkeys(messages.warnings))
    return {"settings": settings, "profiles": profiles, **facts, **named, "messages": warnings}
