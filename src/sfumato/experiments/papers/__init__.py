"""The papers' tables and figures as commands. A specification is data; nothing here knows a single table."""
