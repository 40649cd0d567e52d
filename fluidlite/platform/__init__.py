"""Places, devices and their contexts."""
