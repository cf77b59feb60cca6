"""Metrics of numbers, tokens and texts."""

from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch
from buildsys.evaluation.metric import Metric, Outputs, Records
from buildsys.models.user_code import import_library
from buildsys.onnx_graphs.tensors import Array

_IGNORED = -100  # a label, as in torch.nn.CrossEntropyLoss
_SHOWN_CHARACTERS = 200


class Ratio(Metric):
    """A function of the sums of two columns, such as errors and words."""

    is_share = False
    higher_is_better = False

    def errors(self, records: Records) -> Array:
        return np.asarray(records["sums"][:, 0] / np.maximum(records["sums"][:, 1], 1))

    def _value(self, records: Records) -> float:
        numerator, denominator = records["sums"].sum(axis=0)
        return float(numerator / denominator)


class Rmse(Ratio):
    """The root of the mean squared error of all elements."""

    title = "RMSE"
    power = 2
    elements = slice(1)  # of a sample in the records, for people

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        output = self._output(outputs, lambda a: a.ndim > 0 and a.dtype.kind in "fiu", "numbers")
        values = output.reshape(len(output), -1).astype(np.float64)
        pairs = zip(batch.names, batch.labels, strict=True)
        shape = values.shape[1:]
        rows = [self._array(np.ravel(label), name, "fiub", shape) for name, label in pairs]
        labels = np.array(rows, np.float64)
        errors = abs(values - labels) ** self.power
        sums = np.stack([errors.sum(axis=1), np.full(len(errors), errors.shape[1])], axis=1)
        return {
            "values": values[:, self.elements],
            "labels": labels[:, self.elements],
            "sums": sums,
        }

    def _value(self, records: Records) -> float:
        return float(super()._value(records) ** (1 / self.power))

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        return f"{records['values'][row, 0]:.4g}", f"{records['labels'][row, 0]:.4g}"


class Mae(Rmse):
    """The mean absolute error of all elements."""

    title = "MAE"
    power = 1


class R2(Rmse):
    """The coefficient of determination, mean of all outputs, by scikit-learn."""

    draws = 200
    title = "R²"
    elements = slice(None)
    is_share = True
    higher_is_better = True
    undefined = "it needs labels that differ"

    def _value(self, records: Records) -> float:
        if len(records["labels"]) < 2 or not np.ptp(records["labels"], axis=0).all():
            return np.nan
        metrics = import_library("sklearn.metrics", Path.cwd())
        return float(metrics.r2_score(records["labels"], records["values"]))


class Perplexity(Ratio):
    """The exponential of the mean negative log-likelihood of tokens."""

    title = "perplexity"
    undefined = "it needs tokens that are not ignored"

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        logits = self._output(
            outputs, lambda a: a.ndim == 3 and a.dtype.kind == "f", "scores [batch, tokens, words]"
        )
        rows = []
        for scores, label, name in zip(logits, batch.labels, batch.names, strict=True):
            tokens = self._array(label, name, "iu", scores.shape[:1])
            used = tokens != _IGNORED
            if not ((tokens[used] >= 0) & (tokens[used] < scores.shape[1])).all():
                problem = f"a token of sample {name} is not one of {scores.shape[1]}"
                raise StageError(problem, f"correct the labels; {_IGNORED} is ignored")
            values = scores[used].astype(np.float32)
            values -= values.max(axis=1, keepdims=True, initial=-np.inf)
            logs = np.log(np.exp(values).sum(axis=1, dtype=np.float64))
            likely = np.take_along_axis(values, tokens[used][:, None], axis=1)[:, 0]
            rows.append(((logs - likely).sum(), used.sum()))
        return {"sums": np.array(rows, np.float64)}

    def _value(self, records: Records) -> float:
        return float(np.exp(super()._value(records)))

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        figure = np.exp(self.errors(records)[row])
        return f"perplexity {figure:.4g}", f"{records['sums'][row, 1]:.0f} tokens"


class WordErrorRate(Ratio):
    """Wrong words per word of the labels, by jiwer."""

    title = "WER"
    is_share = True
    undefined = "it needs labels with words"
    process = "process_words"

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        jiwer: Any = import_library("jiwer", Path.cwd())
        texts = self._output(
            outputs, lambda a: a.size == len(a) and a.dtype.kind in "UOST", "a text per sample"
        )
        sums, pairs = [], []
        for text, label, name in zip(texts.reshape(-1), batch.labels, batch.names, strict=True):
            if not isinstance(label, str):
                problem = f"the label of sample {name} is of type {type(label).__name__}"
                raise StageError(problem, f"{self.title} needs texts")
            words = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            counts = getattr(jiwer, self.process)(label, words)
            wrong = counts.substitutions + counts.deletions
            sums.append((wrong + counts.insertions, wrong + counts.hits))
            pairs.append((words[:_SHOWN_CHARACTERS], label[:_SHOWN_CHARACTERS]))
        return {"sums": np.array(sums, np.float64), "texts": np.array(pairs, np.str_)}

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        prediction, label = records["texts"][row]
        return str(prediction), str(label)


class CharacterErrorRate(WordErrorRate):
    """Wrong characters per character of the labels, by jiwer."""

    title = "CER"
    undefined = "it needs labels with characters"
    process = "process_characters"
