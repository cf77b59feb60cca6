"""The reference stage: golden inputs and outputs."""
