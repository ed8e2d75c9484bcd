from sfumato.data.images import Images, PrivateImages, PublicImages, read
from sfumato.data.problem import BadInput
from sfumato.data.store import clear_cache

__all__ = ["BadInput", "Images", "PrivateImages", "PublicImages", "clear_cache", "read"]
