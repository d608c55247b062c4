"""Each loss against a plain loop written from the papers, its gradient against finite differences."""

import math
import random

import pytest
import torch
from torch.autograd import gradcheck

from protolith import losses

DIM = 6


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices on a busy machine: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def plain_dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def plain_cosine(a, b):
    lengths = max(math.sqrt(plain_dot(a, a)), 1e-8) * max(math.sqrt(plain_dot(b, b)), 1e-8)
    return plain_dot(a, b) / lengths


def plain_contrast(features, labels, prototypes, prototype_labels, tau, extra=None, alpha=None):
    """−log Σ_pos e^{s/τ} / Σ_all e^{s/τ}: FPL Eq. 8; one positive: I2PFL Eq. 6; extra: FedCode Eq. 11."""
    terms = []
    for i, (z, y) in enumerate(zip(features, labels, strict=True)):

        def similarity(c, z=z):
            cosine = plain_cosine(z, c)
            return cosine if alpha is None else min(max(cosine, 1e-6), 1.0) ** alpha

        scores = [similarity(c) / tau for c in prototypes]
        others = [similarity(c) / tau for c in extra[i]] if extra else []
        same = [s for s, k in zip(scores, prototype_labels, strict=True) if k == y]
        if same:
            top = max(scores + others)
            numerator, denominator = (sum(math.exp(s - top) for s in part) for part in (same, scores + others))
            terms.append(math.log(denominator) - math.log(numerator))
    return sum(terms) / len(terms) if terms else 0.0


def plain_align(features, labels, prototypes, present, divisor=DIM):
    """FPL Eq. 10, over d for the mean."""
    terms = [
        sum((a - b) ** 2 for a, b in zip(z, prototypes[y], strict=True)) / divisor
        for z, y in zip(features, labels, strict=True)
        if present[y]
    ]
    return sum(terms) / len(terms) if terms else 0.0


def plain_class_means(features, labels):
    members = {}
    for z, y in zip(features, labels, strict=True):
        members.setdefault(y, []).append(z)
    return {y: [sum(column) / len(zs) for column in zip(*zs, strict=True)] for y, zs in members.items()}


def random_case(name):
    """Features, labels, prototypes, their labels and τ; classes are 0 to 3."""
    shape, labels, prototype_labels, tau = {
        "several per class": (7, [0, 1, 2, 3, 0, 1, 1], [0, 0, 1, 2, 2, 2, 3], 0.02),
        "one per class": (7, [0, 1, 2, 3, 0, 1, 1], [0, 1, 2, 3], 0.07),
        "missing class": (5, [0, 1, 2, 3, 3], [0, 1, 1], 0.1),
        "tiny temperature": (6, [0, 1, 2, 3, 0, 1], [0, 0, 1, 2, 3], 0.01),
        "no temperature": (6, [0, 1, 2, 3, 0, 1], [0, 1, 2, 3], 1.0),
        "batch of one class": (4, [2, 2, 2, 2], [0, 1, 2, 3], 0.02),
        "single sample": (1, [1], [0, 1, 2, 3], 0.5),
        "single prototype": (3, [1, 1, 0], [1], 0.02),
        "no class has one": (3, [1, 1, 2], [0, 3], 0.02),
        "identical prototypes": (5, [0, 1, 2, 3, 0], [0, 0, 1, 2, 3], 0.02),
        "zero features": (4, [0, 1, 2, 3], [0, 1, 2, 3], 0.02),
        "negative features": (6, [0, 1, 2, 3, 0, 1], [0, 0, 1, 2, 3], 0.07),
    }[name]
    features = torch.rand(shape, DIM, dtype=torch.float64)
    prototypes = torch.rand(len(prototype_labels), DIM, dtype=torch.float64)
    if name == "identical prototypes":
        prototypes[:] = prototypes[0].clone()
    if name == "zero features":
        features.zero_()
    if name == "negative features":
        features -= 0.5
    return features, torch.tensor(labels), prototypes, torch.tensor(prototype_labels), tau


CASES = [
    "several per class",
    "one per class",
    "missing class",
    "tiny temperature",
    "no temperature",
    "batch of one class",
    "single sample",
    "single prototype",
    "no class has one",
    "identical prototypes",
    "zero features",
    "negative features",
]
SMOOTH = [name for name in CASES if name != "zero features"]  # a zero vector's direction has no derivative


def by_class(name):
    """Features, labels, one prototype per class [4, d] and which are present."""
    features, labels, points, point_labels, _ = random_case(name)
    prototypes, present = torch.zeros(4, DIM, dtype=torch.float64), torch.zeros(4, dtype=torch.bool)
    prototypes[point_labels] = points
    present[point_labels] = True
    return features, labels, prototypes, present


def same(value, expected):
    assert value.shape == ()
    assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_contrast(name, extra, alpha):
    features, labels, prototypes, prototype_labels, tau = random_case(name)
    negatives = torch.rand(len(features), extra, DIM, dtype=torch.float64) if extra else None
    value = losses.contrast(
        features, labels, prototypes, prototype_labels, tau, extra_negatives=negatives, sharpness=alpha
    )
    lists = (tensor.tolist() for tensor in (features, labels, prototypes, prototype_labels))
    same(value, plain_contrast(*lists, tau, negatives.tolist() if extra else None, alpha))


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_contrast_gradient(name, alpha):
    features, labels, prototypes, prototype_labels, tau = random_case(name)
    negatives = torch.rand(len(features), 2, DIM, dtype=torch.float64)
    tau = max(tau, 0.1)  # finite differences, not the loss, need it smooth

    def loss(features, negatives):
        return losses.contrast(
            features, labels, prototypes, prototype_labels, tau, extra_negatives=negatives, sharpness=alpha
        )

    assert gradcheck(loss, (features.requires_grad_(), negatives.requires_grad_()))


def test_contrast_is_the_cross_entropy_of_the_cosines_with_one_prototype_per_class():
    features, labels, prototypes, prototype_labels, tau = random_case("one per class")
    logits = torch.cosine_similarity(features[:, None], prototypes[None], dim=2) / tau
    same(
        losses.contrast(features, labels, prototypes, prototype_labels, tau),
        torch.nn.functional.cross_entropy(logits, labels).item(),
    )


@pytest.mark.parametrize("tau", [0.01, 0.001])
def test_contrast_in_float32_is_finite_and_right_at_tiny_temperatures(tau):
    features, labels, prototypes, prototype_labels, _ = random_case("several per class")
    expected = losses.contrast(features, labels, prototypes, prototype_labels, tau).item()
    single = features.float().requires_grad_()
    value = losses.contrast(single, labels, prototypes.float(), prototype_labels, tau)
    value.backward()
    assert value.dtype == torch.float32 and single.grad.isfinite().all()
    assert value.item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_contrast_with_a_missing_class_has_no_nan_on_the_way_back():
    features, labels, prototypes, prototype_labels, tau = random_case("missing class")
    with torch.autograd.detect_anomaly():
        losses.contrast(features.requires_grad_(), labels, prototypes, prototype_labels, tau).backward()
    assert features.grad[:2].any(dim=1).all() and not features.grad[2:].any()


@pytest.mark.parametrize("extra", [0, 1])
def test_contrast_without_prototypes_is_zero_and_differentiable(extra):
    features = torch.rand(3, DIM, requires_grad=True)
    negatives = torch.rand(3, extra, DIM)
    value = losses.contrast(
        features, torch.tensor([0, 1, 2]), torch.empty(0, DIM), torch.empty(0, dtype=torch.int64), 0.02,
        extra_negatives=negatives if extra else None,
    )  # fmt: skip
    value.backward()
    assert value.item() == 0.0 and not features.grad.any()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_align(name, reduction):
    features, labels, prototypes, present = by_class(name)
    value = losses.align(features, labels, prototypes, present, reduction=reduction)
    lists = (tensor.tolist() for tensor in (features, labels, prototypes, present))
    same(value, plain_align(*lists, divisor=DIM if reduction == "mean" else 1))
    assert gradcheck(
        lambda z: losses.align(z, labels, prototypes, present, reduction=reduction), features.requires_grad_()
    )


@pytest.mark.parametrize("name", CASES)
def test_cosine_align(name):
    features, labels, prototypes, present = by_class(name)
    terms = [
        (1 - plain_cosine(z, prototypes[y].tolist())) ** 2
        for z, y in zip(features.tolist(), labels.tolist(), strict=True)
        if present[y]
    ]
    same(losses.cosine_align(features, labels, prototypes, present), 2 * sum(terms) / max(1, len(terms)))
    if name in SMOOTH:
        assert gradcheck(lambda z: losses.cosine_align(z, labels, prototypes, present), features.requires_grad_())


def test_counts_serve_as_presence():
    features, labels, prototypes, present = by_class("missing class")
    counts = present * torch.tensor([3, 5, 7, 9])
    same(
        losses.align(features, labels, prototypes, counts),
        losses.align(features, labels, prototypes, present).item(),
    )


@pytest.mark.parametrize("shift", [0.0, 0.5])
@pytest.mark.parametrize("batch", [1, 5])
def test_orthogonality(shift, batch):
    style, semantic = torch.rand(2, batch, DIM, dtype=torch.float64) - shift
    terms = []
    for a, b in zip(style.tolist(), semantic.tolist(), strict=True):
        top = sum(abs(x * y) for x, y in zip(a, b, strict=True))
        terms.append(top / (math.sqrt(plain_dot(a, a)) * math.sqrt(plain_dot(b, b))))
    same(losses.orthogonality(style, semantic), sum(terms) / batch)
    assert gradcheck(losses.orthogonality, (style.requires_grad_(), semantic.requires_grad_()))


def test_orthogonality_of_features_without_negatives_is_their_cosine():
    style, semantic = torch.rand(2, 5, DIM, dtype=torch.float64)
    same(losses.orthogonality(style, semantic), torch.cosine_similarity(style, semantic).mean().item())


@pytest.mark.parametrize("tau", [0.5, 0.01])
@pytest.mark.parametrize("batch", [1, 5])
def test_model_contrast(tau, batch):
    z, z_global, z_previous = torch.rand(3, batch, DIM, dtype=torch.float64)
    terms = []
    for a, b, c in zip(z.tolist(), z_global.tolist(), z_previous.tolist(), strict=True):
        near, far = math.exp(plain_cosine(a, b) / tau), math.exp(plain_cosine(a, c) / tau)
        terms.append(-math.log(near / (near + far)))
    same(losses.model_contrast(z, z_global, z_previous, tau), sum(terms) / batch)
    assert gradcheck(lambda z: losses.model_contrast(z, z_global, z_previous, 0.5), z.requires_grad_())


def test_proximal_and_inner_product():
    shapes = [(2, 3), (4,), ()]
    parameters = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    others = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    pairs = [
        (a, b)
        for theta, other in zip(parameters, others, strict=True)
        for a, b in zip(theta.flatten().tolist(), other.flatten().tolist(), strict=True)
    ]
    same(losses.proximal(parameters, others), 0.5 * sum((a - b) ** 2 for a, b in pairs))
    same(losses.inner_product(parameters, others), sum(a * b for a, b in pairs))
    assert gradcheck(lambda *thetas: losses.proximal(thetas, others), parameters)
    assert gradcheck(lambda *thetas: losses.inner_product(thetas, others), parameters)
    with pytest.raises(ValueError):
        losses.proximal(parameters, others[:2])


def test_feddyn_regulariser_has_its_gradient_on_the_trained_parameters():
    """α⟨θ, h − θ^t⟩ + (α/2)‖θ‖² has gradient α (h + θ − θ^t)."""
    theta, anchor, h = torch.randn(3, 5, dtype=torch.float64)
    theta.requires_grad_()
    (0.3 * (losses.inner_product([theta], [h]) + losses.proximal([theta], [anchor]))).backward()
    torch.testing.assert_close(theta.grad, 0.3 * (h + theta.detach() - anchor))


def test_partners_are_of_another_class_and_uniform():
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([losses.different_class_partner(labels, generator) for _ in range(4000)])
    assert (labels[draws] != labels).all()
    for i in range(6):
        others = (labels != labels[i]).nonzero().squeeze(1).tolist()
        shares = torch.bincount(draws[:, i], minlength=6) / len(draws)
        for j in others:
            assert shares[j].item() == pytest.approx(1 / len(others), abs=0.04)


def test_partners_repeat_with_the_seed():
    labels = torch.randint(0, 4, (64,))
    first, second = (losses.different_class_partner(labels, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("labels", [[3], [2, 2, 2]])
def test_in_a_batch_of_one_class_mixing_changes_nothing(labels):
    features, labels = torch.rand(len(labels), DIM, dtype=torch.float64), torch.tensor(labels)
    partner = losses.different_class_partner(labels)
    assert partner.tolist() == list(range(len(labels)))
    mixed, counts = losses.mixup_prototypes(features, labels, 4, 0.3, partner)
    torch.testing.assert_close(mixed[labels[0]], features.mean(dim=0))
    assert counts.sum() == len(labels)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("of", ["sample", "class"])
@pytest.mark.parametrize("detach", [False, True])
def test_mixup_and_apa(name, per_sample, of, detach):
    features, labels, _, _, _ = random_case(name)
    draw = random.Random(0)
    partner = losses.different_class_partner(labels, torch.Generator().manual_seed(0))
    gammas = [draw.betavariate(0.4, 0.4) for _ in features] if per_sample else [0.3] * len(features)
    gamma = torch.tensor(gammas, dtype=torch.float64) if per_sample else 0.3

    # I2PFL Eqs. 7, 8, and 9 with the mean over dimensions and over samples or classes.
    z, y = features.tolist(), labels.tolist()
    mixed = [
        [g * a + (1 - g) * b for a, b in zip(z[i], z[j], strict=True)]
        for i, (g, j) in enumerate(zip(gammas, partner.tolist(), strict=True))
    ]
    targets = plain_class_means(mixed, y)
    left = list(zip(y, z, strict=True)) if of == "sample" else list(plain_class_means(z, y).items())
    expected = sum((a - b) ** 2 for k, h in left for a, b in zip(h, targets[k], strict=True)) / DIM / len(left)

    prototypes, counts = losses.mixup_prototypes(features, labels, 4, gamma, partner)
    for k in range(4):
        wanted = torch.tensor(targets.get(k, [0.0] * DIM), dtype=torch.float64)
        torch.testing.assert_close(prototypes[k], wanted)
    assert counts.tolist() == [y.count(k) for k in range(4)]
    same(losses.apa(features, labels, prototypes, counts, of=of, detach=detach), expected)

    def loss(features):
        target, present = losses.mixup_prototypes(features, labels, 4, gamma, partner)
        return losses.apa(features, labels, prototypes if detach else target, present, of=of, detach=detach)

    assert gradcheck(loss, features.requires_grad_())


def test_apa_moves_the_target_only_when_it_is_not_detached():
    features, labels = torch.rand(4, DIM), torch.tensor([0, 0, 1, 1])
    for detach in (True, False):
        target = torch.rand(2, DIM, requires_grad=True)
        losses.apa(features.requires_grad_(), labels, target, torch.ones(2), detach=detach).backward()
        assert (target.grad is None) == detach


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_features_have_finite_values_and_gradients(dtype):
    labels, present = torch.tensor([0, 1, 2, 0]), torch.ones(3)
    prototypes = torch.rand(3, DIM, dtype=dtype)
    prototypes[2] = 0
    other = torch.rand(4, DIM, dtype=dtype)
    for loss in (
        lambda z: losses.contrast(z, labels, prototypes, torch.arange(3), 0.01),
        lambda z: losses.contrast(z, labels, prototypes, torch.arange(3), 0.01, sharpness=0.25),
        lambda z: losses.contrast(z, labels, prototypes, torch.arange(3), 0.01, extra_negatives=z[:, None]),
        lambda z: losses.align(z, labels, prototypes, present),
        lambda z: losses.cosine_align(z, labels, prototypes, present),
        lambda z: losses.orthogonality(z, other),
        lambda z: losses.orthogonality(z, z),
        lambda z: losses.model_contrast(z, other, z, 0.01),
        lambda z: losses.apa(z, labels, *losses.mixup_prototypes(z, labels, 3, 0.5, torch.tensor([1, 2, 0, 1]))),
    ):
        features = torch.zeros(4, DIM, dtype=dtype, requires_grad=True)
        value = loss(features)
        value.backward()
        assert value.dtype == dtype and value.isfinite()
        assert features.grad.isfinite().all() and features.grad.abs().max() < 10
