"""The PyTorch network that a manifest names: made, weighted, and called the way the manifest says."""
