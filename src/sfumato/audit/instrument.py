"""Run a method with an audit's own Curator and Step in place of the usual ones."""

from __future__ import annotations

from sfumato.methods.base import Method
from sfumato.privacy import Curator, Step


def instrumented(
    method: Method, *, curator: type[Curator] = Curator, step: type[Step] = Step, **attributes: object
) -> Method:
    """``method`` with a Curator that derives from ``curator`` and from its own type, and steps likewise.

    The overrides of the method's own Curator (some broken methods have one) still apply, after the audit's.
    ``attributes`` become class attributes of the Curator: the inputs and outputs of the audit.
    """
    own = type(method).curator_type
    step_type = type(step.__name__, _bases(step, own.step_type), {})
    curator_type = type(curator.__name__, _bases(curator, own), {"step_type": step_type, **attributes})
    kind: type[Method] = type(type(method).__name__, (type(method),), {"curator_type": curator_type})
    return kind(**method.parameters())


def _bases(ours: type, own: type) -> tuple[type, ...]:
    return (own,) if issubclass(own, ours) else (ours,) if issubclass(ours, own) else (ours, own)
