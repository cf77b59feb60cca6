"""Parts of action keys: options, libraries, devices, variables, needs of machines."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.plan.action import Action, Needs, ToolchainRef
from buildsys.system import devices, versions
from buildsys.system.backend_registry import other_backends
from buildsys.system.devices import visible_gpus
from buildsys.system.files import TextCache
from buildsys.system.toolchains import Toolchain, locate_toolchain
from buildsys.system.versions import normalized, package_identities, tool_versions

if TYPE_CHECKING:
    from buildsys.plan.action import ToolchainRef
    from buildsys.plan.engine_typing import VersionOf

TOOL = "tool:"
FILES = " (files)"  # ends the label of a distribution's identity
# stages list their dependencies among these libraries; their other requirements do not count
_KNOWN_LIBRARIES = [
    "ml-dtypes", "numpy", "onnx", "onnxruntime", "onnxscript", "torch", "torchvision",
]  # fmt: skip
_OURS = "buildsys"  # its modules are in the keys one by one
Parts = dict[str, str]


class EnvironmentParts:
    """The environments of actions, each examined once per instance."""

    def __init__(self, project: str, texts: TextCache) -> None:
        self._project = Path(project)
        self._texts = texts
        self._facts: dict[tuple[object, ...], Parts] = {}
        # versions of the distributions with a module, or its folder outside of all libraries
        self._providers: dict[tuple[ToolchainRef | None, str], tuple[Parts, str | None]] = {}
        self._packages: dict[tuple[str, tuple[str, ...]], str] = {}

    def of_action(self, action: Action) -> Parts:
        """List the parts for an action's libraries, devices and variables."""
        toolchain = action.toolchain
        environment = (
            action.tools, action.peer_tools, toolchain, action.devices, action.environment,
            action.probes,
        )  # fmt: skip
        if environment not in self._facts:
            tools = self.of_distributions(action.tools, action.runs_in)
            if action.probes:
                from buildsys.system.programs import probe  # not needed by most projects

                located = self._located(action.runs_in)
                for command in action.probes:
                    tools[f"{TOOL}{shlex.join(command)}"] = probe(command, located, self._texts)
            variables = dict(versions.environment_facts(action.environment, os.environ))
            if toolchain is not None:  # a peer may have tools and variables of the same names
                peer = f"{toolchain.name}/" if action.peer_tools else ""
                for label, value in self.of_distributions(action.peer_tools, toolchain).items():
                    name = label.removeprefix(TOOL)
                    both = name.removesuffix(FILES) in action.tools
                    tools[f"{TOOL}{peer if both else ''}{name}"] = value
                variables |= {f"{peer}{name}": value for name, value in toolchain.env}
            self._facts[environment] = {
                **tools,
                **{f"device:{n}": v for n, v in devices.device_facts(action.devices).items()},
                **{f"env:{name}": value for name, value in variables.items()},
            }
        return self._facts[environment]

    def of_package(self, action: Action, module: str) -> tuple[Parts, str | None]:
        """Find the same for a backend's package, with the identity of its distributions.

        Its folder is imported in a toolchain as well, but without its other distributions.
        """
        parts, root = self.of_module(None, module)
        owners = {
            normalized(backend.owner.partition(" ")[0]) for backend in other_backends().values()
        }
        names = [
            name
            for name in (label.removeprefix(TOOL) for label in parts)
            if name != _OURS and (action.toolchain is None or normalized(name) in owners)
        ]
        identities = self.identities(names, None)
        return {f"{TOOL}{name}": parts[f"{TOOL}{name}"] for name in names} | identities, root

    def of_module(self, toolchain: ToolchainRef | None, module: str) -> tuple[Parts, str | None]:
        """Find the versions of the distributions with a module, or its folder."""
        place = toolchain, module
        if place not in self._providers:
            path = self._module_path(toolchain)
            libraries = [*_KNOWN_LIBRARIES, _OURS]
            providing = versions.distributions_of(module, self._texts, known=libraries, path=path)
            # without a distribution, files alone identify a module in site-packages
            theirs = path if toolchain else None
            root = versions.source_root(module, theirs, in_libraries=not providing)
            self._providers[place] = self._versions(providing, toolchain), root
        return self._providers[place]

    def of_distributions(self, names: Collection[str], toolchain: ToolchainRef | None) -> Parts:
        """Look up the versions and identities of distributions."""
        return self._versions(names, toolchain) | self.identities(names, toolchain)

    def _versions(self, names: Collection[str], toolchain: ToolchainRef | None) -> Parts:
        numbers = versions.tool_versions(names, self._located(toolchain))
        return {f"{TOOL}{name}": version for name, version in numbers.items()}

    def identities(self, names: Collection[str], toolchain: ToolchainRef | None) -> Parts:
        """Identify distributions without unique versions."""
        path, parts = self._module_path(toolchain) if names else (), Parts()
        for name in names:
            package = name, path
            if package not in self._packages:
                identities = package_identities([name], path, self._texts)
                self._packages[package] = identities.get(name, "")
            if self._packages[package]:
                parts[f"{TOOL}{name}{FILES}"] = self._packages[package]
        return parts

    def _module_path(self, toolchain: ToolchainRef | None) -> tuple[str, ...]:
        located = self._located(toolchain)
        return versions.module_path(located) if located else tuple(sys.path)

    def _located(self, toolchain: ToolchainRef | None) -> Toolchain | None:
        if toolchain is None:
            return None
        return locate_toolchain(*toolchain, self._project, os.environ)


def variables_of(action: Action) -> Mapping[str, str]:
    """Return the environment variables visible to an action."""
    return {**os.environ, **dict(action.toolchain.env if action.toolchain else ())}


_SPECIAL = re.compile(r"([\\.\[\]])")
encode = json.JSONEncoder().encode  # json.dumps evaluates its options again for every value


def flatten_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """List dotted names and JSON texts of all leaves, unique per options.

    A list of plain values is one leaf (``[1, 3, 224, 224]``), other lists are numbered
    (``profiles[0].x``). Empty maps and lists are leaves. Dots, brackets and backslashes in names
    are escaped with a backslash.

    Raises: TypeError: a name is not a string, or a value is not JSON.
    """
    leaves: dict[str, str] = {}
    waiting = [(prefix + _escape(name), value) for name, value in options.items()]
    while waiting:
        name, value = waiting.pop()
        if value and isinstance(value, dict):
            waiting += [(f"{name}.{_escape(key)}", item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)) and any(
            isinstance(item, (dict, list, tuple)) for item in value
        ):
            waiting += [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        elif value is None:  # the encoder is ten times slower for single values that are no strings
            leaves[name] = "null"
        else:
            leaves[name] = str(value) if type(value) is int else encode(value)
    return leaves


@cache  # the same few field names occur in every target
def _escape(name: str) -> str:
    return _SPECIAL.sub(r"\\\1", name)


def builder_versions(root: Path) -> VersionOf:
    """Make a lookup of TensorRT versions by toolchain."""

    @cache
    def version_of(toolchain: ToolchainRef | None) -> str:
        located = locate_toolchain(*toolchain, root, os.environ) if toolchain else None
        return tool_versions(("tensorrt",), located)["tensorrt"]

    return version_of


LABELS = "BUILDSYS_LABELS"  # what this machine has, separated by commas
_GIB = 1 << 30


def lacking(needs: Needs) -> str:
    """Describe what this machine lacks, or "": ``a GPU named H100 (NVIDIA L4 here)``."""
    if not any(needs):
        return ""
    gpus = visible_gpus() if needs.gpu_count else ()
    fitting = sum(
        words(needs.gpu) <= words(gpu["name"])
        and needs.compute_capability in ("", gpu["compute_capability"])
        for gpu in gpus
    )
    labels = {label.strip() for label in os.environ.get(LABELS, "").split(",")}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lacks = []
    if fitting < max(needs.gpu_count, len(gpus)):  # of several, CUDA might use another one
        text = "a GPU" if needs.gpu_count == 1 else f"{needs.gpu_count} GPUs"
        text += f" named {needs.gpu}" if needs.gpu else ""
        capability = needs.compute_capability
        text += f" of compute capability {capability}" if capability else ""
        text += " alone in CUDA_VISIBLE_DEVICES" if fitting >= needs.gpu_count else ""
        names = dict.fromkeys(f"{gpu['name']} ({gpu['compute_capability']})" for gpu in gpus)
        lacks.append(f"{text} ({', '.join(names) or 'none'} here)")
    if memory < needs.memory:
        lacks.append(f"{needs.memory / _GIB:.3g} GiB of memory ({memory / _GIB:.3g} GiB here)")
    lacks += [f"the label {label}" for label in needs.labels if label not in labels]
    return " and ".join(lacks)


def obstacle(lacks: str) -> tuple[str, str]:
    """Describe the problem and the next step for what a machine lacks."""
    hint = f", or list the label in {LABELS} if it applies" if "label" in lacks else ""
    return f"it needs {lacks}", f"run it on a machine that has it{hint}"


def words(name: str) -> set[str]:
    """Split the name of a GPU into words."""
    return set(re.findall(r"[a-z0-9]+", name.lower()))
