"""How long the command line takes to answer, and a run to get through its first batch.

    python benchmarks/startup.py [--repeats 5]

Prints processor time (user + system) and time on the clock, the median of several, each in a new process. A run's first
batch is over when the first loss is added up; a plug-in notices that, also in worker processes. The embedded task is
decoded once before, so that its cache is warm.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = (("--help",), ("--version",), ("methods",), ("run", "--help"), ("tasks",), ("presets",))
QUIET = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
PLUGIN = """
import os, time
from pathlib import Path
from protolith.methods.base import Terms

add = Terms.add

def noticed(self, terms):
    add(self, terms)
    part = Path(f"{mark}.{{os.getpid()}}")
    part.write_text(f"{{time.time()}} {{sum(os.times()[:2])}}")
    part.replace({mark!r})
    time.sleep(60)  # until the run is ended from outside

Terms.add = noticed
"""


def environment() -> dict[str, str]:
    """This one, with this package first."""
    here = str(Path(__file__).parents[1])
    others = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**others, **QUIET, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}


def command(*arguments: str) -> tuple[float, float]:
    """Processor time and time on the clock of one command."""
    return program("-m", "protolith", *arguments)


def imported_torch() -> tuple[float, float]:
    """What any program pays that uses torch."""
    return program("-c", "import torch")


def program(*arguments: str) -> tuple[float, float]:
    """Processor time and time on the clock of one process of Python."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment(), capture_output=True, check=False)
    took, after = time.perf_counter() - began, os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system, took


def first_batch(*arguments: str) -> tuple[float, float]:
    """The same from nothing to the end of a run's first batch; processor time is that of the process that trains."""
    with tempfile.TemporaryDirectory() as place:
        mark, plugin = Path(place) / "mark", Path(place) / "notice.py"
        plugin.write_text(PLUGIN.format(mark=str(mark)))
        began = time.time()
        run = ["run", "--plugin", str(plugin), "--out", str(Path(place) / "run"), *arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "protolith", *run], env=environment(), stderr=subprocess.DEVNULL
        )
        while not mark.exists() and process.poll() is None:
            time.sleep(0.005)
        process.kill()  # its workers end with it
        process.wait()
        ended, processor = map(float, mark.read_text().split())
        return processor, ended - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    subprocess.run(
        [sys.executable, "-c", "from protolith import load_task; load_task('mini')"], env=environment(), check=True
    )
    cases = [("(python -c 'import torch', to compare)", imported_torch, ())]
    cases += [(" ".join(words), command, words) for words in COMMANDS]
    cases += [
        ("run --workers 0, to the first batch", first_batch, ("--workers", "0")),
        ("run, to the first batch", first_batch, ()),
    ]
    print(f"{'protolith …':<40}{'processor s':>12}{'clock s':>10}")
    for name, measure, words in cases:
        measure(*words)
        found = [measure(*words) for _ in range(repeats)]
        processor, clock = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:<40}{processor:>12.2f}{clock:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
