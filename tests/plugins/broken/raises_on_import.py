"""Its driver is missing, and it asks for it too early."""

import acme_driver_that_nobody_has  # noqa: F401
