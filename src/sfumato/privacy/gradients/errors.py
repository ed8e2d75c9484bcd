"""Why something cannot be counted: an inner signal to try another way, and the error a user sees."""


class UntracedUse(Exception):
    """The book-keeping does not understand how a parameter is used; the torch.func path may."""


class UnsupportedModel(ValueError):
    """No way of counting is sound for this model and loss. The message says which rule broke and what to do."""
