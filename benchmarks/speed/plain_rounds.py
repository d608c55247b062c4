"""FedAvg as research code is usually written, for comparison: seconds of each round.

    python -m benchmarks.speed.plain_rounds [--data DIR] [--width 16] [--rounds 2]

The loop itself is plain_loop.py, beside this file; without --data: `mini`.
"""

import argparse

from benchmarks.speed.parts import loaded, settings
from benchmarks.speed.plain_loop import PlainLoop, round_seconds, stored_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    config, task = loaded(settings(arguments.data, model={"width": arguments.width}))
    files = stored_files(task, arguments.data) if arguments.data else None
    for seconds in round_seconds(PlainLoop(config, task, files), arguments.rounds):
        print(f"{config.task}, width {arguments.width}: {seconds:.2f} s a round", flush=True)


if __name__ == "__main__":
    main()
