"""``paddle.dataset.common``: paths of the data sets' files. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import os

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset.files import VARIABLE, find, folder


def md5file(fname: str | os.PathLike[str]) -> str:
    """The MD5 of a file, in hexadecimal digits."""
    with open(fname, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, module_name: str, md5sum: str | None, save_name: str | None = None) -> str:
    """The path, in the folder of data sets, of the file that Paddle would download from ``url``.

    Parameters
    ----------
    url : str
        Its last part is the file's name, unless ``save_name`` is given.
    module_name : str
        The subfolder of the file.
    md5sum : str or None
        The expected MD5 of the file.

    Raises
    ------
    LoaderError
        The file is missing or has another MD5.
    """
    name = f"{module_name}/{save_name or url.rpartition('/')[2]}"
    path = find(name)
    if path is None:
        raise LoaderError(f"{name} is not in {_folder()}, and nothing is downloaded\n  Do: put what {url} gives there")
    if md5sum is not None and (actual := md5file(path)) != md5sum:
        raise LoaderError(f"{path} has the MD5 {actual}; expected {md5sum}\n  Do: put what {url} gives in its place")
    return str(path)


def _folder() -> str:
    return str(folder() or f"${VARIABLE}")


def __getattr__(name: str) -> str:
    if name == "DATA_HOME":  # computed at each access: --data may set it after the import
        return _folder()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
