"""The report stage: all results of a model as JSON and Markdown."""

from onnx import ModelProto

from buildsys.errors import WorkerDied
from buildsys.onnx_graphs.inspection.describe import report_facts
from buildsys.onnx_graphs.inspection.drawing import draw
from buildsys.onnx_graphs.inspection.graph import plain_model
from buildsys.onnx_graphs.inspection.work import GraphWork, work_of
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.report.assemble import assemble
from buildsys.report.graph_tables import opt_sizes
from buildsys.report.key_figures import load_result_types, read_results
from buildsys.report.markdown import render
from buildsys.report.report_types import as_json
from buildsys.report.result_files import of_type
from buildsys.stages.bench.result import BenchResult, headline
from buildsys.stages.report.roofline import add_rooflines
from buildsys.system.programs import render_svg
from buildsys.workers.job import Job, StageResult

_MOST_BOXES = 400
_GRAPH = "graph:"  # + target: the role of the graph it wrote
load_result_types()  # once per server: it takes longer than all else of this stage


def run(job: Job) -> StageResult:
    """Write the Markdown report if requested; return the JSON figures.

    The stage passes even if the report says that the model failed.
    """
    manifest, graphs, sources = job.options["manifest"], {}, job.options.get("sources", {})
    files = {target: path for target, path in job.inputs.items() if not target.startswith(_GRAPH)}
    timed = {target: path for target, path in files.items() if target.startswith("bench:")}
    benches = of_type(read_results(timed), BenchResult)
    dims = next((headline(bench.content)[1].get("dims", {}) for bench in benches), {})
    works: dict[str, GraphWork] = {}
    for role, path in job.inputs.items():
        if role.startswith(_GRAPH):
            target = role.removeprefix(_GRAPH)
            job.progress(f"counting the graph of {target}")
            graph = load_model(path, external_data=False)
            graphs[target] = report_facts(graph, opt_sizes(manifest))
            engines = [engine for engine, source in sources.items() if source == target]
            works |= dict.fromkeys(engines, work_of(graph, dims)) if engines else {}
            for title, drawn in job.options.get("pictures", {}).items():
                if drawn == target:
                    _draw(graph, title, job)
    report = assemble(job.model, manifest, files, graphs)
    report = add_rooflines(report, benches, works)
    if "markdown" in job.outputs:
        job.outputs["markdown"].write_text(render(report), encoding="utf-8")
    return StageResult(figures=as_json(report))


def _draw(graph: ModelProto, title: str, job: Job) -> None:
    """Write the picture of a graph; without one the report stays complete."""
    try:
        drawing = draw(plain_model(graph).body, f"{title} graph")
        if drawing.boxes > _MOST_BOXES:
            job.progress(f"the {title} graph has {drawing.boxes} boxes, too many for a picture")
            return
        svg = render_svg(drawing.dot)
    except WorkerDied:  # this says nothing about the graph, and the picture would stay missing
        raise
    except Exception as error:  # a graph of any kind: no picture is worth a failed report
        job.progress(f"the {title} graph cannot be drawn: {error}")
        return
    job.outputs[f"picture.{title}"].write_text(svg, encoding="utf-8")
