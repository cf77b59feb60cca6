"""Calibration ranges and explicit quantizers, for the calibrate and convert stages."""
