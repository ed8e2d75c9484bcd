"""The collection of awkward units, for tests anywhere in the suite."""

from sfumato.audit.worst_case import CLASSES, worst_case_images

__all__ = ["CLASSES", "worst_case_images"]
