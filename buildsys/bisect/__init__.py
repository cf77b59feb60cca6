"""Search for the one difference behind a worse result."""
