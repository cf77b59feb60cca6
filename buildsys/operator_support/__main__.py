"""Print the table of operators as JSON: ``python -m buildsys.operator_support``, for a process that loads torch."""

from __future__ import annotations

import json
import sys
import warnings

from buildsys.operator_support.table import make_table

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of what is imported; there is nothing to read here but the table
    json.dump(make_table(), sys.stdout)
