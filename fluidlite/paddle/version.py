"""``paddle.version``: the version of Paddle with which fluidlite is compatible."""

from fluidlite.compat.installation import FLUID

__all__ = ["commit", "full_version", "istaged", "major", "minor", "mkl", "patch", "rc", "show", "with_mkl"]

major, minor, patch = map(str, FLUID)
rc = "0"
full_version = f"{major}.{minor}.{patch}"
commit = "unknown"
istaged = True
with_mkl = "OFF"


def show() -> None:
    """Print the version."""
    print("full_version:", full_version)
    for part in ("major", "minor", "patch", "rc"):
        print(f"{part}:", globals()[part])


def mkl() -> str:
    """Return "OFF": MKL is not included."""
    return with_mkl
