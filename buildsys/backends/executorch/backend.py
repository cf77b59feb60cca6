"""ExecuTorch: programs for phones and boards, from captured PyTorch programs.

The way through ONNX is closed: ExecuTorch reads programs of torch.export only. XNNPACK runs most
operators; the others run in portable kernels, which are made for correctness.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.backends.executorch.runtime import (
    DELEGATES,
    ExecuTorchSession,
    load_library,
    open_program,
)
from buildsys.backends.interface import (
    BuildRequest,
    Figures,
    OperatorUse,
    Options,
)
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.cpu import cpu_model, usable_cores

if TYPE_CHECKING:
    from buildsys.backends.executorch import backend as _this_module
    from buildsys.backends.interface import Backend

    _CONFORMS: Backend = _this_module

RUN_OPTIONS: Options = {"threads": 0}
_MOST_NAMED = 5


def prepare(options: Options) -> None:
    """Check that the runtime has the delegate.

    Raises: Unavailable: it does not.
    """
    needed = DELEGATES.get(options["delegate"])
    if needed and not load_library()._is_available(needed):
        raise Unavailable(
            f"the package executorch was built without {needed} for this platform",
            "install another wheel, or set delegate: none",
        )


def build(request: BuildRequest) -> Figures:
    """Write the program; return the settings, and where its operators run.

    Raises: GraphRefusedError: it has no kernel for an operator. StageError: too few operators run
    in the delegate, or the program is refused otherwise.
    """
    from buildsys.backends.executorch.lowering import lower

    options = request.options
    request.progress("loading the compiler")
    lowered = lower(request)
    messages, names = [], [f"{name} ({count})" for name, count in lowered.portable.most_common()]
    first_names = ", ".join([*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])
    if options["delegate"] == "xnnpack":
        if lowered.share < options["delegated_share"]:
            raise StageError(
                f"XNNPACK runs only {100 * lowered.share:.0f} % of the operators (the minimum is"
                f" {100 * options['delegated_share']:.0f} %); the others: {first_names}",
                "lower delegated_share to accept this engine, or set delegate: none",
            )
        if lowered.portable:
            total = lowered.delegated.total() + lowered.portable.total()
            messages.append(
                f"portable kernels run {lowered.portable.total()} of {total} operators, which"
                f" XNNPACK does not: {first_names}"
            )
    request.engine.write_bytes(lowered.content)
    settings = {name: options[name] for name in ("precision", "delegate", "per_channel")}
    settings["threads"] = int(options["threads"]) or usable_cores()
    figures: Figures = {
        "settings": settings,
        "profiles": [],
        "layers": dict((lowered.delegated + lowered.portable).most_common()),
        "delegated": {
            "share": round(lowered.share, 4),
            "operators": dict(lowered.delegated.most_common()),
            "portable": dict(lowered.portable.most_common()),
        },
        "messages": messages,
    }
    if options["precision"] == "int8":
        if request.dims:
            messages.append(
                "XNNPACK computes int8 means (global pooling) wrongly once sizes exceed those of"
                " the first run: on a device, run the program once with the largest sizes (done"
                " here when it is loaded)"
            )
        total = lowered.delegated.total() + lowered.portable.total()
        share = lowered.quantized / total if total else 0.0
        shares = {"int8": round(share, 4), "float32": round(1 - share, 4)}
        figures["precision_shares"] = {"layers": {name: s for name, s in shares.items() if s}}
        if not lowered.quantized:
            raise StageError(
                "the engine was requested in int8, but none of its operators is quantized",
                "use fp32 for this network",
            )
    return figures


def describe(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()  # noqa: ARG001
) -> Figures:  # fmt: skip
    """Describe inputs and outputs."""
    _, interface = open_program(engine)
    return {"inputs": interface["inputs"], "outputs": interface["outputs"]}


def load(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()  # noqa: ARG001
) -> ExecuTorchSession:  # fmt: skip
    """Load a built engine.

    Raises: Unavailable: the runtime has no such delegate. StageError: the file is damaged, or of
    another version.
    """
    prepare(options)
    # XNNPACK in ExecuTorch 1.5.1 computes int8 means wrongly once sizes exceed the first run's
    is_int8 = options["precision"] == "int8"
    return ExecuTorchSession(engine, int(options["threads"]), largest_first=is_int8)


def slowest_layers(
    engine: Path,
    options: Options,
    operators: tuple[OperatorUse, ...],  # noqa: ARG001
    inputs: Mapping[str, Tensor],
) -> list[Figures]:
    """Return the slowest layers, from ExecuTorch's event tracer."""
    from buildsys.backends.executorch.runtime import layers_by_time

    return layers_by_time(engine, int(options["threads"]), inputs)


def device(options: Options) -> Figures:  # noqa: ARG001
    """Describe the CPU."""
    return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}
