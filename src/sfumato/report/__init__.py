"""Pages for people, made from JSON files and releases: a public one, and internal ones that may not leave."""
