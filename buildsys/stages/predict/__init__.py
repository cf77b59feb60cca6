"""The predict stage: the accuracy of the original model on data."""
