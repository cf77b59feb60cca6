"""Explanations of TensorRT's failures, from logs of 8.6.0 and the guides."""

from __future__ import annotations

import pytest

from buildsys.backends.tensorrt.library import Messages, build_failure, clean_message, load_failure

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
CUT = (
    "1: [runtime.cpp::parsePlan::315] Error Code 1: Serialization (Serialization assertion"
    " plan->header.size =="
    " blobSize failed.)"
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


@pytest.mark.parametrize("errors", [TOPK, LSTM])
def test_a_too_small_workspace(errors: tuple[str, ...]) -> None:
    failure = build_failure(logged(*errors), {"workspace": 1024}, "TensorRT")
    assert failure.problem.startswith(
        "a layer has no tactic within workspace: 1 KiB: Could not find any implementation for node"
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


def test_an_unloadable_engine() -> None:
    failure = load_failure("e.engine", logged(CUT), "TensorRT 8.6.0")
    assert failure.problem == (
        "e.engine is damaged, or was built by another version than TensorRT 8.6.0 or for another"
        " GPU: Serialization assertion plan->header.size == blobSize failed."
    )
    assert failure.hint == "build it again on this machine"


def test_an_unknown_error_is_reported_as_it_is() -> None:
    assert build_failure(logged("2: odd"), {"workspace": 1024}, "TensorRT").problem == "odd"
    silent = build_failure(logged(), {"workspace": None}, "TensorRT")
    assert silent.problem == "TensorRT built no engine"
