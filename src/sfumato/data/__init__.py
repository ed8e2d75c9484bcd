"""Reading collections of images, private and public, in many formats; above ``privacy``, whose records it makes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.data.cache import clear_cache
    from sfumato.data.errors import BadInput
    from sfumato.data.images import Images, PrivateImages, PublicImages, read

# Imported when a name is used: the processes that decode parts of a collection need not wait for torch.
_MODULES = {
    "BadInput": "errors",
    "Images": "images",
    "PrivateImages": "images",
    "PublicImages": "images",
    "clear_cache": "cache",
    "read": "images",
}

__all__ = ["BadInput", "Images", "PrivateImages", "PublicImages", "clear_cache", "read"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sfumato.data' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.data.{_MODULES[name]}"), name)
