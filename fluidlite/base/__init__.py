"""What every package may use: errors, data types, caches, logging and the callback that loads plugins."""
