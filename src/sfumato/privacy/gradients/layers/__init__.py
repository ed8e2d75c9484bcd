"""One file for each kind of layer; importing it enters its rules into ``tracked.RULES``."""

from sfumato.privacy.gradients.layers import convolution, embedding, linear, normalisation, parameter

__all__ = ["convolution", "embedding", "linear", "normalisation", "parameter"]
