"""A method with an auditor's eyes on its Curator: the same class, with classes of ours slipped in at the door."""

from __future__ import annotations

from sfumato.methods.base import Method
from sfumato.privacy import Curator, Step


def instrumented(
    method: Method, *, curator: type[Curator] = Curator, step: type[Step] = Step, **attributes: object
) -> Method:
    """``method`` behind a Curator that is both its own kind and ``curator``, with steps that are also ``step``.

    What the method's own Curator does (a broken twin has one of its own) still happens; ours is asked first.
    ``attributes`` become class attributes of the Curator, for what the auditor wants to hand in or get out.
    """
    own = type(method).curator_type
    step_type = type(step.__name__, _bases(step, own.step_type), {})
    curator_type = type(curator.__name__, _bases(curator, own), {"step_type": step_type, **attributes})
    kind: type[Method] = type(type(method).__name__, (type(method),), {"curator_type": curator_type})
    return kind(**method.parameters())


def _bases(ours: type, own: type) -> tuple[type, ...]:
    return (own,) if issubclass(own, ours) else (ours,) if issubclass(ours, own) else (ours, own)
