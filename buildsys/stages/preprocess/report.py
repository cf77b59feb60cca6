"""What the report says about preprocessing in engines."""

from buildsys.report import formatting as q
from buildsys.stages.preprocess.result import PreprocessResult


def key_figure(result: PreprocessResult) -> str:
    """Describe the difference from torchvision, or count the added nodes."""
    if "nodes" in result:
        return f"{result['nodes']} nodes in front of the graph"
    sizes = q.plural(len(result["sizes"]), "size")
    if not result["differing"]:
        return f"equal to torchvision in images of {sizes}"
    share, steps = q.percent(result["differing"]), f"{result['largest_step']:.2g} steps"
    return f"{share} of the values {steps} from torchvision, in images of {sizes}"
