"""Checks of the section ``simplify``."""

from buildsys.manifest.problem import Problems
from buildsys.manifest.view import ManifestView

_TOOLS = {"skip_passes": ("onnxsim", "onnxslim"), "extra_passes": ("onnxsim",)}


def problems(view: ManifestView) -> Problems:
    """Yield passes that the tool does not have."""
    tool = view.get("simplify", "tool") or "onnxsim"
    for option, tools in _TOOLS.items():
        if view.list("simplify", option) and tool not in tools:
            text, hint = f"ignored by tool {tool}", f"remove it, or use tool: {' or '.join(tools)}"
            yield view.problem(("simplify", option), text, hint, of_key=True)
