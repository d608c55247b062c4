"""Rounds count from 1 wherever a person or a file can see them; directories of the first format are still read."""

import json
from pathlib import Path

import pytest

from benchmarks.packed_runs import unpack
from protolith.errors import UserError
from protolith.evaluation.accuracy import reached
from protolith.report.figures import curve
from protolith.runs import runner
from protolith.runs.checkpoints import Checkpoints
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.run import Run
from protolith.runs.runner import Observer

ROOT = Path(__file__).parents[2]


class Stop(Exception):
    """Ends a run in the middle."""


class StopAfter(Observer):
    """Hears the rounds, and stops after so many."""

    def __init__(self, rounds):
        self.rounds, self.heard = rounds, []

    def round_done(self, metrics):
        self.heard.append(metrics.round)
        if metrics.round == self.rounds:
            raise Stop


def settings(tiny, **more):
    """SOLO remembers its clients' whole models."""
    return {**tiny, "method": "solo", "rounds": 4, **more}


def stopped(tiny, path, rounds=2):
    with pytest.raises(Stop):
        runner.start(resolve([settings(tiny)]), path, StopAfter(rounds))
    return path


def as_of_the_first_format(path):
    """Rewrite a run's directory as a version wrote it that counted rounds from 0 in metrics and memory."""
    config = (path / "config.toml").read_text()
    (path / "config.toml").write_text(config.replace("format = 2\n", "format = 1\n"))
    lines = [json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["format"]
        line["round"] -= 1
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file in sorted((path / "memory").iterdir()):  # in this order no name is taken
        stem, number = file.stem.rsplit("-", 1)
        file.rename(file.with_name(f"{stem}-{int(number) - 1:06d}.safetensors"))
    for file in path.glob("checkpoint/*/progress.json"):
        said = json.loads(file.read_text())
        memories = {client: round_ - 1 for client, round_ in said["memories"].items()}
        file.write_text(json.dumps({**said, "format": 1, "memories": memories}))


def outcome(path):
    """What came of a run, without its times."""
    models = {file.name: file.read_bytes() for file in path.glob("models/*.safetensors")}
    lines = RunDirectory.open(path).metrics()
    return models, [line.model_copy(update={"seconds": {}}) for line in lines]


def test_rounds_count_from_1_in_every_file_and_for_every_observer(tiny, tmp_path):
    heard = StopAfter(99)
    run = runner.start(resolve([settings(tiny, keep_models=[1], method="fedcode")]), tmp_path / "run", heard)
    assert heard.heard == [1, 2, 3, 4]
    written = [json.loads(text) for text in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["format"], line["round"]) for line in written] == [(2, number) for number in (1, 2, 3, 4)]
    assert [line.round for line in run.metrics()] == [1, 2, 3, 4]
    kept = {folder: {file.stem[-6:] for file in (run.path / folder).iterdir()} for folder in ("memory", "checkpoint")}
    assert kept == {"memory": {"000003", "000004"}, "checkpoint": {"000003", "000004"}}
    for folder in (run.path / "checkpoint").iterdir():
        said = json.loads((folder / "progress.json").read_text())
        assert set(said["memories"].values()) == {said["round"]} == {int(folder.name[-6:])}
    assert (run.path / "models" / "round-000001.safetensors").exists()
    assert {file.stem[-6:] for file in (run.path / "diagnostics").glob("prototypes-*")} == {
        f"00000{number}" for number in (1, 2, 3, 4)
    }


def test_a_directory_of_the_first_format_resumes_to_the_same_bytes(tiny, tmp_path):
    whole = runner.start(resolve([settings(tiny)]), tmp_path / "whole", Observer())
    path = stopped(tiny, tmp_path / "old", rounds=3)
    as_of_the_first_format(path)
    assert [line.round for line in RunDirectory.open(path).metrics()] == [1, 2, 3]
    said = []
    hears = StopAfter(99)
    hears.say = said.append
    runner.resume(path, hears)
    assert said == [] and hears.heard[-1] == 4
    assert outcome(path) == outcome(whole.path)
    assert RunDirectory.open(path).summary().rule == whole.summary().rule == "mean of the last 4 rounds (1 to 4)"
    written = [json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["format"], line["round"]) for line in written] == [(2, number) for number in (1, 2, 3, 4)]


def test_an_old_directory_goes_back_to_its_older_checkpoint(tiny, tmp_path):
    whole = runner.start(resolve([settings(tiny)]), tmp_path / "whole", Observer())
    path = stopped(tiny, tmp_path / "old", rounds=3)
    as_of_the_first_format(path)
    newest = sorted((path / "checkpoint").iterdir())[-1]
    (newest / "server.safetensors").write_bytes(b"nonsense")
    runner.resume(path, Observer())
    assert outcome(path) == outcome(whole.path)


def test_lines_of_both_formats_may_stand_in_one_file(tmp_path):
    run = RunDirectory.create(tmp_path / "run", resolve([{}]))
    (run.path / "metrics.jsonl").write_text('{"round": 0, "mean": 1.0}\n{"round": 1, "mean": 2.0}\n')
    run.append_metrics({"round": 3, "mean": 3.0})
    assert [(line.round, line.mean) for line in run.metrics()] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert all("format" not in line.to_json() for line in run.metrics())
    assert run.keep_metrics_of_first(2) == 0  # two rounds are done
    assert [line.round for line in run.metrics()] == [1, 2]


def test_a_line_of_a_newer_format_is_refused(tmp_path):
    run = RunDirectory.create(tmp_path / "run", resolve([{}]))
    (run.path / "metrics.jsonl").write_text('{"format": 3, "round": 1}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl has the format '3'.*newer version"):
        run.metrics()


def test_a_committed_run_of_the_first_format_reads_as_it_did(tmp_path):
    (folder,) = unpack(ROOT / "results" / "mini" / "runs.jsonl", tmp_path, ["runs/copa-seed0-e67df48980"])
    raw = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    run = RunDirectory.open(folder)
    assert raw[0]["round"] == 0 and [line.round for line in run.metrics()] == list(range(1, len(raw) + 1))
    drawn = curve([Run(folder)], lambda line: line.mean)
    assert drawn.rounds[0] == 1 and drawn.means[0] == raw[0]["mean"]
    assert reached(run.metrics(), 0.0)[0] == 1
    assert f"to {len(raw)})" in run.summary().rule


def test_the_page_on_the_house_says_how_rounds_count():
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert "Rounds count from 1 everywhere a person or a file can see them." in " ".join(page.split())
    for text in (ROOT / "docs").rglob("*.md"):
        assert "ound 0" not in text.read_text(), text


def test_a_round_with_a_checkpoint_has_left_its_model_and_its_line(tiny, tmp_path, monkeypatch):
    """Such a round is not run again: what it leaves must be there before the checkpoint is."""
    there, write = [], Checkpoints.write

    def looks(self, state, progress):
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        there.append((progress.round, len(lines), (tmp_path / "run" / "models" / "round-000002.safetensors").exists()))
        write(self, state, progress)

    monkeypatch.setattr(Checkpoints, "write", looks)
    runner.start(resolve([{**tiny, "rounds": 3, "keep_models": [2]}]), tmp_path / "run", Observer())
    assert there == [(1, 1, False), (2, 2, True), (3, 3, True)]
