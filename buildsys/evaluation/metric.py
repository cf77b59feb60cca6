"""What a metric is: records of samples, a value of them, and its values under resampling.

Records are arrays with a row per sample, small whatever the size of outputs, and a value needs
nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch, Label
from buildsys.onnx_graphs.tensors import Array

Records = dict[str, Array]
Outputs = Mapping[str, Array]  # by name, with the batch axis


class Metric(ABC):
    """A figure of a model on labelled samples."""

    title: str
    is_share: bool = True  # else losses and `drop` are relative to the original's value
    higher_is_better: bool = True
    is_binary: bool = False  # the mean of samples that are right or wrong
    weighs_classes: bool = False  # equally, whatever the number of their samples
    draws: int = 2000  # of resampling
    undefined: str = "check outputs and labels"  # the remedy for a NaN

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Take ``classes`` (names) and ``output`` (the one with predictions)."""
        self.options = options
        self.classes: Sequence[str] = options.get("classes") or ()
        self._numbers = {name: n for n, name in reversed([*enumerate(self.classes)])}

    def records(self, outputs: Outputs, batch: Batch) -> Records:
        """Reduce the outputs of a batch to a row per sample.

        Raises: StageError: an output is NaN, or outputs or labels do not fit the metric.
        """
        selected = self.options.get("output")
        if selected and selected not in outputs:
            problem = f"the model has no output {selected}"
            raise StageError(problem, f"its outputs are {', '.join(outputs)}")
        outputs = {selected: outputs[selected]} if selected else outputs
        for name, array in outputs.items():
            if array.shape[:1] != (len(batch),):
                problem = f"the output {name} has the shape {list(array.shape)}"
                hint = "name evaluate.output, or convert it in evaluate.postprocess"
                raise StageError(f"{problem} for {len(batch)} samples", hint)
            if array.dtype.kind == "f" and (rows := np.isnan(array)).any():
                row = int(rows.reshape(len(array), -1).any(axis=1).argmax())
                problem = f"the output {name} is NaN for sample {batch.names[row]}"
                raise StageError(problem, "check the sample, or build with more precision")
        return self._records(outputs, batch)

    def value(self, records: Records) -> float:
        """Compute the metric. Raises: StageError: it is NaN or infinite."""
        with np.errstate(all="ignore"):
            value = float(self._value(records))
        if not np.isfinite(value):
            raise StageError(f"{self.title} of these samples is {value}", self.undefined)
        return value

    def value_of_rows(self, records: Records, rows: Array) -> float:
        """Compute the value of rows, perhaps repeated, or NaN."""
        return self._value({name: array[rows] for name, array in records.items()})

    def effective_count(self, records: Records) -> float:
        """Count samples, by Kish's formula if rare classes weigh more."""
        if not self.weighs_classes:
            return len(next(iter(records.values())))
        counts = np.unique(records["label"], return_counts=True)[1]
        return float(len(counts) ** 2 / (1 / counts).sum())

    @abstractmethod
    def errors(self, records: Records) -> Array:
        """Measure how wrong each row is, to order what changes."""

    @abstractmethod
    def describe(self, records: Records, row: int) -> tuple[str, str]:
        """Write prediction and label of a row for people."""

    def per_class(self, records: Records) -> dict[str, tuple[int, float]]:
        """Count the labels of each class and compute its value; {} without classes."""
        with np.errstate(invalid="ignore"):
            counts, values = self._per_class(records)
        numbers = np.flatnonzero(counts).tolist()
        return {self._class_name(n): (int(counts[n]), float(values[n])) for n in numbers}

    def _per_class(self, _records: Records) -> tuple[Array, Array]:
        return np.zeros(0), np.zeros(0)

    @abstractmethod
    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        """Reduce checked outputs to a row per sample."""

    def _value(self, records: Records) -> float:
        return float(self.errors(records).mean())

    def _output(self, outputs: Outputs, fits: Callable[[Array], bool], form: str) -> Array:
        """Select the output with predictions."""
        if len(outputs) != 1:
            problem = f"{self.title} needs one output; there are {', '.join(outputs)}"
            raise StageError(problem, "name it in evaluate.output")
        ((name, array),) = outputs.items()
        if not fits(array):
            problem = f"{self.title} needs {form}; {name} is {array.dtype} {list(array.shape)}"
            raise StageError(problem, "convert it in evaluate.postprocess")
        return array

    def _array(self, label: Label, sample: str, kinds: str, shape: Sequence[int]) -> Array:
        """Require a label of this shape and kinds of dtype."""
        array = np.asarray(label)
        if array.dtype.kind not in kinds or array.shape != tuple(shape):
            problem = f"the label of sample {sample} is {array.dtype} {list(array.shape)}"
            numbers = "integers" if kinds == "iu" else "numbers"
            raise StageError(problem, f"{self.title} needs {numbers} of the shape {list(shape)}")
        return array

    def _class_name(self, number: int) -> str:
        return self.classes[number] if number < len(self.classes) else f"class {number}"

    def _class_numbers(self, batch: Batch, count: int) -> Array:
        labels = zip(batch.names, batch.labels, strict=True)
        return np.array([self._class_number(label, count, name) for name, label in labels])

    def _class_number(self, label: Label, count: int, sample: str) -> int:
        """Find the number of a label, which may be a name, or a float from a table."""
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if (number := self._numbers.get(f"{label}")) is not None:
            if not isinstance(label, str) and number != label < count:
                problem = f"the label {label} of sample {sample} is a number and a name of a class"
                raise StageError(problem, "rename the classes in outputs.NAME.labels")
            label = number
        if isinstance(label, str) and not self.classes:
            problem = f"the label of sample {sample} is a name, {label}"
            raise StageError(problem, "name the classes in outputs.NAME.labels")
        if isinstance(label, (str, float)) or (isinstance(label, int) and not 0 <= label < count):
            problem = f"the label {label} of sample {sample} is not one of {count} classes"
            raise StageError(problem, "correct the labels; numbers of classes begin at 0")
        if not isinstance(label, int):
            problem = f"the label of sample {sample} is of type {type(label).__name__}"
            raise StageError(problem, f"{self.title} needs the number or name of a class")
        return int(label)


def join_records(parts: Sequence[Records]) -> Records:
    """Append the rows of batches; rows with fewer columns are filled with NaN."""
    joined = {}
    for name in parts[0] if parts else ():
        arrays = [part[name] for part in parts]
        width = np.max([array.shape[1:] for array in arrays], axis=0)
        for place, array in enumerate(arrays):
            if array.shape[1:] != tuple(width):
                sides = [(0, 0), *((0, missing) for missing in (width - array.shape[1:]).tolist())]
                arrays[place] = np.pad(array, sides, constant_values=np.nan)
        joined[name] = np.concatenate(arrays)
    return joined
