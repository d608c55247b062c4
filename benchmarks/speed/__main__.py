"""Speed and memory against a plain loop and the machine's limit, in one run.

    python -m benchmarks.speed [--quick] [--data DIR] [--only PARTS] [--out FILE] [--against FILE]

From the clone's own directory; `make bench` does it.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from benchmarks.speed.run import PARTS, compare, run_bench, write
from protolith.errors import UserError


def main() -> None:
    """Measure, write the figures, and say what got worse since an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer widths, clients and repeats: a few minutes")
    parser.add_argument("--data", default="", help="directory with Office-Caltech10; without it: the embedded task")
    parser.add_argument("--only", default="", help=f"only these parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="where the figures go")
    parser.add_argument("--against", type=Path, help="figures of an earlier run: say what got worse")
    given = parser.parse_args()
    if given.data and not Path(given.data).is_dir():
        raise UserError(f"--data {given.data}: the directory does not exist.")
    if given.against and not given.against.is_file():
        raise UserError(f"--against {given.against}: the file does not exist.")
    before = json.loads(given.against.read_text()) if given.against else None
    chosen = [word.strip() for word in given.only.split(",") if word.strip()]
    where = str(Path(given.data).resolve()) if given.data else ""
    found = run_bench(given.quick, where, chosen, partial(print, flush=True), lambda so_far: write(so_far, given.out))
    print(f"wrote {given.out}")
    if before is not None:
        print("\n".join(compare(found, before)) or "nothing got worse")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
