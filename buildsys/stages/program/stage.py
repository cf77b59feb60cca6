"""Program stage: the manifest's network as a program of torch.export.

Some backends are built from this program, not from ONNX. It takes the inputs by position and
returns the outputs as a flat tuple; their names are in a file of the archive.
"""

from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Capture the network.

    Raises: StageError: it cannot be built or captured. CheckFailed: the program is wrong at sizes
    within ``dims``.
    """
    from buildsys.stages.program.capture import write_program  # servers must not load torch here

    return StageResult(figures=write_program(job))
