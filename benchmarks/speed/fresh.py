"""A fresh process for one measurement: `python -m benchmarks.speed.fresh module:function ARGUMENTS`."""

import importlib
import json
import os
import sys


def main() -> None:
    """Call the function and print what it returns as the last line."""
    where, arguments = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed on the way goes to standard error
    module, name = where.split(":")
    found = getattr(importlib.import_module(f"benchmarks.speed.{module}"), name)(*arguments)
    answers.write(json.dumps(found) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
