"""Print the operator table as JSON; a separate process because it loads torch."""

from __future__ import annotations

import json
import os
import warnings

from buildsys.backends.operator_support.table import make_table

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # imported libraries warn about themselves
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to stdout as well
    json.dump(make_table(), stdout)
    stdout.flush()
    os._exit(0)  # the teardown of torch takes a second
