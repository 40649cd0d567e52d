"""HOW operators compute: one folder per library or capability, each a plugin like any third party's."""
