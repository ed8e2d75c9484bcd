"""DP-Mixture: a mixture of Gaussians for each class from a few noisy sums over all units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, check_choices
from sfumato.methods.parts.class_gaussians import divisors
from sfumato.methods.parts.deform import deformed
from sfumato.methods.parts.finishing import LABELS, FinishedGenerator, finish
from sfumato.methods.parts.linear_teacher import LinearTeacher, fit_teacher, teacher_query
from sfumato.methods.parts.tone import Tone, ask_tone, background_of, fit_tone, tone_query
from sfumato.networks.mixture import ClassMixtures
from sfumato.networks.pixels import Shape
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian

_MEANS, _POOLED, _CENTRES, _COVARIANCES = "class means", "second moments", "centres", "class second moments"
_MEAN_RADIUS, _RADIUS = 0.5, 0.3  # root mean square over pixels of what is clipped to
_COUNT_SHARE = 0.25  # the entry that counts a unit, relative to the clip norm of its image
_CENTRE_NOISE = 0.2  # largest noise of a centre's coordinate, in standard deviations of the data along it
_CENTRE_START = 0.7  # of public centres before the first round, in the same units
_TIGHTER = 1.3  # a clip norm over the root mean square of what is clipped
_EDGE = 0.25  # an eigenvalue, relative to the edge of the noise, above which a direction is used
_DIAGONAL = 3.0  # and above how many standard deviations of the noise of the diagonal
_LEAST_UNITS = 10.0  # of a centre, below which it starts again
_CORRELATION = 0.1  # how much two directions are expected to be correlated around their nearest centres
_CLASS_SHAPE = 0.15  # how much class covariances are expected to differ from the pooled one
_LEAST_VARIANCE = 0.02  # of a class along a direction, relative to the pooled one
_LEAST_OUTSIDE = 1e-4  # variance of a coefficient outside of the directions


@dataclass(frozen=True)
class DPMixture(Method):
    """A mixture of Gaussians for each class in directions that all classes share, from noisy sums alone.

    Guarantee: noisy sums over all units, each of a clipped vector of one unit, under adding or removing one unit:
    histogram of grey levels, class means and counts, second moments, ``rounds`` sums of k-means, second moments of
    each class, and of the teacher's features. Nothing is sampled, so the composition is that of one Gaussian, exactly.

    An image is drawn from the mixture, its label is checked by the teacher, it is deformed a little, and its grey
    levels are mapped to the histogram. Where images have a dark or a light background, as the histogram tells, they
    are aligned by their moments first, and the pose is learnt with them.

    >>> from sfumato.privacy import Budget
    >>> [event.name for event in DPMixture(teacher_share=0).plan(Budget(epsilon=1, delta=1e-5)).events]
    ['tone', 'class means', 'second moments', 'centres', 'class second moments']
    """

    name: ClassVar[str] = "dp-mixture"
    paper: ClassVar[str] = "none; class-conditional Gaussian mixtures by the Gaussian mechanism"

    frequencies: float = 18.0
    directions: int = 100
    centres: int = 64
    rounds: int = 4
    tone_share: float = 0.05
    mean_share: float = 0.1
    direction_share: float = 0.25
    centre_share: float = 0.2
    covariance_share: float = 0.25
    teacher_share: float = 0.15
    teacher_directions: int = 128
    alignment: bool = True
    temperature: float = 1.0
    relabelling: str = "auto"
    max_rejections: int = 3
    stroke_deformation: float = 1.3
    other_deformation: float = 0.0
    mirror: bool = False
    samples: int = 1000
    """Public ones, on which the tone and the teacher's directions are fitted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"relabelling": LABELS})
        for name in ("frequencies", "directions", "centres", "rounds", "samples", "mean_share", "direction_share"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.covariance_share <= 0 or (self.centres > 1 and self.centre_share <= 0):
            raise ValueError("covariance_share and, with several centres, centre_share must be positive")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        sizes = {"frequencies": 4.0, "directions": 5, "centres": 2, "rounds": 2, "teacher_directions": 6, "samples": 20}
        return cls(variant=variant, max_rejections=1, **sizes)  # type: ignore[arg-type]

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Every sum, with noise that costs its share."""

        def noise(share: float) -> float:
            return share**-0.5

        found = [tone_query(noise(self.tone_share))] if self.tone_share > 0 else []
        found.append(_event(_MEANS, noise(self.mean_share)))
        found.append(_event(_POOLED, noise(self.direction_share)))
        if self.centres > 1:
            # Rounds compose: each has a part of the share.
            found.append(_event(_CENTRES, noise(self.centre_share / self.rounds), steps=self.rounds))
        found.append(_event(_COVARIANCES, noise(self.covariance_share)))
        if self.teacher_share > 0:
            found.append(teacher_query(noise(self.teacher_share)))
        return tuple(found)

    def build(self, shape: Shape, classes: int) -> FinishedGenerator:
        mixture = ClassMixtures(
            shape, classes, highest=self.frequencies, directions=self.directions, centres=self.centres
        )
        teacher = LinearTeacher(shape, classes, directions=self.teacher_directions) if self.teacher_share > 0 else None
        return FinishedGenerator(mixture, Tone(shape[0]) if self.tone_share > 0 else None, teacher)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        """Ask one sum after the other; each looks at the collection once."""
        model = self.build(curator.shape, len(curator.classes)).to(curator.device).requires_grad_(False)
        mixture = _mixture(model)
        histogram = ask_tone(curator) if model.tone is not None else None
        if histogram is not None and self.alignment:
            mixture.pose.background.fill_(background_of(histogram))
        with torch.no_grad():
            counts = _fit_means(curator, mixture)
            scale, radius = _fit_directions(curator, mixture, counts)
            if self.centres > 1:
                _fit_centres(curator, mixture, counts, scale=scale, radius=radius, rounds=self.rounds)
            _fit_covariances(curator, mixture, counts, scale=scale, radius=radius)
            labels = torch.arange(self.samples, device=curator.device) % len(curator.classes)
            samples = mixture.draw(labels, temperature=self.temperature)
            if model.tone is not None and histogram is not None:
                fit_tone(model.tone, histogram, self._deformed(mixture, samples))
            if model.teacher is not None:
                spanned = mixture.spanned()
                fit_teacher(
                    curator,
                    model.teacher,
                    counts=divisors(counts),
                    samples=samples.clamp(0.0, 1.0),
                    seen=lambda images: mixture.project(images, spanned),
                )
                model.measure_agreement(samples.clamp(0.0, 1.0), labels)
        return model, counts

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        model = _finished(model)
        mixture = _mixture(model)
        return finish(
            model,
            lambda wanted: mixture.draw(wanted, temperature=self.temperature),
            labels,
            relabelling=self.relabelling,
            max_rejections=self.max_rejections,
            deform=lambda images: self._deformed(mixture, images),
        )

    def _deformed(self, mixture: ClassMixtures, images: Tensor) -> Tensor:
        size = self.stroke_deformation if mixture.pose.present else self.other_deformation
        return deformed(images, size=size, elastic=size, mirror=self.mirror)

    def density(self, model: nn.Module, images: Tensor) -> Tensor:
        """Log-density of each image's low frequencies and pose under each class, ``[B, classes]``."""
        return _mixture(_finished(model)).log_density(images)


def _finished(model: nn.Module) -> FinishedGenerator:
    if not isinstance(model, FinishedGenerator):
        raise TypeError(f"a finished generator is needed, not {type(model).__name__}")
    return model


def _mixture(model: FinishedGenerator) -> ClassMixtures:
    if not isinstance(model.generator, ClassMixtures):
        raise TypeError(f"class mixtures are needed, not {type(model.generator).__name__}")
    return model.generator


def _event(name: str, noise_multiplier: float, *, steps: int = 1) -> SubsampledGaussian:
    return SubsampledGaussian(name, (Block(name, noise_multiplier),), steps=steps)


def _clipped(rows: Tensor, norm: float) -> Tensor:
    return rows * (norm / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)


def _shrunk(noisy: Tensor, noise: Tensor, frequency: Tensor) -> Tensor:
    """Rows ``[n, size]`` shrunk towards 0, frequency by frequency, by their signal in the noise.

    The signal's variance is estimated over all rows and a band of frequencies of equal width.
    """
    bands, found = frequency.round().long(), noisy.clone()
    for band in bands.unique():
        here = bands == band
        total, own = noisy[:, here].square().mean(), (noise[:, None].expand_as(noisy)[:, here]).square().mean()
        found[:, here] *= float(((total - own) / total.clamp(min=1e-30)).clamp(min=0.0))
    return found


def _fit_means(curator: Curator, mixture: ClassMixtures) -> Counts:
    """Class means and counts; what differs between classes is shrunk, and so is the common mean."""
    clip_norm = _MEAN_RADIUS * math.sqrt(math.prod(curator.shape))
    count = _COUNT_SHARE * clip_norm

    def coefficients(images: Tensor, labels: Tensor, random: object) -> Tensor:
        flat = _clipped(mixture.encode(images), clip_norm)
        return torch.cat([flat, torch.full_like(flat[:, :1], count)], dim=1)

    total = curator.noisy_sum(_MEANS, coefficients, clip_norm=math.hypot(clip_norm, count), by_class=True)
    counts = Counts(total[:, -1] / count)
    sizes = divisors(counts)
    means, deviation = (
        total[:, :-1] / sizes[:, None],
        curator.plan.event(_MEANS).noise_multiplier * math.hypot(clip_norm, count),
    )
    common = (sizes[:, None] * means).sum(0, keepdim=True) / sizes.sum()
    classes = len(means)
    common_noise = (deviation * classes**0.5 / sizes.sum()).reshape(1)
    common, own = _shrunk(common, common_noise, mixture.frequency), means - common
    mixture.means.copy_(common + _shrunk(own, deviation / sizes, mixture.frequency) if classes > 1 else common)
    return counts


def _shrunk_moments(noisy: Tensor, noise: float, bands: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy second moments whose entries between two bands of frequencies are shrunk by their signal in the noise.

    Also returns the factor of each entry. The diagonal, whose sum says how much varies in all, is not shrunk.
    """
    member = (bands[:, None] == bands.unique()).double()
    off = 1.0 - torch.eye(len(noisy), dtype=noisy.dtype, device=noisy.device)
    power = member.T @ (noisy.square() * off) @ member / (member.T @ off @ member).clamp(min=1.0)
    signal = (power - noise**2).clamp(min=0.0) / power.clamp(min=1e-30)
    kept = 1.0 - off + off * (member @ signal @ member.T)
    return noisy * kept, kept


def _fit_directions(curator: Curator, mixture: ClassMixtures, counts: Counts) -> tuple[Tensor, float]:
    """The directions of largest variance around the class means.

    Returns the standard deviations along them, and a clip norm for the queries that come after.
    """
    radius = _RADIUS * math.sqrt(math.prod(curator.shape))

    def differences(images: Tensor, labels: Tensor, random: object) -> Tensor:
        return _clipped(mixture.encode(images) - mixture.means[labels].to(images), radius)

    moments = curator.noisy_second_moments(_POOLED, differences, clip_norm=radius).double()
    noise = curator.plan.event(_POOLED).noise_multiplier * radius**2 / math.sqrt(2.0)  # of an entry off the diagonal
    moments, kept = _shrunk_moments(moments, noise, mixture.bands)
    values, vectors = torch.linalg.eigh(moments)
    values, vectors = values.flip(0), vectors.flip(1)
    # Bounds the eigenvalues of noise alone (a Wigner matrix with a profile of variances); far above them in practice.
    edge = 2.0 * noise * float(kept.square().sum(1).max().sqrt())
    directions = mixture.basis.shape[1]
    least = max(_EDGE * edge, _DIAGONAL * math.sqrt(2.0) * noise)
    used = max(1, int((values[:directions] > least).sum()))
    mixture.basis.zero_()
    mixture.basis[:, :used] = vectors[:, :used].to(mixture.basis)
    total = counts.total
    outside = float(values[used:].sum()) / total / max(1, mixture.size - used)
    mixture.outside.copy_(torch.tensor(max(outside, _LEAST_OUTSIDE)).sqrt())
    scale = mixture.basis.new_zeros(directions)
    scale[:used] = (values[:used].clamp(min=1e-6) / total).sqrt().to(scale)
    typical = math.sqrt(max(0.0, float(values.sum())) / total)
    return scale, min(radius, max(_TIGHTER * typical, 0.1 * radius))


def _fit_centres(
    curator: Curator, mixture: ClassMixtures, counts: Counts, *, scale: Tensor, radius: float, rounds: int
) -> None:
    """K-means within each class, with as many centres as the noise allows, by noisy sums and counts of members."""
    classes, most, directions = mixture.centres.shape
    count = _COUNT_SHARE * radius
    clip_norm = math.hypot(radius, count)
    event = curator.plan.event(_CENTRES)
    deviation = event.noise_multiplier * clip_norm
    used = scale > 0
    spread = float(scale[used].square().mean().sqrt())
    sizes = divisors(counts)
    allowed = (_CENTRE_NOISE * sizes * spread / deviation).floor().clamp(1, most).long()
    member = torch.arange(most, device=sizes.device) < allowed[:, None]
    # The only centre of a class has the same members in every round: its rounds are averaged, and shrunk at the end.
    alone = (allowed == 1)[:, None, None]
    least = max(_LEAST_UNITS, deviation / count)
    prior = 0.5 * scale.square()

    def start() -> Tensor:
        return _CENTRE_START * scale * torch.randn(classes, most, directions, device=sizes.device) * used * ~alone

    mixture.centres.copy_(start() * member[:, :, None])
    mixture.weights.copy_(member / member.sum(1, keepdim=True))
    weight = _distance_scale(scale)

    def members(images: Tensor, labels: Tensor, random: object) -> Tensor:
        along = _clipped(mixture.coordinates(images, labels), radius)
        nearest = mixture.nearest(along, labels, weight)
        rows = torch.cat([along, torch.full_like(along[:, :1], count)], dim=1)
        chosen = (nearest[:, None] == torch.arange(most, device=rows.device)).to(rows)
        return chosen[:, :, None] * rows[:, None, :]

    for step in curator.steps(_CENTRES, keep={"mixture": mixture}):
        total = step.noisy_sum(_CENTRES, members, clip_norm=clip_norm, by_class=True)
        last = step.index + 1 == rounds
        found = total[:, :, -1] / count
        part = torch.where(alone, 1.0 / (step.index + 1), 1.0)
        centres = torch.lerp(mixture.centres, total[:, :, :-1] / found.clamp(min=1.0)[:, :, None], part)
        noise = part * (deviation / found.clamp(min=1.0)).square()[:, :, None]
        shrunk = prior / (prior + noise)
        centres = centres * (shrunk if last else torch.where(alone, 1.0, shrunk))
        kept = (found > least) & member
        again = torch.where(member, 1.0, 0.0)[:, :, None] * start()
        mixture.centres.copy_(torch.where(kept[:, :, None], centres * used, 0.0 * again if last else again))
        weights = torch.where(kept, found, 0.0 if last else 1.0) * member
        empty = weights.sum(1, keepdim=True) <= 0
        weights = torch.where(empty, torch.eye(1, most, device=weights.device), weights)
        mixture.weights.copy_(weights / weights.sum(1, keepdim=True))


def _fit_covariances(curator: Curator, mixture: ClassMixtures, counts: Counts, *, scale: Tensor, radius: float) -> None:
    """A covariance around the nearest centre for each class, shrunk to the pooled one by its signal in the noise."""
    weight = _distance_scale(scale)

    def residuals(images: Tensor, labels: Tensor, random: object) -> Tensor:
        along = mixture.coordinates(images, labels)
        nearest = mixture.nearest(_clipped(along, radius), labels, weight)
        return _clipped(along - mixture.centres[labels, nearest].to(along), radius)

    moments = curator.noisy_second_moments(_COVARIANCES, residuals, clip_norm=radius, by_class=True).double()
    noise = curator.plan.event(_COVARIANCES).noise_multiplier * radius**2
    used = (mixture.basis.square().sum(0) > 0).nonzero()[:, 0]
    moments, sizes = moments[:, used][:, :, used], divisors(counts).double()
    eye = torch.eye(len(used), dtype=torch.float64, device=moments.device)
    # What noise alone leaves of a variance is far below a grey level; eigenvalues that it makes negative are none.
    smallest = 1e-4 * eye.new_tensor(radius).square() / len(used)
    pooled = moments.sum(0) / sizes.sum()
    # Within a class a direction varies at most as it does around the class means.
    within = torch.minimum(torch.diag(pooled), scale[used].double().square()).clamp(min=float(smallest))
    spread = (noise * math.sqrt(len(sizes)) / sizes.sum()).square() / 2 / (within[:, None] * within)
    kept = _CORRELATION**2 / (_CORRELATION**2 + spread)
    pooled = _positive(torch.where(eye > 0, within, pooled * kept), float(smallest))
    root = torch.linalg.cholesky(pooled + 1e-9 * eye)
    inverse = torch.linalg.inv(root)
    deviations = torch.diag(pooled).sqrt()
    mixture.factors.zero_()
    for label, (moment, size) in enumerate(zip(moments, sizes, strict=True)):
        relative = inverse @ (moment / size) @ inverse.T
        variance = (noise / size / (deviations[:, None] * deviations)).square() / 2
        signal = _CLASS_SHAPE**2 / (_CLASS_SHAPE**2 + variance)
        shaped = _positive(eye + (relative - eye) * (signal + signal.T) / 2, _LEAST_VARIANCE)
        factor = torch.zeros_like(mixture.factors[label])
        factor[used[:, None], used] = (root @ torch.linalg.cholesky(shaped)).to(factor)
        mixture.factors[label] = factor


def _distance_scale(scale: Tensor) -> Tensor:
    """What coordinates are divided by before distances are taken: no direction counts much more than it varies."""
    return scale.clamp(min=0.15 * float(scale.max()))


def _positive(matrix: Tensor, smallest: float) -> Tensor:
    """The nearest symmetric matrix whose eigenvalues are at least ``smallest``."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return vectors @ torch.diag(values.clamp(min=smallest)) @ vectors.T
