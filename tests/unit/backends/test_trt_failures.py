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


def logged(*errors: str) -> Messages:
    return Messages([clean_message(text) for text in errors])


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


def test_a_full_gpu() -> None:
    errors = (
        "1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)",
        "Requested amount of GPU memory (1073741824 bytes) could not be allocated. There may not"
        " be enough free"
        " memory for allocation to succeed.",
    )
    failure = build_failure(logged(*errors), {"workspace": None}, "TensorRT")
    assert failure.problem.startswith("the GPU is out of memory: out of memory")
    assert "stop other programs on the GPU" in failure.hint
    failure = load_failure("e.engine", logged(*errors), "TensorRT 8.6.0")
    assert failure.problem.startswith(
        "e.engine cannot be loaded: the GPU is out of memory: out of memory; Requested"
    )


DAMAGED = "cannot be loaded by TensorRT 8.6.0, or is damaged:"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OTHER_VERSION,
            "was built by another version of TensorRT, and this is TensorRT 8.6.0: The engine plan",
        ),
        (OTHER_GPU, "was built for another kind of GPU: The engine plan"),
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
    assert unknown.problem == f"e.engine {DAMAGED} something new"
