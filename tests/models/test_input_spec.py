"""What a network wants to see, and that everybody obeys it."""

import json

import pytest
import torch

from protolith.data.augment import to_input
from protolith.models import build_model, saved
from protolith.models.spec import InputSpec, see, spec_of

OTHER = InputSpec(48, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3), "crop", "bicubic")


def test_inputs_are_those_of_a_plain_loop():
    images = torch.randint(0, 256, (3, 4, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    inputs = OTHER.inputs(images, torch.device("cpu"))
    for n in range(3):
        for y in range(4):
            for x in range(5):
                for c in range(3):
                    expected = (int(images[n, y, x, c]) / 255 - OTHER.mean[c]) / OTHER.std[c]
                    assert float(inputs[n, c, y, x]) == pytest.approx(expected, abs=1e-5)


def test_the_papers_networks_see_what_they_always_saw():
    images = torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8)
    model = build_model("resnet10", 3, 4, seed=0, size=8)
    assert spec_of(model) == InputSpec(8)
    assert torch.equal(see(model, images), to_input(images, torch.device("cpu")))


def test_a_model_file_carries_what_its_network_wants_to_see(tmp_path):
    model = build_model("resnet10", 2, 4, seed=1, size=48)
    said = saved.about("fedavg", "resnet10", 4, ["a", "b"], OTHER)
    saved.write_model(tmp_path / "m.safetensors", model.state_dict(), said, {"global": torch.ones(2, 3)})
    held = saved.open_model(tmp_path / "m.safetensors")
    assert (held.spec, held.classes, held.name, held.width) == (OTHER, ("a", "b"), "resnet10", 4)
    assert spec_of(held.model) == OTHER
    assert torch.equal(held.knowledge["global"], torch.ones(2, 3)) and not held.model.training
    assert all(torch.equal(a, b) for a, b in zip(held.model.parameters(), model.parameters(), strict=True))


def test_an_older_file_says_its_size_alone(tmp_path):
    model = build_model("resnet10", 2, 4, seed=1)
    said = {"method": "fedavg", "model": "resnet10", "width": 4, "size": 64, "classes": ["a", "b"]}
    saved.write_model(tmp_path / "m.safetensors", model.state_dict(), said)
    assert saved.open_model(tmp_path / "m.safetensors").spec == InputSpec(64)


@pytest.mark.parametrize(
    "bad",
    [
        None, [], {"size": 32}, {**OTHER.plain(), "mean": [0.1, 0.2]}, {**OTHER.plain(), "mean": "abc"},
        {**OTHER.plain(), "resize": "melt"}, {**OTHER.plain(), "size": -1}, {**OTHER.plain(), "size": True},
        {**OTHER.plain(), "colour": 1},
    ],
)  # fmt: skip
def test_what_cannot_be_an_input_is_refused(bad):
    with pytest.raises(ValueError, match="cannot be"):
        InputSpec.of(bad)
    assert InputSpec.of(json.loads(json.dumps(OTHER.plain()))) == OTHER
