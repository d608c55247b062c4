import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from site_helpers import scene, write_sites
from sklearn.covariance import ledoit_wolf

from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.use import familiarity
from protolith.use.familiarity import Familiarity, familiarity_of, shrunk_covariance
from protolith.use.predict import Predictor, image_files
from protolith.use.trained import open_trained


@pytest.fixture
def images(tmp_path):
    """Two scenes of a site, noise, and a file that is no image."""
    rng = np.random.default_rng(9)
    for label in (0, 1):
        scene(rng, label, 1).save(tmp_path / f"known-{label}.png")
    Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(tmp_path / "noise.png")
    (tmp_path / "broken.jpg").write_bytes(b"")
    return tmp_path


def test_predictions_agree_with_the_model(run):
    task = load_task(run.config.task)
    predictor = Predictor(run)
    for domain in task.domains:
        judged = predictor(domain.test.images)
        accuracy = 100 * float((judged.labels == domain.test.labels).double().mean())
        assert accuracy == pytest.approx(run.rounds[-1].accuracy[domain.name], abs=1e-6)
        assert bool(((judged.confidence >= 0.5) & (judged.confidence <= 1)).all())
        assert bool(((judged.familiarity > 0) & (judged.familiarity <= 1)).all())


def test_tables_csv_and_json(protolith, run, images):
    code, out, err = protolith("predict", run.path, images)
    assert code == 0 and "cannot be read" in out and "4 of 4 images" in err
    assert out.splitlines()[0].split("  ")[-1] == "familiarity (low is strange)"  # people; programs get one word
    code, out, _ = protolith("predict", run.path, images, "--csv")
    assert out.splitlines()[0] == "file,label,confidence,familiarity,unfamiliar,error"
    rows = {row["file"].rsplit("/", 1)[-1]: row for row in csv.DictReader(io.StringIO(out))}
    assert rows["known-0.png"]["label"] in ("beam", "post") and rows["broken.jpg"]["error"]
    code, out, _ = protolith("predict", run.path, images / "known-0.png", "--json")
    (only,) = json.loads(out)
    assert only["label"] == rows["known-0.png"]["label"] and only["unfamiliar"] is False


def test_what_is_wrong_is_one_sentence(protolith, run, images, tmp_path):
    for arguments, words in (
        ((run.path, tmp_path / "nowhere"), "is neither a file nor a folder"),
        ((tmp_path, images), "is not a run directory"),
        ((run.path, images, "--false-alarms", "2"), "a rate between 0 and 1"),
        ((run.path, images, "--csv", "--json"), "choose one"),
    ):
        code, out, err = protolith("predict", *arguments)
        assert code == 2 and out == "" and words in err and "Traceback" not in err
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no image"):
        image_files([tmp_path / "empty"])


def test_a_path_that_does_not_exist_is_seen_before_anything_is_computed(protolith, run, images, tmp_path):
    stored = run.path / familiarity.FILE
    stored.unlink(missing_ok=True)
    code, out, err = protolith("predict", run.path, images, tmp_path / "nowhere")
    assert code == 2 and out == "" and "nowhere' is neither a file nor a folder" in err
    assert len(err.splitlines()) == 1 and not stored.exists()


def test_files_of_other_types_are_counted_and_not_silently_skipped(protolith, run, images):
    for name in ("a.avif", "b.avif", "c.svg", "Thumbs.db"):
        (images / name).write_bytes(b"x")
    code, out, err = protolith("predict", run.path, images)
    assert code == 0 and "3 files of types that are not read: .avif 2, .svg 1" in err
    assert "avif" not in out
    (images / "only").mkdir()
    (images / "a.avif").rename(images / "only" / "a.avif")
    code, _, err = protolith("predict", run.path, images / "only")
    assert code == 2 and "holds no image" in err and ".avif 1" in err


def test_folders_are_read_below_and_links_are_not_followed(images):
    (images / "deeper").mkdir()
    (images / "deeper" / "loop").symlink_to(images)
    Image.new("RGB", (8, 8)).save(images / "deeper" / "a.png")
    names = [file.name for file in image_files([images])]
    assert sorted(names) == ["a.png", "broken.jpg", "known-0.png", "known-1.png", "noise.png"]


# Familiarity


def plain(calibration, control=()):
    """One prototype and one surface at the origin, distances as they are."""
    return Familiarity(
        sites=("a",),
        classes=("x", "y"),
        prototypes=torch.zeros(1, 2, 3),
        counts=torch.tensor([[5, 0]]),
        whitening=torch.eye(3, dtype=torch.float64),
        surfaces=torch.zeros(1, 7, dtype=torch.float64),
        surface_whitening=torch.eye(7, dtype=torch.float64)[None],
        scales=torch.ones(2, dtype=torch.float64),
        calibration=torch.tensor(calibration, dtype=torch.float64).sort().values,
        control=torch.tensor(control, dtype=torch.float64),
    )


def test_scores_are_ranks_among_held_out_images():
    judge = plain([1.0, 2.0, 3.0, 4.0], [0.5, 3.5, 9.0])
    features = torch.cat([torch.tensor([[0.0, 0, 0.5], [2, 0, 0], [0, 2.5, 0], [0, 0, 50]]), torch.zeros(4, 7)], dim=1)
    expected = [(1 + sum(c >= d for c in (1, 2, 3, 4))) / 5 for d in (0.5, 2, 2.5, 50)]
    assert judge.scores(features).tolist() == pytest.approx(expected)
    assert judge.threshold(0.2) == 4.0 and judge.threshold(0.4) == 3.0 and judge.threshold(0.1) == float("inf")
    assert judge.measured(0.2) == pytest.approx(1 / 3)
    for rate in (0.2, 0.4, 0.6):  # the threshold and the scores say the same
        flagged = judge.scores(features) <= rate + 1e-12
        assert flagged.tolist() == (judge.distances(features) > judge.threshold(rate)).tolist()


def test_the_false_alarm_rate_holds_for_images_of_the_same_kind():
    rng = torch.Generator().manual_seed(0)
    calibration, fresh = torch.rand(400, generator=rng).double(), torch.rand(4000, generator=rng).double()
    judge = plain(calibration.tolist())
    for rate in (0.05, 0.2):
        assert float((judge.of_distances(fresh) <= rate).double().mean()) == pytest.approx(rate, abs=0.03)


def test_prototypes_are_the_means_of_training_features(run):
    trained = open_trained(run)
    found = familiarity_of(trained)
    task = load_task(run.config.task)
    assert found.sites == ("east", "north", "west") and found.classes == task.classes
    for place, domain in enumerate(task.domains):
        looks = trained.ask(domain.train.images).looks.double()
        for label in range(2):
            mean = looks[domain.train.labels == label].mean(dim=0)
            assert torch.allclose(found.prototypes[place, label].double(), mean[:-7], atol=1e-5)
        assert torch.allclose(found.surfaces[place], looks[:, -7:].mean(dim=0), atol=1e-5)
    assert found.counts.sum() == sum(len(domain.train) for domain in task.domains)
    assert len(found.calibration) + len(found.control) == sum(len(domain.test) for domain in task.domains)


def test_the_larger_of_two_distances_counts_each_in_its_own_units(run):
    trained = open_trained(run)
    found = familiarity_of(trained)
    looks = trained.ask(load_task(run.config.task).domains[0].test.images[:5]).looks.double()
    for row, distance in zip(looks, found.distances(looks), strict=True):
        to_prototypes = [
            float(((row[:-7] - found.prototypes[site, label].double()) @ found.whitening).norm())
            for site in range(3)
            for label in range(2)
            if found.counts[site, label] > 0
        ]
        to_sites = [float(((row[-7:] - found.surfaces[s]) @ found.surface_whitening[s]).norm()) for s in range(3)]
        expected = max(min(to_prototypes) / float(found.scales[0]), min(to_sites) / float(found.scales[1]))
        assert float(distance) == pytest.approx(expected, rel=1e-9)
    # A surface's scatter, whitened, is about one in every direction.
    east = trained.ask(load_task(run.config.task).by_name["east"].train.images).looks[:, -7:].double()
    white = (east - found.surfaces[0]) @ found.surface_whitening[0]
    assert 0.3 < float(white.square().mean()) < 1.5


def test_a_site_with_one_image_scatters_as_all_do():
    rng = torch.Generator().manual_seed(0)
    many, one = torch.randn(50, 7, generator=rng, dtype=torch.float64), torch.zeros(1, 7, dtype=torch.float64)
    alone, apart = familiarity._by_site([many, one]), familiarity._by_site([many, many])
    assert torch.equal(alone[0], apart[0]) and torch.allclose(alone[1], apart[0], rtol=0.2, atol=0.1)


def test_it_is_stored_once_and_made_anew_for_another_model(run, monkeypatch):
    trained = open_trained(run)
    first = familiarity_of(trained)
    assert (run.path / familiarity.FILE).is_file()

    def refuse(*_):
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr(familiarity, "compute", refuse)
        assert torch.equal(familiarity_of(trained).prototypes, first.prototypes)
        patch.setattr(familiarity, "_digest", lambda _: "another model")
        with pytest.raises(AssertionError):
            familiarity_of(trained)


def test_without_the_data_there_are_labels_but_no_familiarity(tmp_path, images):
    import shutil

    from site_helpers import SMALL

    import protolith as pl

    root = write_sites(tmp_path / "own", images=10)
    lone = pl.fit(task=str(root), rounds=1, out=tmp_path / "lone", **SMALL)
    shutil.rmtree(root)
    predictor = Predictor(lone)
    assert predictor.note.startswith("no familiarity: ")
    assert [item.familiarity for item in predictor.files([images / "known-0.png"])] == [None]


@pytest.mark.parametrize(("number", "size"), [(3, 5), (40, 5), (40, 1)])
def test_a_shrunk_covariance_is_ledoit_and_wolfs(number, size):
    values = torch.randn(number, size, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
    values[:, 0] *= 5.0
    outer = [[[x[i] * x[j] for j in range(size)] for i in range(size)] for x in values.tolist()]
    cells = [(i, j) for i in range(size) for j in range(size)]
    mean = {(i, j): sum(one[i][j] for one in outer) / number for i, j in cells}
    level = sum(mean[i, i] for i in range(size)) / size
    spread = sum((mean[i, j] - level * (i == j)) ** 2 for i, j in cells) / size
    noise = sum(sum((one[i][j] - mean[i, j]) ** 2 for i, j in cells) / size for one in outer) / number**2
    share = min(noise, spread) / spread if spread else 0.0
    expected = [[share * level * (i == j) + (1 - share) * mean[i, j] for j in range(size)] for i in range(size)]
    found = shrunk_covariance(values)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    theirs = ledoit_wolf(values.numpy(), assume_centered=True)[0]
    torch.testing.assert_close(found, torch.from_numpy(theirs), rtol=1e-12, atol=1e-14)
