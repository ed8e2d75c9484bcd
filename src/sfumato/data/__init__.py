from sfumato.data.images import Images, PrivateImages, PublicImages

__all__ = ["Images", "PrivateImages", "PublicImages"]
