"""The process of one job of a sweep: `python -m protolith.experiments.job DIR WORKERS`.

The configuration is the first line of its standard input. The rest of the input is a life line: when it
closes, the process ends at once, so that no job outlives its sweep. What it prints is the job's log.
Exit codes: 0 done, 1 failed, 2 the request was wrong, 74 the disk takes nothing more, 130 stopped.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from protolith.errors import DiskRefused, Interrupted, RunFailed, UserError
from protolith.experiments.sweep import BY_CONTENT, DISK, PLACE, STOPPED, job_name, write_failure
from protolith.federation.local_update import Workplace
from protolith.files import refusal, write_text
from protolith.methods.registry import load_plugin
from protolith.runs import runner
from protolith.runs.config import RunConfig, complete_for, to_toml, validated
from protolith.runs.directory import RunDirectory
from protolith.runs.result import Summary
from protolith.runs.round import Round
from protolith.runs.run import task_of
from protolith.runs.runner import Observer


class JobLog(Observer):
    """A line with the time for whatever happens."""

    rounds = 0

    def say(self, text: str) -> None:
        """Write a sentence; a log that cannot be written must not end a run."""
        with contextlib.suppress(OSError):
            print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)

    def started(self, config: RunConfig, directory: RunDirectory, first_round: int, workers: int) -> None:
        """Write where the run begins."""
        self.rounds = config.rounds
        self.say(f"rounds {first_round + 1} to {config.rounds} with {workers} worker(s), process {os.getpid()}")

    def round_done(self, done: Round) -> None:
        """Write what came of a round."""
        accuracy = f", accuracy {done.mean:.2f}" if done.mean is not None else ""
        rejected = f", {len(done.rejected)} rejected" if done.rejected else ""
        self.say(f"round {done.round}/{self.rounds}{accuracy}{rejected}, {done.seconds['total']:.1f} s")

    def finished(self, summary: Summary) -> None:
        """Write the result."""
        self.say(f"done: accuracy {summary.mean:.2f}, {summary.rule}")


def execute(config: RunConfig, path: Path, workers: int, log: JobLog) -> int:
    """Start or resume a run; whatever goes wrong becomes an exit code and a sentence."""
    try:
        directory = _settled(config, path, log)
        clients = sum(directory.config().protocol.clients.values())
        runner.resume(path, log, min(workers, max(1, clients)))
        return 0
    except (Interrupted, KeyboardInterrupt):
        log.say("stopped")
        return STOPPED
    except UserError as error:
        return _failed(path, str(error), 2, log)
    except DiskRefused as error:
        return _failed(path, str(error), DISK, log)
    except RunFailed as error:
        return _failed(path, str(error), 1, log)
    except OSError as error:
        if refused := refusal(error):
            return _failed(path, refused, DISK, log)
        traceback.print_exc()
        return _failed(path, f"{type(error).__name__}: {error}", 1, log)
    except Exception as error:
        traceback.print_exc()
        return _failed(path, f"{type(error).__name__}: {error}", 1, log)


def _settled(config: RunConfig, path: Path, log: JobLog) -> RunDirectory:
    """The run's directory, made if need be, with this sweep's wishes as to where the work is done."""
    for plugin in config.plugins:
        load_plugin(plugin)
    if config.plugins and job_name(config) != path.name:
        raise UserError("a plug-in was edited since the sweep began; the same command runs it as it is now.")
    if not (path / "config.toml").exists():
        return _created(config, path, log)
    directory = RunDirectory.open(path)
    before = directory.config()
    now = before.model_copy(update={name: getattr(config, name) for name in (*PLACE, *BY_CONTENT)})
    if now != before and not directory.is_locked():
        write_text(path / "config.toml", to_toml(now))
    return directory


def _created(config: RunConfig, path: Path, log: JobLog) -> RunDirectory:
    task = task_of(config, log.say)
    config = complete_for(config, task)
    Workplace(config, task)  # refuses what cannot work before anything is written
    return RunDirectory.create(path, config)


def _failed(path: Path, sentence: str, code: int, log: JobLog) -> int:
    log.say(f"failed: {sentence}")
    if RunDirectory(path).is_locked():  # the run is another process's, and so is its fate
        return code
    return code if write_failure(path, sentence) else DISK


def _end_with_input() -> None:
    """Wait for the end of the input; then end this process, even in the middle of a round."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    """Run one job."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the sweep was started with Ctrl-C ignored
        signal.signal(number, signal.default_int_handler)
    path, workers = Path(sys.argv[1]), int(sys.argv[2])
    if not (line := sys.stdin.readline()):
        return
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.exit(execute(validated(RunConfig, json.loads(line)), path, workers, JobLog()))


if __name__ == "__main__":
    main()
