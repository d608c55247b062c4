import pytest
import torch
from torch import nn

from protolith.errors import UserError
from protolith.models import build_model, register_model
from protolith.models.blocks import Pointwise
from protolith.models.registry import _BUILDERS


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "buffers"),
    [
        ("resnet10", 10, 4_903_242, 5_760),
        ("resnet10", 7, 4_901_703, 5_760),
        ("resnet18", 10, 11_173_962, 9_600),
        ("resnet18", 7, 11_172_423, 9_600),
    ],
)
def test_sizes_of_the_papers(name, classes, parameters, buffers):
    model = build_model(name, classes, 64, seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(b.numel() for b in model.buffers() if b.is_floating_point()) == buffers


def test_features_come_before_the_head():
    model = build_model("resnet10", 10, 8, seed=0).eval()
    images = torch.randn(3, 3, 32, 32)
    features = model.features(images)
    assert features.shape == (3, 64)
    assert bool((features >= 0).all())
    assert torch.equal(model.head(features), model(images))


def test_bfloat16_is_for_training_alone():
    model = build_model("resnet10", 10, 16, seed=0)
    images = torch.randn(8, 3, 32, 32)
    exact = {training: model.train(training).features(images) for training in (True, False)}
    model.in_bfloat16 = True
    fast = model.train().features(images)
    assert fast.dtype == torch.float32 and not torch.equal(fast, exact[True])
    assert torch.allclose(fast, exact[True], rtol=0.05, atol=0.05)
    fast.sum().backward()
    assert all(
        parameter.grad.dtype == torch.float32 for name, parameter in model.named_parameters() if "head" not in name
    )
    model = build_model("resnet10", 10, 16, seed=0).eval()
    model.in_bfloat16 = True
    assert torch.equal(model.features(images), build_model("resnet10", 10, 16, seed=0).eval().features(images))


def test_maps_have_the_papers_sizes():
    model = build_model("resnet10", 10, 64, seed=0).eval()
    seen = {}
    for stage in range(1, 5):
        model.get_submodule(f"layer{stage}").register_forward_hook(
            lambda module, args, out, stage=stage: seen.update({stage: tuple(out.shape[1:])})
        )
    model(torch.zeros(1, 3, 32, 32))
    assert seen == {1: (64, 32, 32), 2: (128, 16, 16), 3: (256, 8, 8), 4: (512, 4, 4)}


def test_initial_weights_follow_from_the_seed_alone():
    torch.manual_seed(1)
    first = build_model("resnet10", 10, 4, seed=3).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = build_model("resnet10", 10, 4, seed=3).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = build_model("resnet10", 10, 4, seed=4).state_dict()
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])
    # PyTorch's default initialisation: uniform with bound 1/√27 for the stem, as in the public code.
    wide = build_model("resnet10", 10, 64, seed=0).state_dict()["conv1.weight"]
    assert wide.std().item() == pytest.approx(1 / 27**0.5 / 3**0.5, rel=0.05)


def test_any_network_with_features_and_head_can_be_registered():
    class Tiny(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.body = nn.Conv2d(3, 5, 3)
            self.head = nn.Linear(5, classes)

        def features(self, images):
            return self.body(images).mean(dim=(2, 3))

        def forward(self, images):
            return self.head(self.features(images))

    register_model("tiny-test")(lambda classes, width: Tiny(classes))
    register_model("no-head")(lambda classes, width: nn.Linear(1, 1))
    try:
        assert build_model("tiny-test", 4, 1, seed=0)(torch.zeros(2, 3, 8, 8)).shape == (2, 4)
        with pytest.raises(UserError, match=r"no-head.*features"):
            build_model("no-head", 4, 1, seed=0)
    finally:
        del _BUILDERS["tiny-test"], _BUILDERS["no-head"]


def test_an_unknown_network_is_named_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown model 'resnet1'.*resnet10"):
        build_model("resnet1", 10, 4, seed=0)


@pytest.mark.parametrize(
    ("width", "size"), [(1, 32), (2, 32), (4, 32), (5, 32), (6, 32), (12, 32), (8, 48), (8, 64), (4, 64), (12, 112)]
)
def test_odd_widths_train_in_channels_last(width, size):
    """oneDNN's strided 1×1 kernel corrupts memory below 16 channels; the shortcut must not use it."""
    model = build_model("resnet10", 10, width, seed=0).to(memory_format=torch.channels_last)
    for batch in (16, 7, 16) if size < 100 else (16,):
        images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
        model(images).square().mean().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_the_shortcut_is_a_strided_convolution():
    x = torch.randn(2, 4, 7, 7)
    shortcut = Pointwise(4, 6, 1, 2, bias=False)
    expected = torch.nn.functional.conv2d(x.double(), shortcut.weight.double(), stride=2)
    torch.testing.assert_close(shortcut(x).double(), expected, atol=1e-5, rtol=1e-5)
