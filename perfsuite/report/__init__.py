"""A run, and what was expected of it, as page, Markdown, JSON and terminal."""
