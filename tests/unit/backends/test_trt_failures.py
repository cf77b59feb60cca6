"""Explanations of TensorRT's failures, from logs of 8.6.0 and the guides."""

from buildsys.backends.tensorrt.library import Messages, clean_message, load_failure

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


def test_an_unloadable_engine() -> None:
    failure = load_failure("e.engine", logged(CUT), "TensorRT 8.6.0")
    assert failure.problem == (
        "e.engine is damaged, of another version than TensorRT 8.6.0, or for another GPU:"
        " Serialization assertion plan->header.size == blobSize failed."
    )
    assert failure.hint.startswith("build it again on this machine")
