"""Images of one's own: folders and manifests, with everything that goes wrong in them."""

import os
import shutil
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from protolith.data.duplicates import dhash, near_identical
from protolith.data.own import faults, list_own, notes_on, read_own, relabelled
from protolith.data.sources import decode
from protolith.data.sources.found import silent
from protolith.data.tasks import load_task
from protolith.errors import UserError


def picture(seed, size=(24, 20)):
    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def write(place, count, start=0, suffix=".png"):
    place.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        picture(start + index).save(place / f"{index:03}{suffix}")


@pytest.fixture
def sites(tmp_path):
    """Two sites; the second lacks a class."""
    root = tmp_path / "sites"
    write(root / "north" / "cat", 10)
    write(root / "north" / "dog", 10, 100, ".jpg")
    write(root / "south" / "cat", 10, 200, ".webp")
    write(root / "south" / "cow", 10, 300, ".tiff")
    return root


def load(path, tmp_path, **options):
    return load_task(str(path), cache=tmp_path / "cache", size=16, **options)


def own(path):
    return read_own(list_own(path), 16, silent)


def test_sites_may_lack_classes(sites, tmp_path):
    task = load(sites, tmp_path)
    assert task.classes == ("cat", "cow", "dog")
    assert [domain.name for domain in task.domains] == ["north", "south"]
    assert task.domains[0].train.counts(3) == [8, 0, 8] and task.domains[1].test.counts(3) == [2, 2, 0]


def test_parts_of_a_site(sites, tmp_path):
    shutil.rmtree(sites / "south")
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        write(sites / "south" / part / "cat", count, 400 + 10 * count)
    task = load(sites, tmp_path)
    assert len(task.by_name["south"].train) == 4 and len(task.by_name["south"].test) == 3
    assert "south: the part 'val' is not used" in task.notes
    shutil.rmtree(sites / "south" / "test")
    assert len(load(sites, tmp_path).by_name["south"].test) == 2  # val stands in


def test_a_new_image_is_noticed(sites, tmp_path):
    before = load(sites, tmp_path)
    assert load(sites, tmp_path).file == before.file
    picture(999).save(sites / "north" / "cat" / "new.png")
    assert load(sites, tmp_path).file != before.file


def header_only_png(width, height):
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(b"\0" * 100)]
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def hostile(sites):
    """Everything that a folder can hold and an image reader fears."""
    place = sites / "north" / "cat"
    whole = (sites / "north" / "dog" / "000.jpg").read_bytes()
    (place / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (place / "empty.png").write_bytes(b"")
    (place / "text.png").write_text("I am a picture, believe me")
    (place / "huge.png").write_bytes(header_only_png(20_000, 20_000))
    picture(7, (1, 1)).save(place / "point.png")
    (place / "loop.png").symlink_to("loop.png")
    (place / "gone.png").symlink_to("nowhere.png")
    (sites / "north" / "back").symlink_to("..")
    (sites / "again").symlink_to(sites)
    (place / os.fsdecode(b"caf\xe9.png")).write_bytes(b"not an image either")
    return 8  # bad files


def test_a_hostile_folder_is_one_sentence_or_a_list(sites, tmp_path):
    bad = hostile(sites)
    with pytest.raises(UserError) as refused:
        load(sites, tmp_path)
    sentence = str(refused.value)
    assert f"{bad} of 48 images cannot be used, the first: 'north/cat/" in sentence and "--skip-bad" in sentence
    assert "\n" not in sentence and sentence.encode()
    found = {item.file: item.reason for item in own(sites).bad}
    assert len(found) == bad
    assert "truncated" in found["north/cat/cut.jpg"].lower()
    assert (
        found["north/cat/empty.png"]
        == found["north/cat/text.png"]
        == ("cannot be read (not an image that Pillow knows)")
    )
    assert found["north/cat/huge.png"].startswith("is too large to be decoded safely")
    assert found["north/cat/point.png"] == "is too small to show anything: 1 × 1 pixels"
    assert "symbolic link" in found["north/cat/loop.png"] and "no such file" in found["north/cat/gone.png"]
    assert "north/cat/caf\\udce9.png" in found
    task = load(sites, tmp_path, skip_bad=True)
    assert len(task.domains[0].train) == 16
    said = " ".join(task.notes)
    assert f"{bad} of 48 images could not be read and were left out" in said
    assert said.count("leads back to a folder that holds it and is not followed") == 2


def test_a_huge_header_takes_no_memory(tmp_path):
    import tracemalloc

    file = tmp_path / "huge.png"
    file.write_bytes(header_only_png(20_000, 20_000))
    tracemalloc.start()
    result = decode.decode([file], 16, "x", silent)
    assert result.bad and tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_names_that_are_not_utf8(sites, tmp_path):
    (sites / "south").rename(sites / os.fsdecode(b"s\xfcd"))
    with pytest.raises(UserError, match=r"the site name .* is not plain UTF-8"):
        load(sites, tmp_path)


def test_too_little_to_train_on(tmp_path):
    one = tmp_path / "one"
    for name in ("cat", "dog"):
        write(one / "north" / name, 1, ord(name[0]))
    with pytest.raises(UserError, match=r"site 'north' has no test image: a class needs two readable images"):
        load(one, tmp_path)
    shutil.rmtree(one / "north" / "dog")
    write(one / "north" / "cat", 12)
    with pytest.raises(UserError, match=r"there is only the class 'cat', and at least two are needed"):
        load(one, tmp_path)
    for part, name in (("train", "cat"), ("test", "cat"), ("test", "dog")):
        write(tmp_path / "two" / "north" / part / name, 3, len(part + name))
    assert faults(own(tmp_path / "two")) == ["no site has a training image of 'dog'"]
    (tmp_path / "three" / "north" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no site"):
        load(tmp_path / "three", tmp_path)


def test_wrong_places_for_images(sites, tmp_path):
    write(sites / "west", 3)
    with pytest.raises(UserError, match=r"site 'west' in .* holds images but no class folders"):
        load(sites, tmp_path)
    shutil.rmtree(sites / "west")
    picture(1).save(sites / "north" / "loose.png")
    write(sites / "north" / "cat" / "deeper", 1)
    notes = load(sites, tmp_path).notes
    assert "north: 1 image(s) outside the class folders are not used" in notes
    assert "north: folders inside class 'cat' are not read: 'deeper'" in notes


def test_files_that_are_no_task(tmp_path):
    (tmp_path / "list.txt").write_text("path,label,site")
    with pytest.raises(UserError, match="is a file but no manifest"):
        load_task(str(tmp_path / "list.txt"))
    with pytest.raises(UserError, match=r"the manifest '.*list\.csv' does not exist"):
        load_task(str(tmp_path / "list.csv"))


# Kinds of images


def test_transparency_floats_and_cmyk(tmp_path):
    red = Image.new("RGB", (8, 8), (200, 40, 30))
    clear = red.copy().convert("RGBA")
    clear.putalpha(0)
    clear.save(tmp_path / "clear.png")
    grey = Image.new("LA", (8, 8), (10, 0))
    grey.save(tmp_path / "grey.png")
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(tmp_path / "float.tif")
    red.convert("CMYK").save(tmp_path / "cmyk.tif")
    files = [tmp_path / name for name in ("clear.png", "grey.png", "float.tif", "cmyk.tif")]
    images = decode.decode(files, 8, "x", silent).images
    colours = [image[0, 0].tolist() for image in images]
    assert colours == [[255, 255, 255], [255, 255, 255], [128, 128, 128], [200, 40, 30]]


# Duplicates


def test_near_identical_images_are_found_and_others_are_not():
    base = torch.stack([torch.from_numpy(np.array(picture(i, (32, 32)))) for i in range(40)])
    noisy = (base[:5].int() + torch.randint(-3, 4, base[:5].shape)).clamp(0, 255).to(torch.uint8)
    pairs = near_identical(noisy, base)
    assert pairs.tolist() == [[i, i] for i in range(5)]
    assert len(near_identical(base[:20], base[20:])) == 0
    plain = torch.stack([torch.full((32, 32, 3), shade, dtype=torch.uint8) for shade in (10, 100, 200)])
    assert torch.equal(dhash(plain)[0], dhash(plain)[2])  # the hash sees no difference, the pixels do
    assert near_identical(plain[:1], plain[1:]).tolist() == []
    assert near_identical(base[:0], base).shape == (0, 2)


def test_duplicates_between_the_parts_are_named(sites):
    picture(3).save(sites / "north" / "cat" / "zz1.jpg", quality=90)  # as 003.png, and among those held out
    picture(203).save(sites / "north" / "cat" / "zz2.png")  # as one of the other site
    picture(500).save(sites / "north" / "cat" / "zz3.png")
    picture(203).save(sites / "north" / "cat" / "zz4.png")
    result = own(sites)
    same = [("north/cat/zz4.png", name) for name in ("north/cat/zz2.png", "south/cat/003.webp")]
    assert list(result.duplicates) == same
    assert any(
        note.startswith("1 test image(s) look the same as a training image") and "zz4.png" in note
        for note in notes_on(result)
    )


# Files that are not read, and labels that contradict each other


def test_files_of_other_types_are_counted_in_one_line(sites, tmp_path):
    place = sites / "north" / "cat"
    for name in ("a.heic", "b.HEIC", "c.avif", "plan.svg", "e.svg", "Thumbs.db", ".DS_Store", ".hidden.avif", "noend"):
        (place / name).write_bytes(b"x")
    (sites / "south" / "d.avif").write_bytes(b"x")
    heic = ".heic" not in decode.suffixes()
    said = next(note for note in load(sites, tmp_path, skip_bad=True).notes if "of types that are not read" in note)
    wanted = "7 files of types that are not read: .avif 2, .heic 2, .svg 2, no ending 1" if heic else "5 files"
    assert said.startswith(wanted) and ("pip install 'protolith[heic]'" in said) == heic
    (place / "e.avif").write_bytes(b"x")  # beside images that were decoded before
    assert any(".avif 3" in note for note in load(sites, tmp_path, skip_bad=True).notes)


def test_a_folder_whose_files_are_all_of_other_types_says_which(tmp_path):
    (tmp_path / "s" / "north" / "cat").mkdir(parents=True)
    (tmp_path / "s" / "north" / "cat" / "a.avif").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no image that can be read: 1 file of a type that is not read: \.avif 1"):
        load(tmp_path / "s", tmp_path)


def test_the_first_picture_of_a_gif_is_read(tmp_path):
    first, second = picture(1, (16, 16)), picture(2, (16, 16))
    for site in ("north", "south"):
        for label, seed in (("cat", 10), ("dog", 30)):
            write(tmp_path / "s" / site / label, 3, seed + len(site) * 7, ".gif")
    file = tmp_path / "s" / "north" / "cat" / "zz.gif"
    first.save(file, save_all=True, append_images=[second])
    task = load(tmp_path / "s", tmp_path)
    assert sum(len(domain.train) + len(domain.test) for domain in task.domains) == 13
    held = task.by_name["north"].test.images[0].int()  # the last of its class
    assert (held - torch.from_numpy(np.array(first)).int()).abs().float().mean() < 12  # 256 colours
    assert (held - torch.from_numpy(np.array(second)).int()).abs().float().mean() > 40


def test_heic_is_read_where_pillow_heif_is_installed(sites, tmp_path):
    heif = pytest.importorskip("pillow_heif", reason="HEIC needs pillow-heif (the extra 'heic')")
    colour = picture(7, (64, 48))
    heif.from_pillow(colour).save(sites / "north" / "cat" / "zz.heic", quality=95)
    task = load(sites, tmp_path)
    assert len(task.by_name["north"].train) + len(task.by_name["north"].test) == 21
    ours = decode.decode([sites / "north" / "cat" / "zz.heic"], 16, "x", silent).images[0].int()
    wanted = torch.from_numpy(np.array(colour.resize((16, 16), Image.Resampling.BILINEAR))).int()
    assert (ours - wanted).abs().float().mean() < 8


def test_a_file_that_only_claims_to_be_heic_is_no_other_format(tmp_path):
    """An ending opens one decoder more, never one that is not on the list."""
    (tmp_path / "a.heic").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    result = decode.decode([tmp_path / "a.heic"], 16, "x", silent)
    assert result.bad[0] == "cannot be read (not an image that Pillow knows)"


def test_classes_that_only_capitals_tell_apart_are_named(sites):
    (sites / "south" / "cat").rename(sites / "south" / "Cat")
    assert "the classes 'Cat', 'cat' differ by capitals only: one class?" in own(sites).notes
    (sites / "south" / "Cat").rename(sites / "south" / "cat")
    assert not any("capitals" in note for note in own(sites).notes)


def test_one_picture_under_two_labels_is_found_in_any_file_and_site(sites):
    assert relabelled(own(sites)) == []
    shutil.copy(sites / "north" / "cat" / "003.png", sites / "south" / "cow" / "zz.png")
    Image.open(sites / "north" / "dog" / "001.jpg").save(sites / "north" / "cat" / "same-pixels.png")
    shutil.copy(sites / "north" / "cat" / "005.png", sites / "north" / "cat" / "twice.png")  # one label: no matter
    found = {frozenset(group) for group in relabelled(own(sites))}
    assert found == {
        frozenset({"north/cat/003.png", "south/cow/zz.png"}),
        frozenset({"north/dog/001.jpg", "north/cat/same-pixels.png"}),
    }
