"""The local page: the whole way in a browser, on this machine only. Started by ``sfumato web``."""
