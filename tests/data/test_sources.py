"""Every layout is read from files in that layout; every wrong file gets its sentence."""

import bz2
import gzip
import io
import json
import os
import struct

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits, load_svmlight_file

from protolith.data.reading import by_class, by_position, read_found
from protolith.data.sources import classic, decode, folder, parquet
from protolith.data.sources.found import silent, spellings
from protolith.errors import UserError

DIGITS = tuple("0123456789")
RULE = "by-position"


def scans(size, start, stop):
    digits = load_digits()
    grey = np.rint(digits.images[start:stop] * (255 / 16)).astype(np.uint8)
    large = [np.asarray(Image.fromarray(scan).resize((size, size), Image.Resampling.BICUBIC)) for scan in grey]
    return np.array(large), digits.target[start:stop].astype(np.int64)


def repeated(grey):
    return torch.from_numpy(np.repeat(grey[..., None], 3, axis=3))


def expected(grey, size):
    small = [np.asarray(Image.fromarray(scan).resize((size, size), Image.Resampling.BILINEAR)) for scan in grey]
    return repeated(np.array(small))


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write_parquet(path, pixels, labels, *, image="image", label="label", names=None, paths=None, **columns):
    paths = paths or [None] * len(labels)
    values = [{"bytes": png(scan), "path": name} for scan, name in zip(pixels, paths, strict=True)]
    table = pa.table({image: values, label: list(labels), **columns})
    if names:
        features = {label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_images(place, count, colour=(10, 200, 30), suffix=".png", size=(12, 10)):
    place.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        Image.new("RGB", size, colour).save(place / f"{index:03}{suffix}")


# The data sets' own files


def write_idx(path, array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("inside", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_idx(tmp_path, inside, ending):
    train, test = scans(28, 0, 40), scans(28, 40, 60)
    for part, (images, labels) in (("train", train), ("t10k", test)):
        write_idx(tmp_path / inside / f"{part}-images-idx3-ubyte{ending}", images)
        write_idx(tmp_path / inside / f"{part}-labels-idx1-ubyte{ending}", labels)
    domain = read_found(classic.find(tmp_path, "mnist"), DIGITS, 32, RULE, silent)
    assert torch.equal(domain.train.images, expected(train[0], 32))
    assert domain.test.labels.tolist() == test[1].tolist()


def test_an_incomplete_idx_file_is_named(tmp_path):
    file = tmp_path / "train-images-idx3-ubyte"
    write_idx(file, scans(28, 0, 3)[0])
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte' is not a complete idx file of bytes\."):
        classic.read_idx(file)


def test_a_damaged_gz_file_is_named(tmp_path):
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(b"not gzip")
    with pytest.raises(UserError, match=r"idx3-ubyte\.gz' cannot be read: it is damaged or has another format"):
        classic.read_idx(file)


def test_usps_libsvm(tmp_path):
    parts = {"usps.bz2": scans(16, 0, 30), "usps.t.bz2": scans(16, 30, 45)}
    for name, (images, labels) in parts.items():
        values = images.reshape(len(images), 256) / 127.5 - 1
        lines = [
            f"{label + 1} " + " ".join(f"{i + 1}:{value:.6f}" for i, value in enumerate(row))
            for row, label in zip(values, labels, strict=True)
        ]
        (tmp_path / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    domain = read_found(classic.find(tmp_path, "usps"), DIGITS, 16, RULE, silent)
    for split, (images, labels) in zip((domain.train, domain.test), parts.values(), strict=True):
        assert torch.equal(split.images, repeated(images))
        assert split.labels.tolist() == labels.tolist()


def test_usps_libsvm_reads_as_scikit_learn_does(tmp_path):
    file = tmp_path / "usps.t.bz2"
    file.write_bytes(bz2.compress(b"3 1:-1 7:0.25 256:1e0\n\n10 2:-0.5 \n1\n"))
    images, labels = classic.read_libsvm(file)
    with bz2.open(file) as opened:
        values, theirs = load_svmlight_file(opened, n_features=256, zero_based=False)
    assert labels.tolist() == (theirs - 1).tolist() == [2, 9, 0]
    assert images.reshape(3, 256).tolist() == np.rint((values.toarray() + 1) * 127.5).tolist()
    for wrong in (b"3 0:1", b"3 257:1", b"3 1:x", b"3 1:1 2"):
        file.write_bytes(bz2.compress(wrong))
        with pytest.raises(UserError, match="is damaged or has another format"):
            classic.read_libsvm(file)


def test_usps_h5(tmp_path):
    parts = {"train": scans(16, 0, 30), "test": scans(16, 30, 45)}
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        for part, (images, labels) in parts.items():
            group = file.create_group(part)
            group["data"] = (images.reshape(-1, 256) / 255).astype(np.float32)
            group["target"] = labels
    domain = read_found(classic.find(tmp_path, "usps"), DIGITS, 16, RULE, silent)
    assert torch.equal(domain.train.images, repeated(parts["train"][0]))
    assert domain.test.labels.tolist() == parts["test"][1].tolist()


def test_svhn_mat(tmp_path):
    parts = {"train": scans(32, 0, 30), "test": scans(32, 30, 45)}
    for part, (images, labels) in parts.items():
        colour = np.stack([images, images // 2, 255 - images], axis=3)
        ten_for_zero = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        content = {"X": np.transpose(colour, (1, 2, 3, 0)), "y": ten_for_zero}
        savemat(tmp_path / f"{part}_32x32.mat", content, do_compression=True)
    domain = read_found(classic.find(tmp_path, "svhn"), DIGITS, 32, RULE, silent)
    grey = torch.from_numpy(parts["train"][0])
    assert torch.equal(domain.train.images, torch.stack([grey, grey // 2, 255 - grey], dim=3))
    assert domain.test.labels.tolist() == parts["test"][1].tolist()


def test_a_damaged_mat_file_is_named(tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"{part}_32x32.mat").write_bytes(b"MATLAB? no")
    with pytest.raises(UserError, match=r"train_32x32\.mat' cannot be read: it is damaged or has another format"):
        read_found(classic.find(tmp_path, "svhn"), DIGITS, 32, RULE, silent)


def test_syn_folders(tmp_path):
    for label in DIGITS:
        write_images(tmp_path / "synthetic_digits" / "imgs_train" / label, 3, suffix=".jpg")
        write_images(tmp_path / "synthetic_digits" / "imgs_valid" / label, 1, suffix=".jpg")
    domain = read_found(classic.find(tmp_path, "syn"), DIGITS, 32, RULE, silent)
    assert domain.train.counts(10) == [3] * 10
    assert domain.test.counts(10) == [1] * 10


# Parquet


@pytest.mark.parametrize("columns", [{}, {"image": "img", "label": "labels"}])
def test_parquet_with_official_parts(tmp_path, columns):
    for part, (start, stop) in {"train": (0, 30), "test": (30, 50), "extra": (50, 60)}.items():
        write_parquet(tmp_path / f"{part}-00000-of-00001.parquet", *scans(32, start, stop), names=DIGITS, **columns)
    found = parquet.find_domain(tmp_path, "mnist")
    assert found.given and found.classes == DIGITS
    domain = read_found(found, DIGITS, 32, RULE, silent)
    assert torch.equal(domain.train.images, repeated(scans(32, 0, 30)[0]))
    assert domain.test.labels.tolist() == scans(32, 30, 50)[1].tolist()


def test_parquet_labels_follow_the_class_names(tmp_path):
    images, _ = scans(16, 0, 12)
    write_parquet(tmp_path / "train.parquet", images, [0] * 6 + [1] * 6, names=["Back-Pack", "bike"])
    write_parquet(tmp_path / "test.parquet", images, ["bike"] * 12)
    domain = read_found(parquet.find_domain(tmp_path, "amazon"), ("bike", "back_pack"), 16, RULE, silent)
    assert domain.train.labels.tolist() == [1] * 6 + [0] * 6
    assert domain.test.labels.tolist() == [0] * 12


def test_parquet_with_a_domain_column_is_held_out_in_folder_order(tmp_path):
    images, _ = scans(16, 0, 40)
    names = [f"{index % 20:03}.jpg" for index in range(40)]
    domains = ["a"] * 20 + ["b"] * 20
    order = np.random.default_rng(0).permutation(40)  # the rule does not depend on the order of the rows
    write_parquet(
        tmp_path / "all.parquet",
        images[order],
        [int(index % 20 >= 10) for index in order],
        names=["x", "y"],
        paths=[names[index] for index in order],
        domain=[domains[index] for index in order],
    )
    assert parquet.find_shared(tmp_path, "c") is None
    domain = read_found(parquet.find_shared(tmp_path, "b"), ("x", "y"), 16, RULE, silent)
    assert torch.equal(domain.test.images, repeated(images[[28, 29, 38, 39]]))
    assert domain.test.labels.tolist() == [0, 0, 1, 1]
    assert len(domain.train) == 16


def test_office10_rows_are_in_the_order_of_the_rule(shared_data):
    file = next((shared_data / "office10").glob("*.parquet"))
    classes = parquet.read_schema(file).classes
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        rows = [row for _, row in parquet._rows(file, domain, "", classes, parquet.COLUMNS)]
        assert parquet._in_folder_order([file], domain, classes, parquet.COLUMNS) == rows


def test_parquet_that_is_none(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(UserError, match=r"train\.parquet' is not a readable parquet file"):
        parquet.find_domain(tmp_path, "mnist")


def test_parquet_without_labels(tmp_path):
    write_parquet(tmp_path / "train.parquet", *scans(16, 0, 3), label="digit")
    with pytest.raises(UserError, match=r"has no label column: it needs label or labels, and has image, digit\."):
        parquet.find_domain(tmp_path, "mnist")


def test_parquet_with_a_label_out_of_range(tmp_path):
    write_parquet(tmp_path / "all.parquet", scans(16, 0, 12)[0], [3] * 12)
    with pytest.raises(UserError, match=r"has the label 3, and its labels must be 0 to 1\."):
        read_found(parquet.find_domain(tmp_path, "a"), ("x", "y"), 16, RULE, silent)


def test_parquet_with_a_strange_label(tmp_path):
    write_parquet(tmp_path / "all.parquet", scans(16, 0, 12)[0], ["zebra"] * 12)
    with pytest.raises(UserError, match=r"has labels that are no classes of its task: 'zebra'\."):
        read_found(parquet.find_domain(tmp_path, "a"), ("x", "y"), 16, RULE, silent)


def test_parquet_with_a_damaged_image(tmp_path):
    rows = [{"bytes": png(scan), "path": None} for scan in scans(16, 0, 12)[0]]
    rows[4] = {"bytes": b"nothing", "path": "dog/004.jpg"}
    pq.write_table(pa.table({"image": rows, "label": [0] * 12}), tmp_path / "all.parquet")
    with pytest.raises(UserError, match=r"image dog/004\.jpg in all\.parquet cannot be read"):
        read_found(parquet.find_domain(tmp_path, "a"), ("x",), 16, RULE, silent)


# Class folders


def test_folder_holds_out_by_position(tmp_path):
    write_images(tmp_path / "north" / "cat", 12)
    write_images(tmp_path / "north" / "dog", 8, suffix=".JPG")
    domain = read_found(folder.find(tmp_path / "north", "north"), ("cat", "dog"), 32, RULE, silent)
    assert domain.test.labels.tolist() == [0, 0, 1, 1]  # positions 8, 9 and 18, 19
    assert len(domain.train) == 16


@pytest.mark.parametrize("test", ["test", "val"])
def test_folder_with_its_own_test_part(tmp_path, test):
    for part, count in (("train", 3), (test, 2)):
        for name in ("cat", "train"):  # a class may have the name of a part
            write_images(tmp_path / "north" / part / name, count)
    found = folder.find(tmp_path / "north", "north")
    assert found.given
    domain = read_found(found, ("cat", "train"), 16, RULE, silent)
    assert domain.train.counts(2) == [3, 3] and domain.test.counts(2) == [2, 2]


def test_folder_with_test_and_val_uses_test_and_says_so(tmp_path):
    for part, count in (("train", 3), ("val", 1), ("test", 2)):
        write_images(tmp_path / part / "cat", count)
    found = folder.find(tmp_path, "north")
    assert len(read_found(found, ("cat",), 16, RULE, silent).test) == 2
    assert found.notes == ("north: the part 'val' is not used",)


def test_classes_named_like_parts_are_classes(tmp_path):
    for name in ("test", "train"):
        write_images(tmp_path / "north" / name, 10)
    assert folder.find(tmp_path / "north", "north").classes == ("test", "train")


def test_folder_errors_name_the_thing(tmp_path):
    write_images(tmp_path / "north" / "cat", 10)
    (tmp_path / "north" / "dog").mkdir()
    with pytest.raises(UserError, match=r"domain 'north' in '.*north' has other classes than its task: it lacks 'dog'"):
        folder.find(tmp_path / "north", "north").rows(("cat", "dog"))
    (tmp_path / "north" / "cat").rename(tmp_path / "west")
    with pytest.raises(UserError, match=r"site 'west' in .* holds images but no class folders"):
        folder.find(tmp_path / "west", "west")


def test_a_test_class_that_was_never_trained_is_named(tmp_path):
    write_images(tmp_path / "train" / "cat", 2)
    write_images(tmp_path / "test" / "cow", 2)
    with pytest.raises(UserError, match=r"has test images of 'cow' and none to train on\."):
        folder.find(tmp_path, "north")


def test_a_test_part_without_images_is_none(tmp_path):
    write_images(tmp_path / "train" / "cat", 10)
    (tmp_path / "test").mkdir()
    found = folder.find(tmp_path, "north")
    assert not found.given and len(read_found(found, ("cat",), 16, RULE, silent).test) == 2


def test_a_corrupt_image_is_named(tmp_path):
    write_images(tmp_path / "cat", 12)
    good = (tmp_path / "cat" / "003.png").read_bytes()
    (tmp_path / "cat" / "003.png").write_bytes(good[: len(good) // 2])
    with pytest.raises(UserError, match=r"image .*003\.png cannot be read \(.*\)\."):
        read_found(folder.find(tmp_path, "north"), ("cat",), 16, RULE, silent)


def test_too_few_images_for_a_test_part(tmp_path):
    write_images(tmp_path / "cat", 8)
    with pytest.raises(UserError, match=r"domain 'north' has only 8 images, too few to hold out a test part"):
        read_found(folder.find(tmp_path, "north"), ("cat",), 16, RULE, silent)


def test_other_classes_than_the_task(tmp_path):
    with pytest.raises(UserError, match=r"here has other classes than its task: it lacks 'cat' and also has 'cow'\."):
        spellings(["cow", "dog"], ["cat", "dog"], "here")
    assert spellings(["a-b", "ab"], ["ab", "a-b"], "here") == {
        "a-b": "a-b",
        "ab": "ab",
    }  # exact names are never confused


# Decoding


@pytest.mark.parametrize("limit", [100, 40])  # Pillow warns above the limit and refuses above twice the limit
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_named(tmp_path, monkeypatch, limit):
    write_images(tmp_path, 1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    found = decode.decode([tmp_path / "000.png"], 16, "x", silent)
    assert found.bad[0].startswith("is too large to be decoded safely")


def test_modes_and_orientation(tmp_path):
    grey = scans(16, 0, 1)[0][0]
    files = {}
    Image.fromarray(grey).save(files.setdefault("L", tmp_path / "l.tif"))
    Image.fromarray(grey).convert("P").save(files.setdefault("P", tmp_path / "p.bmp"))
    Image.fromarray(grey).convert("LA").save(files.setdefault("LA", tmp_path / "la.png"))
    Image.fromarray(grey).convert("RGBA").save(files.setdefault("RGBA", tmp_path / "rgba.webp"), lossless=True)
    Image.fromarray(grey.astype(np.uint16) * 257).save(files.setdefault("I;16", tmp_path / "sixteen.png"))
    turned = Image.fromarray(grey).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 270 degrees
    turned.save(files.setdefault("EXIF", tmp_path / "exif.png"), exif=exif)
    images = decode.decode(list(files.values()), 16, "x", silent).images
    for name, image in zip(files, images, strict=True):
        assert torch.equal(image, repeated(grey[None])[0]), name


def test_aspect_is_squashed_bilinear_with_antialiasing(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = decode.decode([tmp_path / "a.png"], 32, "x", silent).images[0]
    scaled = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), (32, 32), mode="bilinear", antialias=True
    )[0].permute(1, 2, 0)
    assert (image.float() - scaled).abs().max() <= 1.01


def test_progress_counts_images(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "CHUNK", 2)
    said = []
    decode.decode(scans(8, 0, 25)[0], 16, "mnist", said.append)
    assert said == ["mnist: 20 of 25 images", "mnist: 25 of 25 images"]


def test_hold_out_positions():
    assert torch.nonzero(by_position(torch.zeros(25))).flatten().tolist() == [8, 9, 18, 19]


def test_hold_out_by_class():
    def held(*counts):
        labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        return [int(part.sum()) for part in torch.split(by_class(labels), counts)]

    assert held(1, 2, 3, 8, 9, 10, 12, 13, 20, 25, 100) == [0, 1, 1, 2, 2, 2, 2, 3, 4, 5, 20]
    labels = torch.zeros(23, dtype=torch.int64)
    assert torch.nonzero(by_class(labels)).flatten().tolist() == [8, 9, 18, 19, 22]


def test_what_is_not_an_image_of_a_known_kind_is_not_opened(tmp_path):
    """Pillow would hand EPS to another program, and wait for a pipe."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps", format="EPS")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    kinds = ("PNG", "JPEG", "MPO", "TIFF", "WEBP", "BMP", "GIF", "PPM")
    for kind in kinds:
        Image.new("RGB", (8, 8)).save(tmp_path / kind, format=kind)
    found = decode.decode([tmp_path / n for n in ("a.png", "b.png", *kinds)], 8, "", silent)
    assert found.bad == {0: "cannot be read (not an image that Pillow knows)", 1: "is not a regular file"}


@pytest.mark.parametrize(("width", "height"), [(40, 20), (20, 40), (31, 31)])
def test_what_is_not_square_is_squashed_cropped_or_padded(width, height):
    grey = np.zeros((height, width), dtype=np.uint8)
    grey[height // 4 : height - height // 4, width // 4 : width - width // 4] = 200
    image = Image.fromarray(grey)
    side, longer = min(width, height), max(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    ways = {
        "squash": image,
        "crop": image.crop((left, top, left + side, top + side)),
        "pad": Image.new("L", (longer, longer)),
    }
    ways["pad"].paste(image, ((longer - width) // 2, (longer - height) // 2))
    for resize, square in ways.items():
        expected = np.asarray(square.resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
        found = decode.decode([grey], 16, "x", silent, decode.Fit(resize)).images[0, :, :, 0].numpy().astype(int)
        # Beside a crop's edge the resampling still sees what is cut off; padding comes after the resize.
        assert np.abs(found - expected).max() <= (0 if resize == "squash" else 40), resize


def test_every_source_is_read_by_the_same_rule(tmp_path):
    """The same images as class folders and as parquet files have the same test part, whichever the rule."""
    images, labels = scans(16, 0, 43)
    order = np.argsort(labels, kind="stable")
    names = [f"{index:03}.png" for index in range(43)]
    for index, (image, label) in enumerate(zip(images[order], labels[order], strict=True)):
        place = tmp_path / "folder" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / names[index])
    write_parquet(tmp_path / "files" / "all.parquet", images[order], labels[order], names=DIGITS, paths=names)
    for rule in ("given", "by-position", "by-class"):
        first, second = (
            read_found(found, DIGITS, 16, rule, silent)
            for found in (folder.find(tmp_path / "folder", "a"), parquet.find_domain(tmp_path / "files", "a"))
        )
        assert torch.equal(first.test.images, second.test.images) and torch.equal(first.test.labels, second.test.labels)
        assert (len(first.test) == 8) == (rule != "by-class")


def test_a_share_of_a_squashed_image_is_its_middle_on_both_sides():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 80, 3), dtype=np.uint8))
    by = Image.Resampling.LANCZOS
    expected = image.resize((16, 16), by, box=(10, 5, 70, 35))
    assert decode.Fit("squash", "lanczos", 0.75).square(image, 16).tobytes() == expected.tobytes()
    assert decode.Fit("squash", "lanczos").square(image, 16).tobytes() == image.resize((16, 16), by).tobytes()
    small, large = decode.Fit("crop", "nearest", 0.5).square(image, 20), image.crop((30, 10, 50, 30))
    assert small.tobytes() == large.tobytes()
