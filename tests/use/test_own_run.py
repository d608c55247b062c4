"""What a run on images of one's own takes where its user said nothing."""

import tomllib

import pytest
from PIL import Image
from site_helpers import write_sites

import protolith as pl
from protolith.cli import request
from protolith.runs.runner import Observer
from protolith.use import own_run, suggest, timing
from protolith.use.own_run import typed, unsaid
from protolith.use.suggest import amounts_of

QUICK = ["--rounds", 1, "--workers", 0, "--set", "width=4", "--set", "epochs=1", "--no-diagnostics"]


class Heard(Observer):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, text):
        """Keep it."""
        self.said.append(text)


@pytest.fixture
def photos(photographs, monkeypatch):
    """The same where no pretrained weights are."""
    monkeypatch.setattr(suggest, "weights_of", lambda name: ("", False))
    return photographs


@pytest.fixture
def photographs(tmp_path):
    """Three sites, images of 70 by 66 pixels."""
    root = write_sites(tmp_path / "photos", images=8)
    for file in root.glob("*/*/*.png"):
        Image.open(file).resize((70, 66)).save(file)
    return root


def settings(path):
    return tomllib.loads((path / "config.toml").read_text())


def suggested(said):
    return [line for line in said if line.startswith("settings for these images: ")]


def test_a_run_on_a_folder_takes_what_the_check_suggests_and_says_so_in_one_line(
    protolith, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(timing, "seconds_per_image", lambda *_: (0.01, 0.002))
    found = pl.check(photos).suggestion
    assert (found.method, found.size, found.width) == ("strata", 64, 16)
    code, out, err = protolith("run", "--task", "photos", *QUICK, "--out", "runs/first")
    assert code == 0, err
    (line,) = suggested(err.splitlines())
    assert line == (
        "settings for these images: strata, 64 pixels, batch 16 (protolith data check photos explains them); "
        "what you set yourself stays"
    )
    made = settings(tmp_path / "runs/first")
    assert (made["method"], made["size"], made["training"]["batch"]) == ("strata", 64, found.batch)
    assert (made["rounds"], made["model"]["width"], made["training"]["epochs"]) == (1, 4, 1)
    # The check names the same two commands.
    said = protolith("data", "check", "photos")[1]
    assert f"suggestion: {found.words()}; about " in said
    assert "\n  protolith run --task photos --out runs/first\n" in said
    assert out.splitlines()[-1].endswith("next: protolith predict runs/first FOLDER-OF-NEW-IMAGES")
    assert said.splitlines()[-1] == "  protolith predict runs/first FOLDER-OF-NEW-IMAGES"


def test_what_was_typed_wins_key_by_key(photos, tmp_path):
    (tmp_path / "c.toml").write_text("rounds = 7\n[training]\nbatch = 9\nlr = 0.5\n")
    flags = request.flags_of(task=str(photos), method="fedavg")
    asked = request.given(str(tmp_path / "c.toml"), flags, ["size=48"])
    config = request.resolved(asked, lambda _: None)
    assert (config.method, config.rounds, config.size) == ("fedavg", 7, 48)
    assert (config.training.batch, config.training.lr, config.model.width) == (9, 0.5, 16)
    assert config.training.epochs == unsaid({"task": str(photos)})["training"]["epochs"]


def test_options_of_the_suggested_method_have_short_names(photos):
    flags = request.flags_of(task=str(photos))
    assert request.given(None, flags, ["balance=false"])["training"] == {"style_balance": False}  # as it was called
    assert request.given(None, {}, [f"task={photos}", "exchange=0.5"])["training"] == {"style_exchange": 0.5}
    with pytest.raises(pl.UserError, match="unknown key in --set 'exchange'"):
        request.given(None, {}, ["exchange=0.5"])
    assert request.given(None, flags, ["method=fedprox", "mu=0.5"])["params"] == {"mu": 0.5}


def test_a_manifest_gets_the_same_settings_as_its_folder(photos):
    lines = [f"{f.relative_to(photos.parent)},{f.parent.name},{f.parent.parent.name}" for f in photos.glob("*/*/*")]
    manifest = photos.parent / "list.csv"
    manifest.write_text("\n".join(["path,label,site", *lines]))
    heard = Heard()
    assert unsaid({"task": str(manifest)}, heard.say) == unsaid({"task": str(photos)})
    assert f"(protolith data check {typed(str(manifest))} explains them)" in heard.said[0]


def test_a_size_that_hides_what_photographs_show_is_named(photos):
    heard = Heard()
    assert unsaid({"task": str(photos), "size": 32}, heard.say)["size"] == 64
    assert "pixels" not in heard.said[0]
    assert heard.said[1:] == ["size = 32 pixels: these images are worth 64, and lose accuracy with so few"]
    heard.said.clear()
    unsaid({"task": str(photos), "size": 48}, heard.say)
    assert len(heard.said) == 1


def test_where_all_is_said_nothing_is_looked_at_and_nothing_is_said(photos, monkeypatch):
    everything = {"task": str(photos), **unsaid({"task": str(photos)})}
    monkeypatch.setattr(own_run, "amounts_of", lambda _: pytest.fail("looked"))
    heard = Heard()
    assert unsaid(everything, heard.say) == {} and heard.said == []
    for named in ({}, {"task": "mini"}, {"task": "pacs", "size": 32}):
        assert unsaid(named, heard.say) == {} and heard.said == []


def test_a_run_at_real_sites_without_a_size_is_told_where_one_is_suggested():
    heard = Heard()
    assert unsaid({"task": "hospitals", "engine": "flower"}, heard.say) == {}
    assert heard.said == ["size = 32 pixels: `protolith data check` at a site suggests one"]
    assert unsaid({"task": "hospitals", "engine": "flower", "size": 64}, heard.say) == {} and len(heard.said) == 1
    deployed = {"engine": "flower", "deployment": "hospitals", "task": "hospitals", "protocol": {"clients": {"a": 1}}}
    config = request.resolved(request.given(None, {"rounds": 3}, ["mu=0.1", "method=fedprox"], deployed), heard.say)
    assert (config.engine, config.method, config.size, config.rounds) == ("flower", "fedprox", 32, 3)
    assert config.protocol.clients == {"a": 1} and heard.said[1:] == heard.said[:1]


def test_a_layer_of_the_wrong_shape_is_left_to_the_sentence_about_it(photos):
    for wrong in ({"training": "fast"}, {"model": 3}, {"size": "big"}):
        with pytest.raises(pl.UserError, match=next(iter(wrong))):
            request.resolved({"task": str(photos), **wrong}, lambda _: None)
    with pytest.raises(pl.UserError, match="does not exist"):
        unsaid({"task": "no/such/folder"})


def test_a_sweep_takes_all_but_the_method_looks_once_and_resumes(protolith, photos, tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(own_run, "amounts_of", lambda found: looked.append(found) or amounts_of(found))
    words = ["sweep", "--methods", "fedavg,fedprox", "--task", "photos", "--out", "s", "--jobs", 2, *QUICK]
    code, out, err = protolith(*words)
    assert code == 0 and "FedProx" in out, err
    (line,) = suggested(err.splitlines())
    assert "strata" not in line and "64 pixels, batch 16 (" in line and len(looked) == 1
    made = [settings(path.parent) for path in sorted((tmp_path / "s").glob("*/config.toml"))]
    assert [(one["method"], one["size"]) for one in made] == [("fedavg", 64), ("fedprox", 64)]
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/summary.json")}
    assert protolith(*words)[1] == out
    assert times == {file: file.stat().st_mtime_ns for file in (tmp_path / "s").glob("*/summary.json")}


def test_fit_takes_them_too_and_its_observer_hears_it(photos, tmp_path):
    heard = Heard()
    small = {"rounds": 1, "workers": 0, "model": {"width": 4}, "training": {"epochs": 1}, "diagnostics": False}
    run = pl.fit(task=str(photos), out=tmp_path / "run", observer=heard, **small)
    assert (run.config.method, run.config.size, run.config.training.batch) == ("strata", 64, 16)
    assert len(suggested(heard.said)) == 1
    again = pl.fit(config=str(run.path / "config.toml"), out=tmp_path / "again", observer=(second := Heard()))
    assert again.config == run.config and suggested(second.said) == []


def test_a_run_on_a_named_task_says_nothing_of_the_kind_and_names_no_next_step(protolith):
    code, out, err = protolith("run", *QUICK, "--set", "samples=16", "--out", "r")
    assert code == 0 and suggested(err.splitlines()) == [] and "FedAvg" in out
    assert out.splitlines()[-1] == "see it: protolith report r"


def test_paths_are_shown_as_one_would_type_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed(str(tmp_path / "photos")) == "photos" and typed("photos/") == "photos"
    assert typed("my photos") == "'my photos'"
    assert typed(str(tmp_path / "pacs")) == "./pacs"
    assert typed("../elsewhere") == "../elsewhere" and typed("/nowhere/x") == "/nowhere/x"


def test_a_backbone_keeps_its_own_size(photos):
    said = []
    layer = unsaid({"task": str(photos), "model": {"name": "efficientnet-lite0"}}, said.append)
    assert layer == {"method": "strata", "model": {"name": "efficientnet-lite0"}} and "width" not in said[0]
    assert "size" in unsaid({"task": str(photos)})


@pytest.mark.skipif(not suggest.weights_of(suggest.BACKBONE)[1], reason="the pretrained weights are not installed")
def test_photographs_get_the_head_of_a_pretrained_network(protolith, photographs, tmp_path):
    found = pl.check(photographs).suggestion
    assert found.words() == (
        "strata, the head of a pretrained efficientnet-lite0, 224 pixels, batch 32, 20 rounds of 5 epochs"
    )
    words = ["run", "--task", "photographs", "--rounds", 2, "--workers", 0, "--set", "size=64", "--out", "runs/first"]
    photographs.rename(tmp_path / "photographs")
    code, out, err = protolith(*words)
    assert code == 0, err
    (line,) = suggested(err.splitlines())
    assert line.startswith("settings for these images: strata, the head of a pretrained efficientnet-lite0, batch 32")
    made = settings(tmp_path / "runs/first")
    assert (made["model"]["name"], made["model"]["tune"]) == ("efficientnet-lite0", "head")
    assert (made["rounds"], made["size"], made["training"]["batch"], made["training"]["epochs"]) == (2, 64, 32, 5)
    assert "next: protolith predict runs/first" in out and "encoding photographs by " in err
    images = [str(next((tmp_path / "photographs").glob("*/*/*.png")))]
    assert protolith("predict", "runs/first", *images)[0] == 0


@pytest.mark.skipif(not suggest.weights_of(suggest.BACKBONE)[1], reason="the pretrained weights are not installed")
def test_who_asks_for_a_network_from_scratch_gets_its_settings(photographs):
    task = str(photographs)
    for said in ({"model": {"width": 16}}, {"model": {"name": "resnet10"}}, {"method": "fedcode"}):
        found = unsaid({"task": task, **said})
        assert found["size"] == 64 and "name" not in found["model"]
    assert unsaid({"task": task, "model": {"name": "efficientnet-lite0"}})["model"] == {"name": "efficientnet-lite0"}
    plain = request.flags_of(task=task)
    for methods, name in (("fedavg,fpl", "efficientnet-lite0"), ("fedavg,fedcode", "resnet10")):
        configs = request.configs_of(methods, "0", None, plain, [], lambda _: None)
        assert {config.model.name for config in configs} == {name}
