"""Child process for the table of operators, because it loads torch.

It prints JSON, and writes the current step to the file of its argument.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from pathlib import Path


def _report(step: str) -> None:
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(step, encoding="utf-8")


if __name__ == "__main__":
    gc.disable()  # collections take a fifth of the imports
    warnings.simplefilter("ignore")  # imported libraries warn about themselves
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to stdout as well
    from buildsys.backends.operator_support.operator_table import make_table

    json.dump(make_table(_report), stdout)
    stdout.flush()
    os._exit(0)  # the teardown of torch takes a second
