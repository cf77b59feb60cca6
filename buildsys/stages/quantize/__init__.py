"""From calibration data to ranges, and from a float32 graph to one with quantizers."""
