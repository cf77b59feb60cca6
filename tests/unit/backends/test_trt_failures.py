"""Explanations of TensorRT's failures, from logs of 8.6.0 and the guides."""

from __future__ import annotations

import pytest

from buildsys.backends.tensorrt.log import Messages, build_failure, clean_message, load_failure

TOPK = (
    "4: Could not find any implementation for node /topk due to insufficient workspace. See"
    " verbose log for requested"
    " sizes.",
    "4: [optimizer.cpp::computeCosts::3871] Error Code 4: Internal Error (Could not find any"
    " implementation for node"
    " /topk due to insufficient workspace. See verbose log for requested sizes.)",
)
LSTM = (
    "10: Could not find any implementation for node {ForeignNode[w...(Unnamed Layer* 48)"
    " [LoopOutput]]}.",
    "10: [optimizer.cpp::computeCosts::3873] Error Code 10: Internal Error (Could not find any"
    " implementation for node"
    " {ForeignNode[w...(Unnamed Layer* 48) [LoopOutput]]}.)",
)
FOREIGN_NODE = "{ForeignNode[w...(Unnamed Layer* 48) [LoopOutput]]}"
EMPTY = (
    "3: [runtime.cpp::deserializeCudaEngineEx::96] Error Code 3: Internal Error (Cannot"
    " deserialize with an empty"
    " memory buffer.)"
)
CUT = (
    "1: [runtime.cpp::parsePlan::315] Error Code 1: Serialization (Serialization assertion"
    " plan->header.size =="
    " blobSize failed.)"
)
FOREIGN = (
    "1: [runtime.cpp::parsePlan::314] Error Code 1: Serialization (Serialization assertion"
    " plan->header.magicTag =="
    " rt::kPLAN_MAGIC_TAG failed.)"
)
SHORT = (
    "2: [runtime.cpp::parsePlan::304] Error Code 2: Internal Error (Assertion blobSize >"
    " numericCast<int64_t>(sizeof(rt::PlanHeader)) failed. )"
)
OTHER_VERSION = (
    "6: The engine plan file is not compatible with this version of TensorRT, expecting library"
    " version 8.6.0.12 got"
    " 8.5.3.1, please rebuild."
)
OTHER_GPU = (
    "6: The engine plan file is generated on an incompatible device, expecting compute 9.0 got"
    " compute 8.6, please"
    " rebuild."
)


def logged(*errors: str, warnings: tuple[str, ...] = ()) -> Messages:
    return Messages(
        [clean_message(text) for text in errors], [clean_message(text) for text in warnings]
    )


def test_a_message_is_reduced_to_its_sentence() -> None:
    assert clean_message(TOPK[1]) == clean_message(TOPK[0])
    assert clean_message(CUT) == "Serialization assertion plan->header.size == blobSize failed."
    assert logged(*LSTM).error_text("") == (
        "Could not find any implementation for node {ForeignNode[w...(Unnamed Layer* 48)"
        " [LoopOutput]]}."
    )


@pytest.mark.parametrize(("errors", "node"), [(TOPK, "/topk"), (LSTM, FOREIGN_NODE)])
def test_a_too_small_workspace(errors: tuple[str, ...], node: str) -> None:
    failure = build_failure(logged(*errors), {"workspace": 1024}, "TensorRT")
    assert failure.problem.startswith(
        f"no tactic of {node} works within workspace: 1 KiB: Could not find any"
    )
    assert failure.hint == "increase the engine's workspace, or remove the field"
    assert build_failure(logged(*errors), {"workspace": None}, "TensorRT").problem.startswith(
        "Could not find any"
    )


def test_the_need_of_the_smallest_tactic_is_reported() -> None:
    skipped = tuple(
        "Tactic Device request: 512MB Available: 16MB. Tactic 0x1 skipped due to insufficient"
        " memory on requested size"
        f" of {size} detected for tactic 0x1."
        for size in (536870912, 268435456)
    )  # fmt: skip
    failure = build_failure(logged(*LSTM, warnings=skipped), {"workspace": 1 << 24}, "TensorRT")
    assert failure.problem.startswith(
        "workspace: 16 MiB is too small for any tactic of {ForeignNode"
    )
    assert failure.problem.endswith("which needs 256 MiB or more")


def test_a_crash_of_the_compiler_is_named_as_a_fault_of_the_library() -> None:
    error = (
        "9: Skipping tactic 0x0 due to exception [myelin] MyelinCheckException: utilities.h:316:"
        " CHECK(0) failed. In compileGraph at /_src/optimizer/myelin/codeGenerator.cpp:1421"
    )
    failure = build_failure(logged(error), {"workspace": None}, "TensorRT-RTX")
    assert failure.problem.startswith(
        "TensorRT-RTX failed in its own compiler Myelin, on a graph that it accepts: "
    )
    assert "MyelinCheckException" in failure.problem
    assert "not of the graph" in failure.hint


def test_a_full_gpu() -> None:
    errors = (
        "1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)",
        "Requested amount of GPU memory (1073741824 bytes) could not be allocated. There may not"
        " be enough free"
        " memory for allocation to succeed.",
    )
    failure = build_failure(logged(errors[0], warnings=errors[1:]), {"workspace": None}, "TensorRT")
    assert failure.problem.startswith(
        "the GPU is out of memory, 1 GiB were requested: out of memory"
    )
    assert "stop other programs on the GPU" in failure.hint
    failure = load_failure("e.engine", logged(*errors), "TensorRT 8.6.0")
    assert failure.problem.startswith(
        "e.engine cannot be loaded: the GPU is out of memory, 1 GiB were requested"
    )


DAMAGED = "is not an engine of TensorRT 8.6.0, or it is damaged:"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OTHER_VERSION,
            "was built by another version of TensorRT 8.5.3.1, and this is TensorRT 8.6.0",
        ),
        (OTHER_GPU, "was built for a GPU of compute capability 8.6, and this one has 9.0"),
        (CUT, f"{DAMAGED} Serialization assertion plan->header.size"),
        (FOREIGN, f"{DAMAGED} Serialization assertion plan->header.magicTag"),
        (EMPTY, f"{DAMAGED} Cannot deserialize with an empty memory buffer"),
        (SHORT, f"{DAMAGED} Assertion blobSize"),
    ],
)
def test_an_unloadable_engine(error: str, expected: str) -> None:
    failure = load_failure("e.engine", logged(error), "TensorRT 8.6.0")
    assert failure.problem.startswith(f"e.engine {expected}")
    assert failure.hint == "build it again on this machine"


def test_an_unknown_error_is_reported_as_it_is() -> None:
    assert build_failure(logged("2: odd"), {"workspace": 1024}, "TensorRT").problem == "odd"
    silent = build_failure(logged(), {"workspace": None}, "TensorRT")
    assert silent.problem == "TensorRT built no engine"
    unknown = load_failure("e.engine", logged("9: something new"), "TensorRT 8.6.0")
    assert unknown.problem == "e.engine: TensorRT 8.6.0 cannot load the engine: something new"
