"""Styles against plain loops."""

import math

import pytest
import torch

from protolith.data.styles import draw, exchange, pooled, recolour, statistics, style_of


def images(n=5, size=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=rng)


def mean_and_deviation(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def plain_statistics(image):
    """Three means, then three deviations."""
    found = []
    for channel in range(3):
        found.append(mean_and_deviation([pixel[channel] / 255 for row in image.tolist() for pixel in row]))
    return [mean for mean, _ in found] + [deviation for _, deviation in found]


def plain_style(stack):
    columns = list(zip(*[plain_statistics(image) for image in stack], strict=True))
    found = [mean_and_deviation(list(column)) for column in columns]
    return [mean for mean, _ in found] + [deviation for _, deviation in found]


def close(tensor, wanted, tolerance=1e-5):
    torch.testing.assert_close(tensor.double(), torch.tensor(wanted, dtype=torch.float64), atol=tolerance, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 7, 1030])  # more than are looked at together
def test_statistics_and_style(n):
    stack = images(n, size=4 if n < 100 else 2)
    close(statistics(stack)[:8], [plain_statistics(image) for image in stack[:8]])
    close(style_of(stack), plain_style(stack))


def test_the_style_of_flat_images_has_no_deviation():
    flat = torch.full((3, 4, 4, 3), 51, dtype=torch.uint8)
    close(style_of(flat), [0.2] * 3 + [0.0] * 9)


def test_a_recoloured_image_has_exactly_the_target_statistics():
    stack = images(9)
    target = torch.rand(9, 6, generator=torch.Generator().manual_seed(1))
    new = recolour(stack, target)  # not clipped yet
    for image, wanted in zip(new, target.tolist(), strict=True):
        found = [
            mean_and_deviation([pixel[channel] / 255 for row in image.tolist() for pixel in row])
            for channel in range(3)
        ]
        assert [mean for mean, _ in found] == pytest.approx(wanted[:3], abs=1e-5)
        assert [deviation for _, deviation in found] == pytest.approx(wanted[3:], abs=1e-5)


def test_recolouring_to_its_own_statistics_changes_nothing():
    stack = images(4)
    torch.testing.assert_close(recolour(stack, statistics(stack)), stack.float(), atol=1e-2, rtol=0)


def test_a_flat_image_takes_the_colour_and_no_noise():
    flat = torch.full((1, 4, 4, 3), 10, dtype=torch.uint8)
    new = recolour(flat, torch.tensor([[0.5, 0.25, 1.0, 0.3, 0.3, 0.3]]))
    torch.testing.assert_close(new, torch.tensor([127.5, 63.75, 255.0]).expand(1, 4, 4, 3), atol=1e-3, rtol=0)


def test_pooled_styles_are_those_of_all_images_together():
    """With as many images at each client, the pooled style is the style of all of them."""
    stacks = [images(6, seed=seed) for seed in range(4)]
    styles = torch.stack([style_of(stack) for stack in stacks])
    found = pooled(styles, torch.tensor([0, 1, 0, 1]))
    close(found[0], plain_style(torch.cat([stacks[0], stacks[2]])))
    close(found[1], plain_style(torch.cat([stacks[1], stacks[3]])))
    close(pooled(styles[:1], torch.tensor([0]))[0], styles[0].tolist())


@pytest.mark.parametrize("how", ["joint", "independent", "mean"])
def test_draws_have_the_mean_and_deviation_of_the_style(how):
    style = torch.tensor([0.5, 0.4, 0.6, 0.2, 0.25, 0.3, 0.05, 0.04, 0.06, 0.02, 0.03, 0.01])
    found = draw(style.expand(20_000, 12), how, torch.Generator().manual_seed(0))
    wanted = [0.0] * 6 if how == "mean" else style[6:].tolist()
    close(found.mean(dim=0), style[:6].tolist(), 2e-3)
    close(found.std(dim=0), wanted, 2e-3)
    together = torch.corrcoef(found[:, :3].T)[0, 1]
    assert how == "mean" or float(together) == pytest.approx(1.0 if how == "joint" else 0.0, abs=0.05)


def test_a_fixed_draw_knows_no_site():
    dark, bright = (torch.full((20_000, 12), level) for level in (0.1, 0.9))
    found = [draw(style, "fixed", torch.Generator().manual_seed(0)) for style in (dark, bright)]
    assert torch.equal(*found)
    close(found[0].mean(dim=0), [0.5] * 3 + [0.2] * 3, 5e-3)
    close(found[0].std(dim=0), [0.2] * 3 + [0.08] * 3, 5e-3)


def test_the_share_of_recoloured_images():
    stack = images(2000, size=2)
    styles = torch.rand(3, 12, generator=torch.Generator().manual_seed(2))
    for probability in (0.0, 0.3, 1.0):
        new = exchange(stack, styles, probability, "independent", torch.Generator().manual_seed(3))
        assert new.dtype == torch.uint8
        changed = (new != stack).flatten(1).any(dim=1).double().mean()
        assert float(changed) == pytest.approx(probability, abs=0.04)


def test_exchange_moves_images_towards_the_styles():
    """Dark images, one bright style: means end between the two, evenly spread by the random amount."""
    dark = images(4000, size=2) // 8
    bright = torch.tensor([0.9] * 3 + [0.05] * 3 + [0.0] * 6)[None]
    new = statistics(exchange(dark, bright, 1.0, "mean", torch.Generator().manual_seed(0)))[:, :3].mean(dim=1)
    old = statistics(dark)[:, :3].mean(dim=1)
    amount = (new - old) / (0.9 - old)
    assert float(amount.min()) > -0.02 and float(amount.max()) < 1.02
    assert float(amount.mean()) == pytest.approx(0.5, abs=0.02)
