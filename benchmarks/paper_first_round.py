"""Does the first round of every table and figure of the papers run on real data?

    python benchmarks/paper_first_round.py --data DIR [--only fpl-table1,i2pfl-fig4]

For each experiment and data set the first run is cut to one round of one epoch at width 8 and executed; of an
experiment that leaves domains out, the first domain. Prints one line each; the exit code is 1 if any fails.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from protolith.experiments.paper import Reduction, experiments, plan
from protolith.experiments.sweep import job_name
from protolith.runs import runner
from protolith.runs.run import Run
from protolith.runs.runner import Observer

# One method stands for all rows of a comparison; of a study, each row is another setting of one method.
SMALL = {"rounds": 1, "epochs": 1, "width": 8, "seeds": (0,)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(experiments())
    failed = 0
    done: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            planned = plan(experiments()[name], Reduction(**SMALL, place={"data": arguments.data}))
            for dataset in dict.fromkeys(job.dataset for job in planned):
                # The last row: the paper's own method, or the last value of a study.
                config = [job.config for job in planned if job.dataset == dataset][-1]
                began = time.perf_counter()
                try:
                    if job_name(config) not in done:
                        run = runner.start(config, Path(folder) / job_name(config), Observer())
                        done[job_name(config)] = Run(run.path).summary.mean
                    outcome = f"{config.method:<18} accuracy {done[job_name(config)]:.2f}"
                except Exception as error:
                    failed += 1
                    outcome = f"FAILED {type(error).__name__}: {error}"
                print(f"{name:<16} {dataset:<15} {outcome}  {time.perf_counter() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
