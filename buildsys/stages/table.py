"""The table of stages: one row per stage, in the order of the pipeline.

A stage is a folder of this package with `plan.py`, `stage.py`, `result.py` and `report.py`, and a
row here. Everything may import this module, so it imports nothing of the project.
"""

from dataclasses import dataclass
from typing import Literal

OPERATORS, EXPORT, PROGRAM, REFERENCE = "operators", "export", "program", "reference"
SURGERY, SIMPLIFY, CALIBRATE, SEARCH = "surgery", "simplify", "calibrate", "search"
CONVERT, VALIDATE, ENGINE, VERIFY = "convert", "validate", "engine", "verify"
BENCH, LOAD, GATE, COMMAND, REPORT = "bench", "load", "gate", "command", "report"
PREPROCESS, PREDICT, EVALUATE = "preprocess", "predict", "evaluate"


@dataclass(frozen=True, slots=True)
class StageInfo:
    """One stage.

    ``planned_for``: its plan takes the model, the model with each engine, or with the actions
    planned before.
    """

    name: str  # also its folder, and in targets and manifests
    doc: str  # what `buildsys list` says about all its targets
    result: str = ""  # type of its result file, in `result.py`; "": the common fields
    planned_for: Literal["network", "engines", "actions"] = "network"
    has_artifacts: bool = True  # else it writes numbers about artifacts
    has_graph: bool = False  # writes an ONNX graph
    needs_graph: bool = True  # not planned for networks defined by hand
    is_required_check: bool = False  # an engine without a pass is not deployed
    in_own_interpreter: bool = False  # a toolchain is used through another process
    is_resumable: bool = False  # goes on with the parts of a stopped run
    sections: tuple[str, ...] = ()  # sections of manifests, declared in `fields.py`
    has_checks: bool = False  # whether it has `checks.py`
    compared: tuple[str, ...] = ()  # figures that `buildsys compare` compares

    @property
    def package(self) -> str:
        """The package of the stage's modules."""
        return f"buildsys.stages.{self.name}"


STAGES = (
    StageInfo(
        OPERATORS,
        "build functions and libraries of custom operators",
        "OperatorsResult",
        needs_graph=False,
        sections=("ops",),
        has_checks=True,
    ),
    StageInfo(
        EXPORT,
        "export to ONNX",
        "ExportResult",
        has_graph=True,
        compared=("bytes", "nodes"),
        sections=("export", "symbolics", "translations"),
        has_checks=True,
    ),
    StageInfo(PROGRAM, "capture the networks with torch.export", "ProgramResult"),
    StageInfo(
        REFERENCE,
        "record golden inputs and outputs of the original model",
        "ReferenceResult",
        needs_graph=False,
        sections=("reference",),
    ),
    StageInfo(
        SURGERY,
        "edit graphs as their manifests say",
        "SurgeryResult",
        has_graph=True,
        sections=("surgery",),
        has_checks=True,
    ),
    StageInfo(
        SIMPLIFY,
        "simplify the exported graphs",
        "SimplifyResult",
        has_graph=True,
        compared=("bytes", "nodes"),
        sections=("simplify",),
        has_checks=True,
    ),
    StageInfo(
        CALIBRATE,
        "measure the ranges for int8 and fp8",
        "CalibrateResult",
        sections=("calibration",),
    ),
    StageInfo(
        SEARCH,
        "find the nodes to keep in fp32 (precision: auto)",
        "SearchResult",
        sections=("search",),
    ),
    StageInfo(
        CONVERT,
        "convert graphs to other precisions",
        "ConvertResult",
        has_graph=True,
        compared=("bytes",),
        sections=("convert", "quantize", "optimize", "quantize_weights"),
        has_checks=True,
    ),
    StageInfo(PREPROCESS, "put steps for images into graphs", "PreprocessResult", has_checks=True),
    StageInfo(
        VALIDATE,
        "compare the graphs in ONNX Runtime with the original model",
        "ValidateResult",
        has_artifacts=False,
        is_required_check=True,
        compared=("relative",),
        sections=("validate",),
    ),
    StageInfo(
        ENGINE,
        "build the engines",
        "EngineResult",
        planned_for="engines",
        compared=("bytes", "device_memory_bytes", "build_seconds"),
    ),
    StageInfo(
        VERIFY,
        "compare the engines with the golden outputs",
        "VerifyResult",
        planned_for="engines",
        has_artifacts=False,
        is_required_check=True,
        compared=("relative",),
        sections=("verify",),
    ),
    StageInfo(
        PREDICT,
        "measure the accuracy of the original models",
        "PredictResult",
        has_artifacts=False,
        needs_graph=False,
        is_resumable=True,
        compared=("value",),
    ),
    StageInfo(
        EVALUATE,
        "compare the accuracy of the engines with that of the original models",
        "EvaluateResult",
        planned_for="engines",
        has_artifacts=False,
        is_required_check=True,
        in_own_interpreter=True,
        is_resumable=True,
        sections=("evaluate",),
        has_checks=True,
        compared=("value", "loss"),
    ),
    StageInfo(
        BENCH,
        "benchmark the engines",
        "BenchResult",
        planned_for="engines",
        has_artifacts=False,
        in_own_interpreter=True,
        sections=("bench",),
    ),
    StageInfo(
        LOAD,
        "measure latency and throughput of the engines under load",
        "LoadResult",
        planned_for="engines",
        has_artifacts=False,
        in_own_interpreter=True,
        has_checks=True,
    ),
    StageInfo(
        GATE,
        "compare the engines with earlier builds",
        "GateResult",
        planned_for="engines",
        has_artifacts=False,
        is_required_check=True,
        in_own_interpreter=True,
        sections=("gates",),
        has_checks=True,
    ),
    StageInfo(
        COMMAND,
        "run other programs",
        "CommandResult",
        planned_for="actions",
        in_own_interpreter=True,
        sections=("commands",),
        has_checks=True,
    ),
    StageInfo(
        REPORT,
        "write the reports",
        planned_for="actions",
        has_artifacts=False,
        sections=("report",),
    ),
)
STAGE_INFO = {stage.name: stage for stage in STAGES}
GRAPH_STAGES = tuple(stage.name for stage in STAGES if stage.has_graph)
# sections about making and changing graphs, which a network defined by hand does not have
GRAPH_SECTIONS = tuple(
    section
    for stage in STAGES
    if stage.needs_graph and stage.planned_for == "network" and stage.has_artifacts
    for section in stage.sections
)
# sections about the network, which a model of commands does not have
NETWORK_SECTIONS = (
    *("source", "inputs", "call", "outputs", "dims", "engines"),
    *(name for stage in STAGES if stage.planned_for != "actions" for name in stage.sections),
)
ENGINE_STAGES = tuple(stage.name for stage in STAGES if stage.planned_for == "engines")


def stage_info(name: str) -> StageInfo:
    """Look up the row of a stage; another package's stage has the defaults."""
    return STAGE_INFO.get(name) or StageInfo(name, f"{name} of every model")


def target_of(stage: str, model: str, variant: str = "") -> str:
    """Join the parts of a target's name."""
    return ":".join(filter(None, (stage, model, variant)))
