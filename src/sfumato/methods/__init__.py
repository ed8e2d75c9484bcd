"""The methods, one file each, above ``training``. Each sees a Curator, never the pixels."""

from sfumato.methods.base import Method
from sfumato.methods.dp_lflow import DPLFlow
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.registry import METHODS, find

__all__ = ["DPMERF", "METHODS", "DPLFlow", "Method", "find"]
