"""The convert stage: typed ONNX in the precision of an engine."""
