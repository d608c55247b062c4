"""Clipping, noise and what is left out, against plain loops; the noise statistically, over many draws."""

import math

import pytest
import torch
from scipy import stats

from protolith.errors import UserError
from protolith.prototypes import ClassMeans
from protolith.prototypes.privacy import (
    SENSITIVITY,
    Privacy,
    clipped,
    private_means,
    secret_noise,
    seeded_noise,
)
from protolith.runs.config import validated

CLASSES, DIM = 5, 7


def features(count=40, scale=3.0, seed=0, missing=3):
    """Random features of random classes; one class is missing."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES - 1, (count,), generator=rng)
    labels[labels >= missing] += 1
    return scale * torch.randn(count, DIM, generator=rng), labels


def plain_clip(row, clip):
    length = math.sqrt(sum(x * x for x in row))
    return [x * clip / length for x in row] if length > clip else list(row)


def collect(values, labels, clip):
    means = ClassMeans(CLASSES, DIM)
    means.add(clipped(values, clip), labels)
    return means


def none_drawn(shape):
    raise AssertionError("without noise nothing is drawn")


@pytest.mark.parametrize("clip", [0.01, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("kind", ["random", "zero", "equal", "long"])
def test_clipping_is_the_plain_loop(clip, kind):
    rows = features()[0]
    rows = {"random": rows, "zero": 0 * rows, "equal": rows[:1].expand(9, -1), "long": 1e6 * rows}[kind]
    found = clipped(rows, clip)
    assert found.tolist() == [pytest.approx(plain_clip(row, clip)) for row in rows.tolist()]
    assert float(torch.linalg.vector_norm(found, dim=1).max()) <= clip * (1 + 1e-12)


def test_without_a_bound_features_are_the_same_object():
    rows = features()[0]
    assert clipped(rows, 0.0) is rows


@pytest.mark.parametrize("clip", [0.0, 1e9])
def test_without_noise_and_with_a_wide_bound_the_prototypes_are_the_plain_ones(clip):
    values, labels = features()
    plain = ClassMeans(CLASSES, DIM)
    plain.add(values, labels)
    means = collect(values, labels, clip)
    prototypes, counts = private_means(means.sums, means.counts, Privacy(clip=clip), none_drawn)
    assert torch.equal(prototypes, plain.means()) and torch.equal(counts, plain.counts)
    assert prototypes.dtype == torch.float32 and counts.dtype == torch.int64
    assert counts[3] == 0 and not prototypes[3].any()


def test_noise_and_division_are_the_plain_loop():
    values, labels = features()
    privacy = Privacy(noise=0.3, clip=2.0)
    means = collect(values, labels, 2.0)
    drawn = [torch.randn(CLASSES, DIM, dtype=torch.float64), torch.randn(CLASSES, dtype=torch.float64)]
    kept = [noise.clone() for noise in drawn]
    prototypes, counts = private_means(means.sums, means.counts, privacy, lambda shape: drawn.pop(0))
    for k in range(CLASSES):
        members = [
            plain_clip(row, 2.0) for row, label in zip(values.tolist(), labels.tolist(), strict=True) if label == k
        ]
        count = len(members) + 0.3 * math.sqrt(2) * float(kept[1][k])
        if count < 1:
            assert counts[k] == 0 and not prototypes[k].any()
            continue
        assert counts[k] == round(count)
        for v in range(DIM):
            total = sum(row[v] for row in members) + 0.3 * math.sqrt(2) * 2.0 * float(kept[0][k, v])
            assert float(prototypes[k, v]) == pytest.approx(total / max(count, 1.0), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("least", [1, 4, 10**6])
def test_classes_with_too_few_images_are_not_sent(least):
    sums, counts = torch.ones(CLASSES, DIM, dtype=torch.float64), torch.tensor([0, 1, 3, 4, 50])
    prototypes, shown = private_means(sums, counts, Privacy(least=least), none_drawn)
    for k, count in enumerate(counts.tolist()):
        assert int(shown[k]) == (count if count >= max(least, 1) else 0)
        assert bool(prototypes[k].any()) == (count >= max(least, 1))


def test_with_noise_the_noisy_count_decides_what_is_sent():
    """The true count must not: it would tell whether the image that makes the difference is there."""
    sums, counts = torch.zeros(3, DIM, dtype=torch.float64), torch.tensor([9, 0, 9])
    privacy = Privacy(noise=1 / SENSITIVITY, clip=1.0, least=5)
    drawn = [torch.ones(3, DIM, dtype=torch.float64), torch.tensor([-5.0, 6.0, 0.4], dtype=torch.float64)]
    prototypes, shown = private_means(sums, counts, privacy, lambda shape: drawn.pop(0))
    assert shown.tolist() == [0, 6, 9]
    assert [bool(row.any()) for row in prototypes] == [False, True, True]


def test_one_image_changes_no_more_than_the_sensitivity():
    values, labels = features(scale=50.0)
    clip = 3.0
    whole = collect(values, labels, clip)
    largest = 0.0
    for left_out in range(len(values)):
        kept = torch.arange(len(values)) != left_out
        less = collect(values[kept], labels[kept], clip)
        moved = torch.cat([((whole.sums - less.sums) / clip).flatten(), (whole.counts - less.counts).double()])
        largest = max(largest, float(moved.norm()))
    assert largest == pytest.approx(SENSITIVITY) and largest <= SENSITIVITY * (1 + 1e-9)


@pytest.mark.parametrize("draw", [seeded_noise(0, "privacy"), secret_noise], ids=["seeded", "secret"])
def test_the_noise_has_its_scale(draw):
    privacy = Privacy(noise=1.7, clip=4.0)
    many = 10**9  # so many images that dividing by the noisy count is dividing by their number
    sums, counts = torch.zeros(200, 100, dtype=torch.float64), torch.full((200,), many)
    found = [private_means(sums, counts, privacy, draw) for _ in range(20)]
    on_sums = torch.cat([prototypes.double().flatten() for prototypes, _ in found]) * many
    on_counts = torch.cat([shown - counts for _, shown in found]).double()
    # 400,000 and 4,000 draws: the deviation is known to 0.2 and 1.1 per cent.
    assert float(on_sums.std()) == pytest.approx(1.7 * math.sqrt(2) * 4.0, rel=0.01)
    assert float(on_counts.std()) == pytest.approx(1.7 * math.sqrt(2), rel=0.06)
    assert abs(float(on_sums.mean())) < 5 * 1.7 * math.sqrt(2) * 4.0 / math.sqrt(len(on_sums))


def test_secret_noise_is_normal_and_never_the_same():
    drawn = secret_noise((50, 400))
    assert drawn.shape == (50, 400) and drawn.dtype == torch.float64 and bool(torch.isfinite(drawn).all())
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-6
    assert not torch.equal(drawn, secret_noise((50, 400)))
    assert secret_noise(()).shape == () and secret_noise((0, 3)).shape == (0, 3)


def test_seeded_noise_follows_from_its_parts():
    one, same, other = (seeded_noise(*parts)((3, 4)) for parts in ((1, "privacy"), (1, "privacy"), (2, "privacy")))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_why_sites_do_not_seed_a_generator():
    """Of a torch seed only 32 bits count, which are few enough to try: this is why `secret_noise` uses none."""
    draws = [torch.randn(4, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**32)]
    assert torch.equal(*draws)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"noise": 1.0}, "noise needs clip"),
        ({"noise": -1.0}, "greater than or equal to 0"),
        ({"noise": math.inf, "clip": 1.0}, "finite"),
        ({"clip": math.nan}, "finite"),
        ({"least": 0}, "greater than or equal to 1"),
        ({"delta": 0}, "greater than 0"),
        ({"sigma": 1}, "privacy.sigma"),
    ],
)
def test_wrong_settings_get_a_sentence(values, words):
    with pytest.raises(UserError, match=words):
        validated(Privacy, values, "privacy.")
