"""The embedded task: the same bytes every time, and nothing that is in two places."""

from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from protolith.data.drawn import glyphs, mini
from protolith.data.spec import all_tasks

PARTS = ("train", "test")


@pytest.fixture(scope="module")
def domains():
    return {name: mini.draw(name) for name in all_tasks()["mini"].domains}


def splits(domains):
    return [(name, part, getattr(domain, part)) for name, domain in domains.items() for part in PARTS]


def test_two_builds_are_byte_identical(domains):
    glyphs.cells.cache_clear()
    glyphs.regions.cache_clear()
    for name, domain in domains.items():
        again = mini.draw(name)
        for part in PARTS:
            first, second = getattr(domain, part), getattr(again, part)
            assert torch.equal(first.images, second.images) and torch.equal(first.labels, second.labels)


def test_names_shapes_and_sizes(domains):
    assert list(domains) == ["pen", "photo", "print", "street"]
    for name, part, split in splits(domains):
        assert split.images.dtype == torch.uint8 and split.images.shape[1:] == (32, 32, 3), name
        assert (600 <= len(split) <= 900) if part == "train" else (250 <= len(split) <= 400), name


def test_classes_are_equally_frequent_and_mixed(domains):
    for name, part, split in splits(domains):
        assert len(set(split.counts(10))) == 1, (name, part)
        assert len(split.labels[:50].unique()) > 5, (name, part)


def test_no_image_is_there_twice(domains):
    images = torch.cat([split.images.flatten(1) for _, _, split in splits(domains)])
    assert len(images.unique(dim=0)) == len(images)


def test_no_scan_is_in_two_parts():
    used = mini.scans()
    assert set(used) == {(name, part) for name in ("pen", "photo") for part in PARTS}
    for one, other in combinations(used.values(), 2):
        assert not set(one) & set(other)
    assert all(len(set(scans)) == len(scans) for scans in used.values())


@pytest.mark.parametrize("part", PARTS)
def test_pen_shows_the_scans_that_it_names(domains, part):
    split, digits = getattr(domains["pen"], part), load_digits()
    # Independent of how mini enlarges: shrink the images back and look for the nearest of all 1,797 scans.
    shrunk = [np.asarray(Image.fromarray(image[2:-2, 2:-2]).resize((8, 8))) for image in split.images.numpy()]
    shown = np.array(shrunk)[..., 0].reshape(len(split), 64) / 255 * 16
    distance = (digits.data**2).sum(axis=1) - 2 * shown @ digits.data.T  # squared, but for a constant
    assert np.array_equal(distance.argmin(axis=1), mini.scans()["pen", part])
    assert np.array_equal(digits.target[mini.scans()["pen", part]], split.labels.numpy())


@pytest.mark.parametrize("part", PARTS)
def test_photo_is_the_difference_of_its_scan_and_a_patch_of_its_own_region(domains, part):
    split, digits = getattr(domains["photo"], part), load_digits()
    assert np.array_equal(digits.target[mini.scans()["photo", part]], split.labels.numpy())
    windows = {each: _border_windows(each) for each in PARTS}
    other = "test" if part == "train" else "train"
    for image in split.images[:120].numpy():
        # Nothing of the digit is in the two outermost rows, so they are the photograph's own pixels.
        seen = {_rows(image), _rows(image[:, ::-1])}
        assert seen & windows[part]
        if image[:2].std() > 8:  # plain sky looks the same everywhere
            assert not seen & windows[other]


def _rows(image):
    return np.ascontiguousarray(image[:2]).tobytes()


def _border_windows(part):
    found = set()
    for reduction in glyphs.REDUCTIONS:
        for band in glyphs.regions(part, reduction):
            windows = np.lib.stride_tricks.sliding_window_view(band, (2, 32), axis=(0, 1))
            flat = np.ascontiguousarray(windows.transpose(0, 1, 3, 4, 2)).reshape(-1, 2 * 32 * 3)
            found.update(row.tobytes() for row in flat)
    return found


def test_photograph_regions_do_not_overlap():
    columns = {part: {c for band in glyphs.COLUMNS[part] for c in range(640)[band]} for part in PARTS}
    assert not columns["train"] & columns["test"]
    for name in glyphs.PHOTOGRAPHS:
        photograph = load_sample_image(name)
        assert photograph.shape[1] == 640
        for part in PARTS:
            bands = [photograph[:, band] for band in glyphs.COLUMNS[part]]
            kept = glyphs.regions(part, 1)
            assert all(any(np.array_equal(band, region) for region in kept) for band in bands)


def test_faces_of_training_and_test_differ():
    assert not set(glyphs.TRAIN_FACES) & set(glyphs.TEST_FACES)
    drawn = [face.tobytes() for part in PARTS for face in glyphs.cells(part)]
    assert len(set(drawn)) == len(drawn) == len(glyphs.TRAIN_FACES) + len(glyphs.TEST_FACES)


def test_fonts_come_from_inside_the_two_packages():
    inside = Path(matplotlib.__file__).parent
    for face in glyphs.TRAIN_FACES + glyphs.TEST_FACES:
        font = face.font(20)
        if face.file is None:
            assert not isinstance(font.path, str)  # Pillow carries its own font in its source text
        else:
            assert Path(font.path).is_relative_to(inside) and Path(font.path).is_file()


def test_every_face_has_ten_different_digits_inside_their_cells():
    for part in PARTS:
        cells = glyphs.cells(part)
        assert all(len({cell.tobytes() for cell in face}) == 10 for face in cells)
        assert cells.max(axis=(2, 3)).min() > 200
        edges = np.concatenate([cells[..., 0], cells[..., -1], cells[..., 0, :], cells[..., -1, :]])
        assert not edges.any()
