import torch

from protolith.data.augment import crop, flip, to_input
from protolith.data.domain import MEAN, STD
from protolith.seeds import generator


def images(n=20, size=9):
    return torch.randint(1, 256, (n, size, size, 3), generator=generator("images"), dtype=torch.uint8)


def test_every_crop_is_a_shift_with_zeros():
    original = images()
    cropped = crop(original, generator(0), 4)
    shifts = set()
    for before, after in zip(original, cropped, strict=True):
        found = []
        for down in range(-4, 5):
            for right in range(-4, 5):
                shifted = torch.zeros_like(before)
                for row in range(9):
                    for column in range(9):
                        if 0 <= row + down < 9 and 0 <= column + right < 9:
                            shifted[row, column] = before[row + down, column + right]
                if torch.equal(shifted, after):
                    found.append((down, right))
        assert len(found) == 1
        shifts.add(found[0])
    assert len(shifts) > 10


def test_flips_mirror_about_half_of_the_images():
    original = images(200)
    flipped = flip(original, generator(0))
    mirrored = 0
    for before, after in zip(original, flipped, strict=True):
        mirror = torch.stack([before[:, column] for column in range(8, -1, -1)], dim=1)
        assert torch.equal(after, before) or torch.equal(after, mirror)
        mirrored += torch.equal(after, mirror)
    assert 70 < mirrored < 130


def test_the_same_generator_gives_the_same_images():
    assert torch.equal(crop(images(), generator(5), 4), crop(images(), generator(5), 4))
    assert not torch.equal(crop(images(), generator(5), 4), crop(images(), generator(6), 4))


def test_inputs_are_normalised_and_channels_last():
    original = images(4)
    inputs = to_input(original, torch.device("cpu"))
    assert inputs.shape == (4, 3, 9, 9)
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    for channel in range(3):
        expected = (original[..., channel].double() / 255 - MEAN[channel]) / STD[channel]
        torch.testing.assert_close(inputs[:, channel].double(), expected, atol=1e-5, rtol=1e-5)
    assert original.dtype == torch.uint8  # untouched
