"""Built-in devices: plugins like any other."""
