"""The table of commands; each is a module here of its name."""

# by section of the help
SECTIONS = {
    "Building and running": {
        "build": "build models, engines and other targets; without a name everything",
        "nightly": "build all that is stale, past failures, with JUnit XML and a summary",
        "run": "run a built engine on images or arrays",
        "evaluate": "measure the accuracy of built engines on other data",
        "check": "compare a model with the original at more inputs, or two builds byte by byte",
        "debug": "run one stage in the foreground, or find the nodes that must stay in fp32",
        "clean": "remove the files of targets, and their records",
        "publish": "copy verified engines with their records to a URL, under a version",
    },
    "Targets": {
        "list": "list models and stages, or all targets",
        "explain": "explain why targets are stale, or when and why they were built",
        "plan": "show what would run and how long it takes, or what differs from a git revision",
        "resolve": "print a model's manifest with all defaults, and where each value is set",
    },
    "Results": {
        "best": "rank the engines of a model on this machine, and name the one to ship",
        "history": "show recorded builds, or import a history",
        "compare": "compare two graphs, or two builds: manifest, graph, accuracy, size, latency",
        "inspect": "show a graph: operators, tensors, weights, multiply-accumulates; or draw it",
    },
    "Installation": {
        "init": "make the current folder a project with a first manifest",
        "new": "write the manifest of a model, from trial runs",
        "doctor": "check what is installed and what it can build and run here, or check engines",
        "cache": "show, verify or shrink the store of earlier builds; list worker servers",
    },
}
HIDDEN = {  # rarely typed, or commands of scripts and of other commands' hints
    "bisect": "find the change that made an engine slower, larger or less accurate",
    "upgrade": "show what another version of a library changes, before it is installed",
    "reduce": "cut the graph of a failing engine to the nodes that still fail",
    "release": "move channels among releases, choose an engine, write artifacts to serve",
    "mcp": "serve plan, explain, best, compare and history to assistants",
    "gate": "accept a build that its gate rejects as the baseline of later builds",
    "ops": "show which operators the installed exporters, ONNX and runtimes support",
    "pages": "write the HTML pages of models and their index, without building anything",
    "completion": "print a completion file for a shell",
    "schema": "write the JSON Schemas for editors into configs/schema",
}
COMMANDS = {name: text for part in (*SECTIONS.values(), HIDDEN) for name, text in part.items()}
