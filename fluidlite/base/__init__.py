"""What every floor may use: errors, data types, logging and the loader's bell."""
