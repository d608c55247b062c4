"""Packed runs come back as they were, and every command takes them for finished runs."""

import json

import pytest

from benchmarks.packed_runs import lines_in, pack, unpack
from protolith.experiments.sweep import job_path, state
from protolith.experiments.table import build_tables, find_runs
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.runner import Observer

FILES = ("config.toml", "metrics.jsonl", "summary.json")


@pytest.fixture
def run(tmp_path, tiny):
    config = resolve([tiny, {"rounds": 2, "diagnostics": False}])
    runner.start(config, job_path(config, tmp_path / "runs"), Observer())
    return job_path(config, tmp_path / "runs"), config


def test_a_run_comes_back_byte_for_byte_and_counts_as_done(tmp_path, run):
    path, config = run
    assert pack(path.parent, tmp_path / "runs.jsonl") == 1
    assert unpack(tmp_path / "runs.jsonl", tmp_path / "again") == [tmp_path / "again" / path.name]
    back = job_path(config, tmp_path / "again")
    assert state(back) == "done"
    assert [(back / file).read_bytes() for file in FILES] == [(path / file).read_bytes() for file in FILES]
    assert build_tables(find_runs(tmp_path / "again"))[0].rows == build_tables(find_runs(path.parent))[0].rows
    assert unpack(tmp_path / "runs.jsonl", tmp_path / "again") == []  # what is there stays as it is


def test_where_the_data_lay_and_unfinished_runs_are_left_out(tmp_path, run):
    path, _ = run
    config = path / "config.toml"
    config.write_text(config.read_text().replace('data = ""', 'data = "/home/somebody/data"'))
    (tmp_path / "runs" / "unfinished").mkdir()
    (tmp_path / "runs" / "unfinished" / "config.toml").write_text(config.read_text())
    pack(tmp_path / "runs", tmp_path / "runs.jsonl")
    (line,) = lines_in(tmp_path / "runs.jsonl")
    assert line["name"] == path.name and line["settings"]["data"] == ""


def test_packing_again_replaces_a_run_and_keeps_those_that_are_not_there(tmp_path, run):
    path, _ = run
    (tmp_path / "runs.jsonl").write_text(
        "".join(json.dumps({"name": name, "settings": {}, "rounds": [], "summary": {}}) + "\n" for name in ("z", "a"))
    )
    for _ in range(2):
        pack(path.parent, tmp_path / "runs.jsonl")
        assert [line["name"] for line in lines_in(tmp_path / "runs.jsonl")] == ["a", path.name, "z"]
    assert [made.name for made in unpack(tmp_path / "runs.jsonl", tmp_path / "one", ["z"])] == ["z"]


def test_a_file_that_would_not_come_back_as_it_is_is_refused(tmp_path, run):
    path, _ = run
    (path / "summary.json").write_text(json.dumps(json.loads((path / "summary.json").read_text())))
    with pytest.raises(SystemExit, match=r"summary\.json is not as a run writes it"):
        pack(path.parent, tmp_path / "runs.jsonl")
