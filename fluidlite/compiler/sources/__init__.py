"""Sources: the texts of all that an executable runs, to be read, written to files and run by themselves."""

from fluidlite.compiler.sources.texts import sources_of, write

__all__ = ["sources_of", "write"]
