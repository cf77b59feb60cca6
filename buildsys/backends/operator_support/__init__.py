"""Operator support of the installed libraries, read from their own registries.

Used by `doit ops` (through a child process, as this imports torch and onnx) and by a failing
export. No backend imports it: engines are built in interpreters without torch and onnx.
"""
