"""Starting weights: from a run, from an ImageNet-like state dict, and from files that do not fit."""

import pytest
import torch

import protolith as pl
from protolith import records
from protolith.errors import UserError
from protolith.models import build_model
from protolith.runs.runner import Observer
from protolith.runs.starting import mapped


def imagenet_like(classes=1000, stem=7):
    """A ResNet-18 as others name it: a 7 × 7 stem, and `fc` for the head."""
    state = build_model("resnet18", classes, 4, 1).state_dict()
    renamed = {name.replace("head.", "fc."): tensor for name, tensor in state.items()}
    return {**renamed, "conv1.weight": torch.randn(4, 3, stem, stem)}


OURS = build_model("resnet18", 5, 4, 0).state_dict()


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "backbone."])
def test_an_imagenet_state_dict_goes_where_it_belongs(prefix):
    given = {prefix + name: tensor for name, tensor in imagenet_like().items()}
    start = mapped(given, {}, OURS, "abcde", "x")
    taken = imagenet_like()
    for name, tensor in start.weights.items():
        drawn = name in ("conv1.weight", "head.weight", "head.bias")
        assert torch.equal(tensor, OURS[name] if drawn else given[prefix + name]), name
    assert start.weights.keys() == OURS.keys() and len(taken) == len(OURS)
    said = " ".join(start.notes)
    assert f"starting from x: {len(OURS) - 3} of {len(OURS)} tensors kept" in said
    assert "3 drawn from the seed: conv1.weight (4×3×7×7 there, 4×3×3×3 here)" in said
    assert "head.weight (1000×32 there, 5×32 here), head.bias (1000 there, 5 here)" in said


def test_counters_may_be_missing():
    given = {name: t for name, t in OURS.items() if not name.endswith("num_batches_tracked")}
    assert mapped(given, {}, OURS, "abcde", "x").drawn == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"layer1.0.conv1.weight": torch.zeros(8, 4, 3, 3)},
            r"layer1\.0\.conv1\.weight \(8×4×3×3 there, 4×4×3×3 here\)",
        ),
        ({"layer9.0.conv1.weight": torch.zeros(1)}, r"it also has 'layer9\.0\.conv1\.weight'"),
        ({"bn1.weight": torch.full((4,), torch.nan)}, "not finite"),
    ],
)
def test_what_does_not_fit_is_named(change, sentence):
    with pytest.raises(UserError, match=sentence):
        mapped({**OURS, **change}, {}, OURS, "abcde", "x")
    lacking = {name: tensor for name, tensor in OURS.items() if not name.startswith("layer2")}
    with pytest.raises(UserError, match=r"layer2\.0\.conv1\.weight \(absent there.* and \d+ more"):
        mapped(lacking, {}, OURS, "abcde", "x")


def test_a_head_for_other_classes_is_not_taken():
    start = mapped({**OURS, "head.bias": torch.ones(5)}, {"classes": list("vwxyz")}, OURS, "abcde", "x")
    assert torch.equal(start.weights["head.bias"], OURS["head.bias"])


def test_what_a_file_has_besides_is_named_and_counted():
    more = {
        "knowledge/global": torch.zeros(5, 2),
        "fc.extra": torch.zeros(1),
        "extra.num_batches_tracked": torch.zeros(1),
    }
    start = mapped({**OURS, **more}, {}, OURS, "abcde", "x")
    assert start.notes[-1] == "3 left out of the file: 'knowledge/global', 'fc.extra', 'extra.num_batches_tracked'"
    missing = mapped({name: OURS[name] for name in OURS if not name.endswith("tracked")}, {}, OURS, "abcde", "x")
    counters = sum(name.endswith("tracked") for name in OURS)
    kept = f"{len(OURS) - counters} of {len(OURS)} tensors kept"
    assert missing.notes == (f"starting from x: {kept} ({counters} counters of batches begin at 0)",)


def test_the_screen_and_the_summary_say_what_was_kept_and_what_was_drawn(tiny, tmp_path):
    file, said = tmp_path / "resnet18.safetensors", []
    records.write(file, imagenet_like())
    hears = Observer()
    hears.say = said.append
    settings = {**tiny, "rounds": 1, "model": {"name": "resnet18", "width": 4}}
    run = pl.fit(out=tmp_path / "run", init=str(file), observer=hears, **settings)
    ours = build_model("resnet18", 10, 4, 0).state_dict()
    assert any(f"{len(ours) - 3} of {len(ours)} tensors kept" in line for line in said)
    assert any("conv1.weight (4×3×7×7 there, 4×3×3×3 here)" in line for line in said)
    told = run.summary.init
    assert (told.kept, told.of, told.left_out) == (len(ours) - 3, len(ours), ())
    assert [line.split(" ")[0] for line in told.drawn] == ["conv1.weight", "head.weight", "head.bias"]
    assert pl.fit(out=tmp_path / "plain", **settings).summary.init is None


def test_a_run_goes_on_from_anothers_model(tiny, tmp_path):
    first = pl.fit(out=tmp_path / "a", **tiny)
    still = {**tiny, "rounds": 1, "training": {**tiny["training"], "lr": 1e-9}}
    second = pl.fit(out=tmp_path / "b", init=str(first.path / "model.safetensors"), **still)
    ours, theirs = (records.read(run.path / "model.safetensors")["conv1.weight"] for run in (first, second))
    assert torch.allclose(ours, theirs, atol=1e-6)
    with pytest.raises(UserError, match="the file does not exist"):
        pl.fit(out=tmp_path / "c", init=str(tmp_path / "none"), **still)
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(UserError, match="not a safetensors file"):
        pl.fit(out=tmp_path / "c", init=str(tmp_path / "text"), **still)
    assert not (tmp_path / "c").exists()
