"""The seven numbers, against plain loops over pixels."""

import math

import pytest
import torch

from protolith.use.surface import surface


def by_hand(image):
    """What `surface` says of one image [3, h, w], pixel by pixel."""
    _, height, width = image.shape
    grey = [[sum(float(image[c, y, x]) for c in range(3)) / 3 for x in range(width)] for y in range(height)]
    flat = [value for row in grey for value in row]
    mean = sum(flat) / len(flat)
    contrast = math.sqrt(sum((value - mean) ** 2 for value in flat) / len(flat))
    colour = sum(
        abs(float(image[c, y, x]) - grey[y][x]) for c in range(3) for y in range(height) for x in range(width)
    ) / (3 * height * width)

    def steps(size):
        rows, columns = height // size, width // size
        block = [
            [
                sum(grey[y * size + i][x * size + j] for i in range(size) for j in range(size)) / size**2
                for x in range(columns)
            ]
            for y in range(rows)
        ]
        return [
            math.hypot(block[y + 1][x] - block[y][x], block[y][x + 1] - block[y][x])
            for y in range(rows - 1)
            for x in range(columns - 1)
        ]

    def log(value):
        return math.log(value + 1 / 255)

    def odds(value):
        return math.log((value + 1 / 255) / (1 - value + 1 / 255))

    means = [sum(found) / len(found) for found in map(steps, (1, 2, 4))]
    level = [step < 12.5 / 765 for step in steps(1)]
    return [odds(mean), log(contrast), log(colour), *map(log, means), odds(sum(level) / len(level))]


def images():
    rng = torch.Generator().manual_seed(0)
    random = torch.randint(0, 256, (3, 16, 20), generator=rng).double() / 255
    smooth = torch.linspace(0, 1, 320, dtype=torch.float64).reshape(1, 16, 20).repeat(3, 1, 1)
    lines = torch.ones(3, 16, 20, dtype=torch.float64)
    lines[:, 7] = 0
    return {"random": random, "smooth": smooth, "lines": lines, "black": 0 * lines, "white": 0 * lines + 1}


@pytest.mark.parametrize("name", list(images()))
def test_it_is_what_it_says(name):
    image = images()[name]
    assert surface(image[None])[0].tolist() == pytest.approx(by_hand(image), rel=1e-9, abs=1e-9)
    assert surface(image[None].float())[0].tolist() == pytest.approx(by_hand(image), rel=1e-4, abs=1e-4)


def test_no_colour_is_as_far_from_usual_as_is_much_too_much():
    rng = torch.Generator().manual_seed(0)
    usual = 0.5 + 0.1 * torch.randn(3, 16, 20, generator=rng, dtype=torch.float64)
    grey = usual.mean(dim=0, keepdim=True).repeat(3, 1, 1)
    colour = [float(surface(image[None])[0, 2]) for image in (grey, usual)]
    assert colour[1] - colour[0] > math.log(10)
