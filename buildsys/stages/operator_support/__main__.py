"""Print the operator table as JSON; a separate process, because it loads torch."""

from __future__ import annotations

import json
import os
import warnings

from buildsys.stages.operator_support.table import make_table

if __name__ == "__main__":
    warnings.simplefilter(
        "ignore"
    )  # of what is imported; there is nothing to read here but the table
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print what they like
    json.dump(make_table(), answer)
    answer.flush()
    os._exit(0)  # the teardown of torch takes a second
