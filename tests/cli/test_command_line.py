"""The contract of the command line, above all what it says when the request is wrong."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import protolith as pl
from protolith.cli.main import app
from protolith.runs.config import RunConfig, settings_of

SMALL = ["--rounds", "2", "--workers", "0", "--set", "width=4", "--set", "epochs=1", "--set", "samples=16"]


def refused(outcome, *words):
    """One clear sentence on standard error, exit code 2, nothing else."""
    code, out, err = outcome
    assert code == 2, err
    assert out == ""
    said = [line for line in err.splitlines() if line.startswith("protolith: ")]
    assert len(said) == 1 and "Traceback" not in err
    for word in words:
        assert word in said[0]
    return True


def write_folder(root, domains=("east", "west"), classes=("cat", "dog"), images=12):
    rng = np.random.default_rng(0)
    for domain in domains:
        for label, name in enumerate(classes):
            (root / domain / name).mkdir(parents=True)
            for index in range(images):
                pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8) // (label + 1)
                Image.fromarray(pixels).save(root / domain / name / f"{index:02d}.png")
    return root


def test_run_table_and_resume(protolith, tmp_path):
    code, out, err = protolith("run", *SMALL, "--out", "r")
    assert code == 0 and "FedAvg" in out and "mean of the last 2 rounds (1 to 2), never the best round" in out
    assert err.count("round ") == 2
    for name in ("config.toml", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoint"):
        assert (tmp_path / "r" / name).exists()
    head = "method,column,mean,sd,seeds,paper,difference,table"
    assert protolith("table", "r", "--format", "csv")[1].startswith(f"{head}\nFedAvg,pen,")
    assert "| FedAvg |" in protolith("table", "r", "--format", "md")[1]
    assert "FedAvg" in protolith("resume", "r")[1]
    # The configuration is enough to repeat the run.
    assert protolith("run", "--config", "r/config.toml", "--out", "again")[0] == 0
    assert (tmp_path / "r/model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()


def test_run_as_json(protolith):
    code, out, _ = protolith("run", *SMALL, "--json")
    summary = json.loads(out)
    assert code == 0 and summary["rounds"] == 2 and set(summary["accuracy"]) == {"pen", "photo", "print", "street"}
    assert summary["versions"]["torch"] and summary["tested"] == "global"
    assert torch.backends.cpu.get_cpu_capability() in summary["versions"]["processor"]


def test_a_folder_of_ones_own(protolith, tmp_path):
    write_folder(tmp_path / "sites")
    arguments = ["--task", "sites", "--rounds", "1", "--workers", "0", "--set", "width=4", "--set", "epochs=1"]
    code, out, err = protolith("run", *arguments, "--out", "r")
    assert code == 0, err
    assert "east" in out and "west" in out
    code, out, _ = protolith("data", "check", "sites")
    assert code == 0 and "east" in out and "train" in out and "cat" in out
    assert protolith("data", "preview", "sites", "--out", "sheet.png")[0] == 0
    assert Image.open(tmp_path / "sheet.png").width > 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "fedavgg"], ["unknown method 'fedavgg'", "Did you mean 'fedavg'"]),
        (["--method", "fedagv"], ["unknown method 'fedagv'. Did you mean 'fedavg',", "`protolith methods` lists all"]),
        (["--task", "minni"], ["unknown task 'minni'", "mini"]),
        (["--task", "no/such/folder"], ["'no/such/folder' does not exist"]),
        (["--protocol", "shfit"], ["unknown protocol 'shfit'", "Did you mean 'shift'"]),
        (["--protocol", "unseen"], ["protocol unseen", "--set unseen=", "pen, photo, print, street"]),
        (["--protocol", "unseen", "--set", "unseen=pan"], ["protocol.unseen", "'pan'", "Did you mean 'pen'?"]),
        (["--engine", "quantum"], ["engine", "'quantum'", "'local'"]),
        (["--engine", "Flowr"], ["engine = 'Flowr'", "Did you mean 'flower'?"]),
        (["--device", "gpu"], ["device = 'gpu'", "'auto', 'cpu', 'cuda' or 'mps'"]),
        (["--device", "cdua"], ["device = 'cdua'", "Did you mean 'cuda'?"]),
        (["--device", "cuda:first"], ["device = 'cuda:first'"]),
        (["--attack", "signflip"], ["attack.kind = 'signflip'", "Did you mean 'sign-flip'?"]),
        (["--set", "robust=medain"], ["robust = 'medain'", "Did you mean 'median'?"]),
        (["--rounds", "0"], ["rounds = 0"]),
        (["--rounds", "few"], ["--rounds"]),
        (["--workers", "-5"], ["workers = -5"]),
        (["--set", "epoch=3"], ["unknown key in --set 'epoch'", "Did you mean 'epochs'"]),
        (["--set", "siz=64"], ["Did you mean 'size'", "`protolith options METHOD` lists all"]),
        (["--set", "trainin.lr=1"], ["Did you mean 'training.lr'"]),
        (["--set", "lr=fast"], ["training.lr = 'fast'"]),
        (["--set", "lr"], ["key=value"]),
        (["--data", "nowhere"], ["--data nowhere", "does not exist"]),
        (["--config", "nowhere.toml"], ["nowhere.toml", "does not exist"]),
        (["--config", "quikc"], ["unknown preset", "Did you mean 'quick'"]),
        (["--plugin", "nowhere.py"], ["plug-in", "nowhere.py"]),
        (["--nonsense"], ["--nonsense"]),
        (["stray"], ["stray"]),
    ],
)
def test_wrong_requests_to_run(protolith, tmp_path, arguments, words):
    assert refused(protolith("run", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], ["No such command 'rnu'"]),
        (["table", "r", "--columns", "acuracy"], ["unknown kind in --columns", "Did you mean 'accuracy'?"]),
        (["table", "r", "--format", "latx"], ["unknown format", "Did you mean 'latex'?"]),
        (["figure", "r", "--kind", "Curvs", "--out", "f"], ["unknown kind", "Did you mean 'curves'?"]),
        (["export", "r", "--to", "onxx", "--out", "f"], ["unknown format", "Did you mean 'onnx'?"]),
        (["run", "--track", "tensorbord"], ["unknown tracker", "Did you mean 'tensorboard'?"]),
        (["experiment", "fpl-tabel1"], ["Did you mean 'fpl-table1'", "`protolith experiment` lists all"]),
        (["experiment", "fpl-table1", "--task", "digts"], ["Did you mean 'digits'?"]),
        (["methods", "fedprx"], ["Did you mean 'fedprox'"]),
        (["options", "fedprx"], ["Did you mean 'fedprox'"]),
        (["data", "check", "offce10"], ["Did you mean 'office10'?"]),
        (["deploy", "ini"], ["No such command 'ini'"]),
    ],
)
def test_a_wrong_word_gets_the_nearest_right_one(protolith, finished, tmp_path, arguments, words):
    shutil.copytree(finished, tmp_path / "r")
    assert refused(outcome := protolith(*arguments), *words)
    assert outcome[2].count("Did you mean") <= 1 and len(outcome[2]) < 300


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "r"
    pl.fit(rounds=1, workers=0, model={"width": 4}, training={"epochs": 1}, protocol={"samples": 16}, out=place)
    return place


def test_names_of_methods_are_matched_without_regard_to_capitals(protolith, tmp_path):
    code, out, err = protolith("run", "--method", "FPL", *SMALL, "--set", "tau=0.1", "--json")
    assert code == 0 and json.loads(out)["method"] == "fpl" and "mini-shift-fpl-seed0" in err
    (tmp_path / "c.toml").write_text('method = "FedAvg"\n')
    code, _, _ = protolith("sweep", "--methods", "FedAVG,fedavg", *SMALL, "--config", "c.toml", "--out", "s")
    assert code == 0 and len([path for path in (tmp_path / "s").iterdir() if path.is_dir()]) == 1
    assert pl.api.resolve([{"method": "I2PFL"}]).method == "i2pfl"
    assert protolith("methods", "Strata") == protolith("methods", "strata")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "--device", "DEVICE", "--out", "r"],
        ["run", "--set", "device=DEVICE"],
        ["sweep", "--methods", "fedavg,fpl", "--device", "DEVICE", "--out", "s"],
    ],
)
def test_a_run_on_a_device_that_is_absent_says_so_in_one_sentence(protolith, tmp_path, device, command):
    if {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}.get(device[:4].rstrip(":")):
        pytest.skip(f"this machine has {device}")
    outcome = protolith(*(word.replace("DEVICE", device) for word in command))
    assert refused(outcome, f"device = '{device}'", "this machine has no", "use auto or cpu")
    assert list(tmp_path.iterdir()) == [] and len(outcome[2].splitlines()) == 1


def test_a_run_of_another_machine_resumes_only_where_its_device_is_and_its_model_is_used_anywhere(
    protolith, finished, tmp_path
):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    shutil.copytree(finished, tmp_path / "r")
    config = tmp_path / "r" / "config.toml"
    config.write_text(config.read_text().replace('device = "auto"', 'device = "cuda"'))
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    code, out, err = protolith("predict", "r", "one.png", "--csv")
    assert code == 0 and out.startswith("file,label") and "one.png" in out, err
    (tmp_path / "r" / "summary.json").unlink()
    assert refused(protolith("resume", "r"), "device = 'cuda'", "this machine has no CUDA")


LOUD = """
import sys
from protolith.methods import fedavg
from protolith.methods.registry import Method
print("loud at import")

class Client(fedavg.Client):
    def update(self):
        print("loud at work")
        return super().update()

def predict(model, images, knowledge):
    print("loud in prediction")
    return model(images)

base = fedavg.METHOD
METHOD = Method(name="loud", title="Loud", paper="none", idea="prints", objective="CE", server_step="mean",
                traffic="as FedAvg", params=base.params, client=Client, server=base.server, predict=predict)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_a_plug_in_prints_goes_to_standard_error(tmp_path, cache, workers):
    (tmp_path / "loud.py").write_text(LOUD)
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")

    def out_of(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "protolith", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    plugged = ["--plugin", "loud.py", *SMALL, "--workers", workers]
    out, err = out_of("run", "--method", "loud", *plugged, "--out", "r", "--json")
    assert json.loads(out)["method"] == "loud" and "loud at import" in err and "loud at work" in err
    out, err = out_of("predict", "r", "one.png", "--csv")
    assert out.startswith("file,label,") and len(out.splitlines()) == 2 and "loud in prediction" in err
    assert json.loads(out_of("predict", "r", "one.png", "--json")[0])[0]["label"]
    assert json.loads(out_of("sweep", "--methods", "loud", *plugged, "--out", "s", "--json")[0])
    assert json.loads(out_of("resume", "r", "--json")[0])["method"] == "loud"


def test_a_configuration_with_an_unknown_key(protolith, tmp_path):
    (tmp_path / "c.toml").write_text("[training]\nlearning_rate = 0.1\n")
    assert refused(protolith("run", "--config", "c.toml"), "unknown key 'training.learning_rate'", "training.lr")
    (tmp_path / "c.toml").write_text("rounds = [")
    assert refused(protolith("run", "--config", "c.toml"), "c.toml cannot be read")


def test_an_output_directory_that_holds_something(protolith, tmp_path):
    assert protolith("run", *SMALL, "--out", "r")[0] == 0
    before = (tmp_path / "r" / "model.safetensors").read_bytes()
    assert refused(protolith("run", *SMALL, "--out", "r"), "--out r holds another run", "protolith resume r")
    assert (tmp_path / "r" / "model.safetensors").read_bytes() == before
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("precious")
    assert refused(protolith("run", *SMALL, "--out", "s"), "--out s holds other files")
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["thesis.txt"]


def test_bad_folders(protolith, tmp_path):
    run = ["run", "--rounds", "1", "--workers", "0", "--task", "sites"]
    write_folder(tmp_path / "sites")
    broken = tmp_path / "sites" / "east" / "dog" / "03.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    assert refused(protolith(*run), "03.png")
    broken.write_bytes(whole)
    (tmp_path / "sites" / "west" / "fox").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "sites" / "west" / "fox" / "a.png")
    small = ["--set", "width=4", "--set", "epochs=1", "--out", "lacking"]
    code, _, err = protolith(*run, *small)
    assert code == 0, err  # a site may lack a class
    shutil.rmtree(tmp_path / "sites")
    (tmp_path / "sites").mkdir()
    assert refused(protolith(*run), "sites")
    assert not (tmp_path / "runs").exists()


def test_other_commands_refuse_too(protolith, tmp_path):
    assert refused(protolith("resume", "nowhere"), "nowhere is not a run directory")
    assert refused(protolith("table", "nowhere"), "nowhere does not exist")
    (tmp_path / "empty").mkdir()
    assert refused(protolith("table", "empty"), "holds no run")
    assert refused(protolith("methods", "fpll"), "Did you mean 'fpl'")
    assert refused(protolith("data", "check", "officce10"), "office10")
    assert refused(protolith("sweep", "--methods", "fedavg", "--seeds", "a", "--out", "s"), "--seeds a")
    assert refused(protolith("sweep", "--methods", "fedavg,nope", "--out", "s"), "unknown method 'nope'")
    assert refused(protolith("sweep", "--methods", "fedavg", "--jobs", "0", "--out", "s"), "--jobs 0")


def test_what_there_is(protolith):
    assert "fedavg" in protolith("methods")[1] and "fedprox" in protolith("methods")[1]
    explained = protolith("methods", "fedprox")[1]
    for part in ("objective", "(μ/2)", "traffic", "mu = 0.01", "memory"):
        assert part in explained
    assert "office10" in protolith("tasks")[1]
    assert "quick" in protolith("presets")[1]
    info = protolith("data", "info", "mini")[1]
    assert "licence" in info and "pen" in info


def test_help_is_for_newcomers(protolith):
    code, out, _ = protolith("--help")
    assert code == 0 and "without moving the data" in " ".join(out.split())
    code, out, _ = protolith("run", "--help")
    assert code == 0 and "--method" in out and "--set" in out


@pytest.mark.parametrize("group", [(), ("data",), ("deploy",)], ids=" ".join)
def test_a_group_of_commands_by_itself_is_its_help(protolith, group):
    asked = protolith(*group, "--help")
    assert asked[0] == 0 and len(asked[1].splitlines()) > 5
    assert protolith(*group) == asked


def test_sweep_makes_one_table_and_does_nothing_twice(protolith, tmp_path):
    arguments = ["sweep", "--methods", "fedavg,solo", "--seeds", "0,1", "--jobs", "2", "--out", "s", *SMALL]
    code, out, _ = protolith(*arguments)
    assert code == 0 and "FedAvg" in out and "SOLO †" in out and "±" in out and "seeds 0, 1" in out
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/summary.json")}
    assert len(times) == 4
    assert protolith(*arguments)[1] == out
    assert times == {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/summary.json")}
    latex = protolith("table", "s", "--format", "latex")[1]
    assert r"\begin{tabular}{lrrrrr}" in latex and r"$\pm$" in latex and r"$\dagger$" in latex


def test_experiment_lists_and_explains_every_table_and_figure(protolith):
    lines = protolith("experiment")[1].splitlines()
    assert protolith("paper")[1].splitlines() == lines  # its name in 0.1
    assert len(lines) == 36 and lines[-1] == "35 in all: 16 tables, 19 figures"
    assert lines[0].startswith("fpl-table1       FPL, Table 1: ")
    text = protolith("experiment", "i2pfl-fig7", "--rounds", "3", "--task", "office10", "--dry-run")[1]
    assert "33 runs of 3 rounds" in text and "REDUCED" in text and "axes are not in the text" in text
    assert "the paper's own size" in protolith("experiment", "fpl-table1", "--dry-run")[1]
    assert refused(protolith("experiment", "fpl-table9"), "unknown table or figure 'fpl-table9'")
    assert refused(
        protolith("experiment", "fpl-table2", "--methods", "fedavgg", "--dry-run"), "unknown method 'fedavgg'"
    )
    assert refused(protolith("experiment", "fpl-table2", "--task", "mini", "--dry-run"), "task in fpl-table2 'mini'")


def test_the_help_of_run_shows_ten_options_and_names_the_others(protolith):
    shown = protolith("run", "--help")[1]
    listed = re.findall(r"^  (--[a-z-]+)", shown.split("  Also ")[0], re.M)
    usual = "--method --model --task --protocol --data --rounds --seed --out --set --report --help"
    assert listed == usual.split()
    named = "".join(shown.split("Also ")[1].split())
    every = {option.opts[0] for option in typer.main.get_command(app).commands["run"].params}
    assert all(name in named for name in every - set(listed))
    said = protolith("options")[1]
    assert all(f"run {name}: " in said for name in every - {"--help"})


def test_options_lists_what_the_settings_say_of_themselves(protolith):
    said = protolith("options")[1].splitlines()
    for key, info in settings_of(RunConfig).items():
        if key != "params":
            assert f"{key} = {info.get_default(call_default_factory=True)!r}: {info.description}" in said
    assert not any(line.startswith("params.") for line in said)
    assert "params.tau = 0.02: temperature of the contrast, Eq. 8" in protolith("options", "FPL")[1].splitlines()
    assert protolith("settings", "fpl") == protolith("options", "fpl")  # its name in 0.1
    few = protolith("options", "warmup")[1].splitlines()
    assert few and len(few) < 5 and all("warmup" in line for line in few)


def test_every_setting_gives_a_reason():
    assert [key for key, info in settings_of(RunConfig).items() if not info.description and key != "params"] == []


def test_a_default_in_the_help_of_run_is_that_of_the_setting():
    """The help must not wait for pydantic, so its words stand in two places; this keeps their defaults the same."""
    settings = {key.rsplit(".", 1)[-1]: info for key, info in settings_of(RunConfig).items() if "." not in key}
    checked = 0
    for option in typer.main.get_command(app).commands["run"].params:
        said = re.search(r"\[default: ([\w.-]+)", getattr(option, "help", "") or "")
        if said and option.name in ("method", "task", "seed", "engine", "device"):
            assert said[1].rstrip(";") == str(settings[option.name].default), option.name
            checked += 1
    assert checked == 5
