"""Child process that prints the table of operators as JSON, because it loads torch."""

from __future__ import annotations

import gc
import json
import os
import warnings

if __name__ == "__main__":
    gc.disable()  # collections take a fifth of the imports
    warnings.simplefilter("ignore")  # imported libraries warn about themselves
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to stdout as well
    from buildsys.backends.operator_support.operator_table import make_table

    json.dump(make_table(), stdout)
    stdout.flush()
    os._exit(0)  # the teardown of torch takes a second
