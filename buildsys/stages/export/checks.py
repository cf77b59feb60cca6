"""Checks of the sections ``export``, ``symbolics`` and ``translations``."""

from buildsys.manifest.problem import Problems
from buildsys.manifest.view import ManifestView
from buildsys.stages.export.fields import ExportSpec

_OPSETS = {
    "torchscript": range(6, 24),
    # below 18 dynamo converts down, which the export checks; 28 is the newest opset of onnx 1.23
    "dynamo": range(7, 29),
}
_SECTIONS = {"symbolics": "torchscript", "translations": "dynamo"}  # section -> its exporter


def problems(view: ManifestView) -> Problems:
    """Yield options without an effect, and registrations that no exporter takes."""
    if view.is_defined:
        return
    if "onnx" in view.map("source"):
        for section in filter(view.sets, ("export", *_SECTIONS)):
            if view.map(section).keys() == {"random"}:
                continue
            text = "ignored for an ONNX source, which is not exported"
            yield view.problem((section,), text, "remove it", of_key=True)
        return
    exporter = view.get("export", "exporter") or "torchscript"
    opset, opsets = view.get("export", "opset"), _OPSETS[exporter]
    if opset is not None and opset not in opsets:
        span = f"{opsets[0]} to {opsets[-1]}"
        text = f"opset {opset} is not supported by the {exporter} exporter ({span})"
        yield view.problem(("export", "opset"), text, "choose an opset in this range")
    if "exported_program" in view.map("source") and exporter == "torchscript":
        text = "the torchscript exporter would fix the dynamic sizes of a saved program"
        hint = "write export: {exporter: dynamo, opset: 18}"
        yield view.problem(("export", "exporter"), text, hint)
        return
    other = "dynamo" if exporter == "torchscript" else "torchscript"
    for option, field in ExportSpec.model_fields.items():
        is_of_other = (field.description or "").startswith(f"{other} only")
        if is_of_other and view.get("export", option) is not None:
            text, hint = f"ignored by exporter {exporter}", f"remove it, or use exporter: {other}"
            yield view.problem(("export", option), text, hint, of_key=True)
    if view.get("export", "export_params") is False:
        text = "a file without its weights cannot be validated or built"
        yield view.problem(("export", "export_params"), text, "remove it", of_key=True)
    if view.get("export", "training") == "train" and exporter == "torchscript":
        text = "a graph in training mode cannot give the reference's outputs"
        hint = "remove it (the network is exported in evaluation mode)"
        yield view.problem(("export", "training"), text, hint)
    for section, used_by in _SECTIONS.items():
        if view.list(section) and exporter != used_by:
            text = f"ignored by exporter {exporter}, only {used_by} uses it"
            hint = f"remove it, or set export.exporter: {used_by}"
            yield view.problem((section,), text, hint, of_key=True)
