"""Sfumato: synthetic images from private ones, under a differential privacy guarantee that can be checked.

>>> import sfumato as sf
>>> plan = sf.DPMERF().plan(sf.Budget(epsilon=1, delta=1e-5))
>>> plan.epsilon <= 1
True
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.audit.replay import replay
    from sfumato.data import BadInput, Images, PrivateImages, PublicImages, read
    from sfumato.evaluation.evaluate import evaluate
    from sfumato.methods import Method
    from sfumato.methods.dp2_vae import DP2VAE
    from sfumato.methods.dp_diffusion import DPDiffusion
    from sfumato.methods.dp_lflow import DPLFlow
    from sfumato.methods.dp_merf import DPMERF
    from sfumato.methods.dp_mixture import DPMixture
    from sfumato.methods.dp_realnvp import DPRealNVP
    from sfumato.methods.dp_vae import DPVAE
    from sfumato.methods.dpaf import DPAF
    from sfumato.methods.dppm import DPPM
    from sfumato.methods.gs_wgan import GSWGAN
    from sfumato.methods.privae import PRIVAE
    from sfumato.methods.published.dp2_vae import DP2VAEPublished
    from sfumato.methods.published.dpaf import DPAFPublished
    from sfumato.methods.published.dppm import DPPMPublished
    from sfumato.methods.registry import load
    from sfumato.planning.expected_use import PublicFacts
    from sfumato.planning.plan import choose_method, plan_all
    from sfumato.privacy import Budget, Ledger, NoGuarantee
    from sfumato.release import Card, Release, SyntheticImages
    from sfumato.report.comparison import compare
    from sfumato.training.own_loop import DPSGD

    __version__: str

# The modules that define the public names. They are imported when a name is used, so that ``sfumato --help`` need not
# wait for torch.
_MODULES = {
    "Budget": "privacy",
    "NoGuarantee": "privacy",
    "Ledger": "privacy",
    "read": "data",
    "Images": "data",
    "PrivateImages": "data",
    "PublicImages": "data",
    "BadInput": "data",
    "SyntheticImages": "release",
    "Release": "release",
    "Card": "release",
    "Method": "methods",
    "load": "methods.registry",
    "DP2VAEPublished": "methods.published.dp2_vae",
    "DPAFPublished": "methods.published.dpaf",
    "DPPMPublished": "methods.published.dppm",
    "DPDiffusion": "methods.dp_diffusion",
    "DPLFlow": "methods.dp_lflow",
    "DPMERF": "methods.dp_merf",
    "DPMixture": "methods.dp_mixture",
    "DPRealNVP": "methods.dp_realnvp",
    "DPVAE": "methods.dp_vae",
    "DP2VAE": "methods.dp2_vae",
    "DPAF": "methods.dpaf",
    "DPPM": "methods.dppm",
    "GSWGAN": "methods.gs_wgan",
    "PRIVAE": "methods.privae",
    "PublicFacts": "planning.expected_use",
    "plan_all": "planning.plan",
    "choose_method": "planning.plan",
    "DPSGD": "training.own_loop",
    "evaluate": "evaluation.evaluate",
    "compare": "report.comparison",
    "replay": "audit.replay",
}

__all__ = [
    "DP2VAE",
    "DPAF",
    "DPMERF",
    "DPPM",
    "DPSGD",
    "DPVAE",
    "GSWGAN",
    "PRIVAE",
    "BadInput",
    "Budget",
    "Card",
    "DP2VAEPublished",
    "DPAFPublished",
    "DPDiffusion",
    "DPLFlow",
    "DPMixture",
    "DPPMPublished",
    "DPRealNVP",
    "Images",
    "Ledger",
    "Method",
    "NoGuarantee",
    "PrivateImages",
    "PublicFacts",
    "PublicImages",
    "Release",
    "SyntheticImages",
    "__version__",
    "choose_method",
    "compare",
    "evaluate",
    "load",
    "plan_all",
    "read",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("sfumato")
    if name not in _MODULES:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
