"""The result file of the simplify stage."""

from buildsys.onnx_graphs.result_types import ComparedCases, GraphSummary, ResultHeader


class SimplifyResult(ResultHeader, total=False):
    """The graph before and after simplification, and the comparison of their outputs."""

    tool: str
    before: GraphSummary
    after: GraphSummary
    removed: dict[str, int]  # operator -> nodes
    added: dict[str, int]
    equal: ComparedCases  # empty if the graphs were not compared
    warnings: list[str]
