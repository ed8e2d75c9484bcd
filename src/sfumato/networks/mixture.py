"""A Gaussian or a mixture of Gaussians for each class, in a basis of low-frequency cosine coefficients.

Covariances of the single Gaussian are full over the low-frequency coefficients of the discrete cosine transform (DCT)
and isotropic beyond; with them comes the best linear estimate of a clean image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape, per_row, valid_pixels

_SMALLEST_VARIANCE = 0.05**2 * 4  # a twentieth of the pixels' range, squared


def dct_basis(count: int, size: int) -> Tensor:
    """The first ``count`` rows of the orthonormal DCT-II matrix, ``[count, size]``."""
    angle = math.pi / size * torch.arange(count)[:, None] * (torch.arange(size) + 0.5)
    rows = torch.cos(angle) * math.sqrt(2.0 / size)
    return torch.cat([rows[:1] / math.sqrt(2.0), rows[1:]])


class ClassGaussians(nn.Module):
    """Means, and covariances over the ``frequencies`` × ``frequencies`` lowest DCT frequencies of every channel.

    Class k has variance ``variances[k, i]`` along the eigenvector ``axes[k, :, i]`` of its low-frequency coefficients;
    all higher frequencies have variance ``floor[k]``. At the start every class is an isotropic Gaussian of standard
    deviation ``sigma_data`` around 0. There are no parameters, only buffers.
    """

    down: Tensor
    right: Tensor
    means: Tensor
    axes: Tensor
    variances: Tensor
    floor: Tensor

    def __init__(self, shape: Shape, classes: int, *, frequencies: int, sigma_data: float) -> None:
        super().__init__()
        channels, height, width = shape
        self.pixels = math.prod(shape)
        high, wide = min(frequencies, height), min(frequencies, width)
        self.coefficients = (channels, high, wide)
        size = math.prod(self.coefficients)
        self.register_buffer("down", dct_basis(high, height), persistent=False)
        self.register_buffer("right", dct_basis(wide, width), persistent=False)
        self.register_buffer("means", torch.zeros(classes, *shape))
        self.register_buffer("axes", torch.eye(size).repeat(classes, 1, 1))
        self.register_buffer("variances", torch.full((classes, size), sigma_data**2))
        self.register_buffer("floor", torch.full((classes,), sigma_data**2))

    def analyse(self, images: Tensor) -> Tensor:
        """Low-frequency DCT coefficients of images, ``[B, coefficients]``."""
        return (self.down.to(images) @ images @ self.right.to(images).T).flatten(1)

    def synthesise(self, coefficients: Tensor) -> Tensor:
        """Images of low-frequency DCT coefficients, the inverse transform."""
        maps = coefficients.view(-1, *self.coefficients)
        return self.down.to(coefficients).T @ maps @ self.right.to(coefficients)

    def estimate(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The expected clean image under the class Gaussian, and its root-mean-square error for each row, ``[B]``."""
        noise, outside, inside = sigma.square()[:, None], self.floor[labels][:, None], self.variances[labels]
        rest, gain = outside / (outside + noise), inside / (inside + noise)
        away = noisy - self.means[labels]
        along = self._rotate(self.analyse(away), labels, back=False) * (gain - rest)
        clean = self.means[labels] + per_row(rest) * away + self.synthesise(self._rotate(along, labels, back=True))
        left = (gain * noise).sum(1) + (self.pixels - inside.shape[1]) * (rest * noise)[:, 0]
        return clean, (left / self.pixels).sqrt()

    def size(self, sigma: Tensor, labels: Tensor) -> Tensor:
        """Standard deviation of a noisy image's pixels around the class mean, ``[B]``."""
        inside, outside = self.variances[labels], self.floor[labels]
        total = inside.sum(1) + (self.pixels - inside.shape[1]) * outside
        return (total / self.pixels + sigma.square()).sqrt()

    def draw(self, labels: Tensor, sigma: float) -> Tensor:
        """Images of the class Gaussians with noise of this level added; with torch's global generator."""
        means, inside, outside = self.means[labels], self.variances[labels], self.floor[labels][:, None]
        white = torch.randn_like(means)
        rest = (outside + sigma**2).sqrt()
        along = torch.randn_like(inside) * (inside + sigma**2).sqrt()
        low = self._rotate(along, labels, back=True) - rest * self.analyse(white)
        return means + per_row(rest) * white + self.synthesise(low)

    def _rotate(self, values: Tensor, labels: Tensor, *, back: bool) -> Tensor:
        """Rotate into the eigenvectors of each row's class, or back, by one product for all classes."""
        axes = self.axes.transpose(1, 2) if back else self.axes
        member = (labels[:, None] == torch.arange(len(axes), device=labels.device)).to(values.dtype)
        return (member[:, :, None] * values[:, None, :]).flatten(1) @ axes.to(values.dtype).flatten(0, 1)

    def fit_covariances(self, moments: Tensor, energy: Tensor, counts: Tensor, *, noise_std: float) -> None:
        """Set the covariances from noisy sums over each class.

        Noise alone has eigenvalues up to an edge. Eigenvalues above the edge are corrected for the shift that noise
        causes (a spiked Wigner matrix); the others share what is left of the trace.

        Args:
            moments: Noisy sums of outer products of coefficients, ``[classes, coefficients, coefficients]``.
            energy: Noisy sums of the squared norm of all higher frequencies, ``[classes]``.
            counts: Class counts to divide by, ``[classes]``.
            noise_std: Standard deviation of the noise on the diagonal; off it the noise is √2 smaller.
        """
        size = moments.shape[1]
        for label in range(len(moments)):
            count = float(counts[label])
            noise = noise_std / math.sqrt(2.0) / count
            found, axes = torch.linalg.eigh(moments[label].double() / count)
            total = max(0.0, float(found.sum()))
            above = found > 2.0 * noise * math.sqrt(size)
            true = (found + (found.square() - 4.0 * noise**2 * size).clamp(min=0.0).sqrt()) / 2.0
            left = max(0.0, total - float(true[above].sum())) / max(1, size - int(above.sum()))
            outside = max(0.0, float(energy[label]) / count) / max(1, self.pixels - size)
            self.axes[label] = axes.to(self.axes)
            self.variances[label] = torch.where(above, true, left).clamp(min=_SMALLEST_VARIANCE).to(self.variances)
            self.floor[label] = max(_SMALLEST_VARIANCE, outside)


_NO_BACKGROUND = 0.5
_FAINT = 0.125  # a difference from the background that is not counted to an object
_USUAL_SIZE = 0.35  # the root mean square extent of an aligned object, in half widths
_SHIFT, _SHEAR, _LOG_SIZE = 0.3, 0.8, 0.7
_POSE_WEIGHT = 6.0  # of a pose's numbers beside DCT coefficients
_CHROMA = 0.5  # highest frequency of the two colour differences, relative to that of the luminance


class LowFrequencies(nn.Module):
    """Images to their lowest DCT frequencies, an orthonormal map onto ``size`` numbers, and back.

    Colours are rotated to a grey axis and two colour differences, which keep half the frequencies. ``frequency`` is
    each coefficient's spatial frequency in half periods per image.
    """

    down: Tensor
    right: Tensor
    colours: Tensor
    places: Tensor
    sources: Tensor
    frequency: Tensor

    def __init__(self, shape: Shape, *, highest: float) -> None:
        super().__init__()
        channels, height, width = shape
        high, wide = min(height, math.ceil(highest)), min(width, math.ceil(highest))
        self.grid = (channels, high, wide)
        radius = (torch.arange(high)[:, None].square() + torch.arange(wide).square()).sqrt()
        reach = torch.full((channels, 1, 1), float(highest))
        if channels == 3:
            reach[1:] *= _CHROMA
        places = (radius < reach).flatten().nonzero()[:, 0]
        self.size = len(places)
        colours = dct_basis(3, 3) if channels == 3 else torch.eye(channels)
        tensors = {"down": dct_basis(high, height), "right": dct_basis(wide, width), "colours": colours}
        # Where each place of the grid finds its coefficient; those that are left out find the zero at the end.
        sources = torch.full((radius.numel() * channels,), self.size)
        sources[places] = torch.arange(self.size)
        tensors |= {
            "sources": sources,
            "places": places,
            "frequency": radius.expand(channels, -1, -1).flatten()[places],
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def analyse(self, images: Tensor) -> Tensor:
        """``[B, *shape]`` to ``[B, size]``."""
        maps = self.down.to(images) @ images @ self.right.to(images).T
        rotated = (self.colours.to(images) @ maps.flatten(2)).flatten(1)
        return rotated[:, self.places]

    def synthesise(self, coefficients: Tensor) -> Tensor:
        """``[B, size]`` to ``[B, *shape]``, the transpose."""
        whole = torch.cat([coefficients, torch.zeros_like(coefficients[:, :1])], dim=1)[:, self.sources]
        maps = (self.colours.to(whole).T @ whole.view(-1, self.grid[0], self.grid[1] * self.grid[2])).view(
            -1, *self.grid
        )
        return self.down.to(whole).T @ maps @ self.right.to(whole)


class Pose(nn.Module):
    """Where the object of an image is, and its shear and size: moments of what differs from the background.

    A record's pose depends on that record alone. ``background`` is the grey level of the background, or the middle,
    0.5, where images have none, and every pose is then zero.
    """

    background: Tensor
    numbers = 5

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("background", torch.tensor(_NO_BACKGROUND))

    def measure(self, images: Tensor) -> Tensor:
        """``[B, 5]``: centre, horizontal shear and the logarithms of width and height, in half widths."""
        if not self.present:
            return images.new_zeros(len(images), self.numbers)
        mass = ((images.mean(1) - self.background.to(images)).abs() - _FAINT).clamp(min=0.0)
        down, right = _axes(images)
        whole = mass.sum((1, 2)).clamp(min=1e-3)
        x, y = (mass * right).sum((1, 2)) / whole, (mass * down).sum((1, 2)) / whole
        across, along = right - x[:, None, None], down - y[:, None, None]
        xx, yy, xy = ((mass * a * b).sum((1, 2)) / whole for a, b in ((across,) * 2, (along,) * 2, (across, along)))
        shear = (xy / yy.clamp(min=1e-3)).clamp(-_SHEAR, _SHEAR)
        width, height = (xx - shear * xy).clamp(min=1e-4).sqrt(), yy.clamp(min=1e-4).sqrt()
        sizes = [(size / _USUAL_SIZE).log() for size in (width, height)]
        return _bounded(torch.stack([x, y, shear, *sizes], dim=1))

    def align(self, images: Tensor, pose: Tensor) -> Tensor:
        """Images with their object in the middle, upright and of one size."""
        return _resampled(images, *_affine(pose)) if self.present else images

    def restore(self, images: Tensor, pose: Tensor) -> Tensor:
        """The inverse of ``align``."""
        if not self.present:
            return images
        matrix, shift = _affine(_bounded(pose))
        inverse = torch.linalg.inv(matrix)
        return _resampled(images, inverse, -(inverse @ shift[:, :, None])[:, :, 0])

    @property
    def level(self) -> float:
        """The grey level that is taken out of images: that of the background, or the middle."""
        return float(self.background)

    @property
    def present(self) -> bool:
        return float(self.background) != _NO_BACKGROUND


def _bounded(pose: Tensor) -> Tensor:
    low = pose.new_tensor([-_SHIFT, -_SHIFT, -_SHEAR, -_LOG_SIZE, -_LOG_SIZE])
    return torch.maximum(torch.minimum(pose, -low), low)


def _axes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Heights ``[H, 1]`` and widths ``[W]`` of the pixels' centres in -1..1."""
    height, width = images.shape[2:]
    axes = [(torch.arange(n, device=images.device, dtype=images.dtype) + 0.5) / n * 2.0 - 1.0 for n in (height, width)]
    return axes[0][:, None], axes[1]


def _affine(pose: Tensor) -> tuple[Tensor, Tensor]:
    """From places in the aligned image to places in the image: matrix ``[B, 2, 2]`` and shift ``[B, 2]``."""
    width, height = pose[:, 3].exp(), pose[:, 4].exp()
    rows = torch.stack([width, pose[:, 2] * height, torch.zeros_like(width), height], dim=1)
    return rows.view(-1, 2, 2), pose[:, :2]


def _resampled(images: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    grid = F.affine_grid(torch.cat([matrix, shift[:, :, None]], dim=2), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


class ClassMixtures(nn.Module):
    """For each class ``centres`` Gaussians of one covariance in ``directions`` directions that all classes share.

    They live in the low frequencies of aligned images, together with the pose. A class has its own mean; centres are
    offsets from it. Directions and centres that are not used are zero, with weight zero. There are no parameters,
    only buffers.
    """

    means: Tensor
    basis: Tensor
    centres: Tensor
    weights: Tensor
    factors: Tensor
    outside: Tensor

    def __init__(self, shape: Shape, classes: int, *, highest: float, directions: int, centres: int) -> None:
        super().__init__()
        self.low = LowFrequencies(shape, highest=highest)
        self.pose = Pose()
        self.size = self.low.size + Pose.numbers
        directions = min(directions, self.size)
        self.register_buffer("means", torch.zeros(classes, self.size))
        self.register_buffer("basis", torch.zeros(self.size, directions))
        self.register_buffer("centres", torch.zeros(classes, centres, directions))
        weights = torch.zeros(classes, centres)
        weights[:, 0] = 1.0
        self.register_buffer("weights", weights)
        self.register_buffer("factors", torch.zeros(classes, directions, directions))
        self.register_buffer("outside", torch.tensor(1.0))

    @property
    def frequency(self) -> Tensor:
        """The spatial frequency of every coefficient; that of the pose is 0."""
        return torch.cat([self.low.frequency, self.low.frequency.new_zeros(Pose.numbers)])

    @property
    def bands(self) -> Tensor:
        """The band of frequencies of every coefficient; colour differences and the pose have bands of their own."""
        colour = self.low.places // (self.low.grid[1] * self.low.grid[2])
        band = self.low.frequency.round().long() + 1000 * (colour > 0)
        return torch.cat([band, band.new_full((Pose.numbers,), -1)])

    def encode(self, images: Tensor) -> Tensor:
        """Low frequencies of the aligned images, and their pose, ``[B, size]``; each row from its image alone."""
        images = valid_pixels(images)
        pose = self.pose.measure(images)
        low = self.low.analyse(self.pose.align(images, pose) - self.pose.level)
        return torch.cat([low, _POSE_WEIGHT * pose], dim=1)

    def decode(self, coefficients: Tensor) -> Tensor:
        """Images of such rows; values may lie outside of 0..1."""
        low, pose = coefficients.split([self.low.size, Pose.numbers], dim=1)
        return self.pose.restore(self.low.synthesise(low) + self.pose.level, pose / _POSE_WEIGHT)

    def coordinates(self, images: Tensor, labels: Tensor) -> Tensor:
        """Coordinates of images along the directions, less the mean of their class, ``[B, directions]``."""
        return (self.encode(images) - self.means[labels].to(images)) @ self.basis.to(images)

    def nearest(self, coordinates: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
        """The number of the nearest centre in use, distances being divided by ``scale``, ``[B]``."""
        away = (coordinates[:, None] - self.centres[labels].to(coordinates)) / scale.to(coordinates)
        unused = torch.where(self.weights[labels] > 0, 0.0, math.inf)
        return (away.square().sum(2) + unused).argmin(1)

    def spanned(self) -> Tensor:
        """An orthonormal basis ``[size, n]`` of the directions in use and the differences of class means."""
        used = self.basis[:, self.basis.square().sum(0) > 0]
        differences = (self.means - self.means.mean(0)).T[:, : len(self.means) - 1]
        return torch.linalg.qr(torch.cat([used, differences], dim=1).double())[0].to(self.basis)

    def project(self, images: Tensor, spanned: Tensor) -> Tensor:
        """Images as the mixture could draw them: without what is outside of all class means and directions."""
        overall = self.means.mean(0)
        return self.decode(overall + (self.encode(images) - overall) @ spanned @ spanned.T).clamp(0.0, 1.0)

    def draw(self, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
        """An image for each label, with torch's global generator; values may lie outside of 0..1."""
        centre = torch.multinomial(self.weights[labels], 1)[:, 0]
        normal = torch.randn(len(labels), self.basis.shape[1], device=labels.device, dtype=self.basis.dtype)
        inside = self.centres[labels, centre]
        for label in range(len(self.factors)):
            rows = (labels == label).nonzero()[:, 0]
            inside[rows] += temperature * normal[rows] @ self.factors[label].T
        return self.decode(self.means[labels] + inside @ self.basis.T)

    def log_density(self, images: Tensor) -> Tensor:
        """Log-density of the low frequencies and the pose under each class, ``[B, classes]``.

        Outside of the directions every coefficient has the standard deviation ``outside``.
        """
        low, found = self.encode(images).double(), []
        basis, rest = self.basis.double(), self.outside.double()
        used = (basis.square().sum(0) > 0).nonzero()[:, 0]
        for label in range(len(self.means)):
            away = low - self.means[label].double()
            along = (away @ basis)[:, used]
            left = (away.square().sum(1) - along.square().sum(1)).clamp(min=0.0)
            factor = self.factors[label].double()[used][:, used]
            covariance = factor @ factor.T + 1e-12 * torch.eye(len(used), dtype=factor.dtype, device=factor.device)
            inside = torch.distributions.MultivariateNormal(along.new_zeros(len(used)), covariance)
            members = (self.weights[label] > 0).nonzero()[:, 0]
            each = torch.stack([inside.log_prob(along - self.centres[label, j].double()[used]) for j in members])
            weighted = torch.logsumexp(each + self.weights[label, members].double().log()[:, None], 0)
            numbers = low.shape[1] - len(used)
            outside = -left / (2 * rest.square()) - numbers * (rest.log() + 0.5 * math.log(2 * math.pi))
            found.append(weighted + outside)
        return torch.stack(found, dim=1)
