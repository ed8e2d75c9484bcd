"""Why a gradient cannot be found: an internal signal to try another way, and the error a user sees."""


class UntracedUse(Exception):
    """Tracing does not understand how a parameter is used; torch.func may."""


class UnsupportedModel(ValueError):
    """No way of finding gradients is sound for this model and loss; the message says why and what to do."""
