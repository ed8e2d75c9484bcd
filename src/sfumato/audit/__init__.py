"""Attacks on guarantees: neighbour replay, noise tests, canaries, membership inference."""
