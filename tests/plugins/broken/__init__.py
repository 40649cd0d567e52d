"""Plugins that are broken on purpose, each in another way."""
