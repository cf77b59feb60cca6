"""The table of commands; each is a module here of its name."""

# by section of the help
SECTIONS = {
    "Building and running": {
        "run": "run a built engine on images or arrays",
        "repro": "build a model twice in clean folders and compare the artifacts byte by byte",
        "debug": "run the stage of one target in the foreground; publishes nothing",
        "publish": "copy verified engines with their records to a URL, under a version",
    },
    "Targets": {
        "explain": "explain why targets are stale, or when and why they were built",
        "plan": "show what would run and how long it takes, or what differs from a git revision",
        "resolve": "print a model's manifest with all defaults, and where each value is set",
    },
    "Reports and history": {
        "best": "rank the engines of a model on this machine, and name the one to ship",
        "pages": "write the HTML pages of models and their index, without building anything",
        "history": "show recorded builds and the trend of latencies, or import a history",
        "compare": "compare two builds: manifest, graph, accuracy, size and latency",
        "gate": "accept a build that its gate rejects as the baseline of later builds",
    },
    "Graphs and operators": {
        "inspect": "show a graph: operators, tensors, weights, multiply-accumulates; or draw it",
        "diff": "show the differences between two graphs of a model: two stages, or two builds",
        "netron": "serve a graph in the netron viewer until Ctrl-C",
        "ops": "show which operators the installed exporters, ONNX and runtimes support",
        "stress": "compare a model's graphs with the original at more sizes and inputs",
        "localize": "find the nodes that must stay in fp32 for an engine within its limits",
    },
    "Installation": {
        "init": "make the current folder a project with a first manifest",
        "new": "write the manifest of a model, from trial runs",
        "doctor": "check what is installed and what it can build and run here, or check engines",
        "schema": "write the JSON Schemas for editors into configs/schema",
    },
    "Caches": {
        "cache": "show, verify or shrink the store of earlier builds",
        "workers": "list the worker servers that wait for the next run, or stop them",
    },
}
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
# still run by doit's classes
DOIT_COMMANDS = {
    "build": "build models, engines and other targets; without a name everything",
    "nightly": "build all that is stale, past failures, with JUnit XML and a summary",
    "list": "list models and stages, or all targets",
    "info": "show the dependencies and the state of a target",
    "clean": "remove the files of targets",
    "forget": "drop the records of targets, to build them again",
    "ignore": "skip targets and everything downstream until they are forgotten",
}
