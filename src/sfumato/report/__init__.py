"""Pages for people, from result files and releases: a public one, and internal ones; above ``experiments``."""
