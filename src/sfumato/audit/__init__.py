"""Attacks on guarantees: replay, noise tests, canaries, membership inference; above ``evaluation``."""
