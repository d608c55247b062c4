"""Views: each kind against a plain loop, and draws that follow from domain, row and view alone."""

import math
from statistics import NormalDist

import pytest
import torch

from protolith.data.styles import FIXED, statistics
from protolith.encoding import Views
from protolith.encoding.views import DRAWN, KINDS, crop
from protolith.errors import UserError


def pictures(count=5, size=10, seed=0, low=0, high=256):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (count, size, size, 3), dtype=torch.uint8, generator=rng)


def numbers(count=5, seed=0):
    return torch.rand(count, DRAWN, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_of_the_images_kind_and_of_each_image_alone(kind):
    images, drawn = pictures(), numbers()
    found = KINDS[kind](images, drawn)
    assert found.dtype == torch.uint8 and found.shape == images.shape
    assert not torch.equal(found, images)
    assert torch.equal(found[3:4], KINDS[kind](images[3:4], drawn[3:4]))


def test_mirror_and_grey_pixel_by_pixel():
    images = pictures(2)
    mirrored, grey = KINDS["mirror"](images, numbers(2)), KINDS["grey"](images, numbers(2))
    for n in range(2):
        for y in range(10):
            for x in range(10):
                red, green, blue = images[n, y, x].tolist()
                assert mirrored[n, y, x].tolist() == images[n, y, 9 - x].tolist()
                light = 0.299 * red + 0.587 * green + 0.114 * blue
                assert all(abs(value - light) <= 0.51 for value in grey[n, y, x].tolist())


def test_edges_are_dark_lines_on_white():
    images = torch.full((2, 10, 10, 3), 40, dtype=torch.uint8)
    images[1, :, 5:] = 200
    flat, step = KINDS["edges"](images, numbers(2))
    assert bool((flat == 255).all())
    assert (
        bool((step[:, 4:6] == 255 * 0).all()) and bool((step[:, :4] == 255).all()) and bool((step[:, 6:] == 255).all())
    )


def test_edges_are_sobels():
    image = pictures(1, seed=3)
    light = [[sum(w * v for w, v in zip((0.299, 0.587, 0.114), pixel, strict=True)) for pixel in row]
             for row in image[0].tolist()]  # fmt: skip

    def at(y, x):
        return light[min(max(y, 0), 9)][min(max(x, 0), 9)]

    slopes = torch.zeros(10, 10)
    for y in range(10):
        for x in range(10):
            right = sum(w * (at(y + d, x + 1) - at(y + d, x - 1)) for d, w in ((-1, 1), (0, 2), (1, 1)))
            down = sum(w * (at(y + 1, x + d) - at(y - 1, x + d)) for d, w in ((-1, 1), (0, 2), (1, 1)))
            slopes[y, x] = math.hypot(right, down)
    expected = (255 * (1 - slopes / (4 * slopes.mean()))).clamp(0, 255)
    assert float((KINDS["edges"](image, numbers(1))[0, :, :, 1].float() - expected).abs().max()) <= 0.51


def test_colours_are_those_of_a_style_that_is_nobodys():
    images, drawn = pictures(seed=4, low=110, high=140), numbers(seed=2).clamp(0.3, 0.7)  # so that nothing is cut off
    found = statistics(KINDS["colour"](images, drawn))
    for n in range(5):
        for channel in range(6):
            target = FIXED[channel] + NormalDist().inv_cdf(float(drawn[n, 5 + channel])) * FIXED[6 + channel]
            assert abs(float(found[n, channel]) - float(target)) < 0.01


def test_a_crop_is_a_part_of_the_image():
    size = 64
    x = torch.arange(size, dtype=torch.uint8).mul(3).view(1, 1, -1, 1).expand(1, size, size, 1)
    images = torch.cat([x, x.transpose(1, 2), torch.zeros_like(x)], dim=3).repeat(50, 1, 1, 1)
    found, areas = crop(images, numbers(50)).float() / 3, []
    for one in found:
        wide = float(one[0, -1, 0] - one[0, 0, 0] + 1) / size
        high = float(one[-1, 0, 1] - one[0, 0, 1] + 1) / size
        assert bool((one[0].diff(dim=0)[:, 0] >= 0).all())
        areas.append(wide * high)
    assert 0.6 < min(areas) < 0.75 and 0.9 < max(areas) <= 1.01
    whole = torch.tensor([[1.0, 0.5, 0.3, 0.8] + [0.0] * (DRAWN - 4)])
    assert torch.equal(crop(pictures(1), whole), pictures(1))


def test_views_come_in_turn_and_never_twice():
    views, images = Views(12), pictures(3, size=24)
    assert views.named[:7] == ("crop", "mirror", "colour", "grey", "edges", "crop", "mirror")
    found = views.of(images, views.draw("a", 3))
    assert found.shape == (3, 13, 24, 24, 3) and torch.equal(found[:, 0], images)
    for view in range(1, 13):
        for before in range(view):
            assert not torch.equal(found[0, view], found[0, before])


def test_draws_follow_from_domain_row_and_view():
    five, nine = Views(5).draw("a", 40), Views(9).draw("a", 40)
    assert torch.equal(five, nine[:5]) and five.shape == (5, 40, DRAWN)
    assert not torch.equal(five, Views(5).draw("b", 40))
    assert len(five.flatten().unique()) > 0.999 * five.numel()
    assert torch.equal(Views(5).draw("a", 40), five)
    assert Views().draw("a", 40).shape == (0, 40, DRAWN)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": -1}, "views must be from 0 to 100, not -1"),
        ({"count": 101}, "views must be from 0 to 100"),
        ({"count": 2, "kinds": ()}, "2 views of no kind"),
        ({"count": 2, "kinds": ("gray",)}, "unknown kind of view 'gray'. Did you mean 'grey'?"),
    ],
)
def test_views_that_cannot_be(given, words):
    with pytest.raises(UserError) as error:
        Views(**given)
    assert words in str(error.value)
