"""Shape inference with named or fixed dynamic dimensions."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, ModelProto, shape_inference

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs


def with_shapes(model: ModelProto) -> ModelProto:
    """Return a model with inferred shapes, unchanged if inference fails.

    Inference fails on types of a later ONNX and on contradictory shapes. Large weights are removed.
    """
    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return model


def with_sizes(model: ModelProto, dims: Mapping[str, int]) -> ModelProto:
    """Return a model with fixed dynamic dimensions and inferred shapes.

    Dimensions that ``dims`` does not name stay dynamic.
    """
    sized = ModelProto()
    sized.CopyFrom(model)
    for graph in _graphs(sized.graph):
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in dims:
                    dim.dim_value = dims[dim.dim_param]
    for value in sized.graph.output:  # inference replaces names that the exporter invented
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
    # drop shapes with names; types of custom operators cannot be inferred, so all types stay
    for graph in _graphs(sized.graph):
        for value in graph.value_info:
            if any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
                value.type.tensor_type.ClearField("shape")
    return with_shapes(sized)


def input_dims(model: ModelProto) -> list[str]:
    """Return the names of the dynamic dimensions of the inputs."""
    stored = {tensor.name for tensor in model.graph.initializer}
    values = (value for value in model.graph.input if value.name not in stored)
    dims = (dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim)
    return list(dict.fromkeys(filter(None, dims)))


def _graphs(graph: GraphProto) -> list[GraphProto]:
    """Return a graph and all its bodies."""
    return [graph, *(body for node in all_nodes(graph) for body in subgraphs(node))]
