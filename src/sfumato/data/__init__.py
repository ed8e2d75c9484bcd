"""Reading collections of images, private and public, in many formats."""

from sfumato.data.cache import clear_cache
from sfumato.data.errors import BadInput
from sfumato.data.images import Images, PrivateImages, PublicImages, read

__all__ = ["BadInput", "Images", "PrivateImages", "PublicImages", "clear_cache", "read"]
