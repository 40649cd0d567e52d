"""Written for plugin API 2: it must not even be imported."""

raise AssertionError("a plugin of another API was imported")
