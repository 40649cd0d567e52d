"""Sources: the generated texts of an executable, to read, to write to files and to run standalone."""

from fluidlite.compiler.sources.texts import sources_of, write

__all__ = ["sources_of", "write"]
