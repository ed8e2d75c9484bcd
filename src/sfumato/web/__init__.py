"""The local page: the whole way in a browser, on this machine only; it may import all but ``cli``."""
