"""Trainings and evaluations that are compared, repeated and tabulated; above ``audit`` and ``planning``."""
