"""The result file of the operators stage."""

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict

OperatorLibrary = TypedDict(
    "OperatorLibrary",
    {"from": str | list[str], "flags": list[str], "bytes": int, "sha256": str},  # a file or sources
    total=False,
)


class OperatorsResult(ResultHeader, total=False):
    """The local functions and libraries of a model's custom operators."""

    functions: dict[str, dict[str, str]]  # output role -> operator -> FILE.py:NAME
    libraries: dict[str, OperatorLibrary]
