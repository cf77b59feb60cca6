"""Facts of PyTorch as a backend, known without importing it."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.system.backend_registry import BackendDescription, Machine, Reason, Record


class _Torch(BackendDescription):
    """PyTorch."""

    def not_reproducible(self, options: Mapping[str, Any]) -> str:
        return "packages of AOTInductor have paths of their build in them"

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        from buildsys.system import compatibility as rules  # slow

        built = rules.built_version(record)
        if here and built and rules.version_numbers(here)[:2] != rules.version_numbers(built)[:2]:
            problem = (
                f"it was built with {self.title} {built}, but {here} is installed: a compiled"
                " package only runs with its own version"
            )
            yield Reason("version", problem, rules.install_command(record))
        recorded = record.map("built_with").get("instructions")
        missing = (
            {*map(str, recorded)} - {*machine.instructions} if isinstance(recorded, list) else set()
        )
        if missing:
            problem = f"it was compiled for processors with {', '.join(sorted(missing))}"
            yield Reason("processor", problem, "build it on this kind of processor")


DESCRIPTION = _Torch(
    title="PyTorch",
    libraries={"torch": "torch"},
    install="pip install torch",
    packages="torch",
    engine_file="engine.pt2",
    data_file="engine.weights",
    able="builds and runs on the CPU",
    takes_float32=True,
    takes_program=True,
    operator_kinds=(),
    same_platform=True,
    environment=("torch",),
)
