"""``paddle.utils.plot``: curves of costs, drawn by matplotlib if it is installed."""

from __future__ import annotations

import importlib
import os
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.base.log import logger

__all__ = ["Ploter"]


class Ploter:
    """Curves by title.

    Nothing is drawn without matplotlib, or where the variable ``DISABLE_PLOT`` is ``True``.

    Parameters
    ----------
    *titles : str
    """

    def __init__(self, *titles: str) -> None:
        self._curves: dict[str, tuple[list[Any], list[Any]]] = {title: ([], []) for title in titles}

    def append(self, title: str, step: Any, value: Any) -> None:
        """Add a point to a curve."""
        if title not in self._curves:
            raise ProgramError(
                f"Ploter.append: title is {title!r}; expected one of {', '.join(map(repr, self._curves))}"
            )
        for points, point in zip(self._curves[title], (step, value), strict=True):
            points.append(point)

    def plot(self, path: str | None = None) -> None:
        """Draw the curves that have points, into a file or on the screen."""
        if os.environ.get("DISABLE_PLOT") == "True":
            return
        try:
            plt = importlib.import_module("matplotlib.pyplot")
        except ImportError:
            logger.info("paddle.utils.plot draws nothing: matplotlib is not installed")
            return
        for title, (steps, values) in self._curves.items():
            if steps:
                plt.plot(steps, values, label=title)
        plt.legend(loc="upper left")
        if path is None:
            plt.pause(0.001)
        else:
            plt.savefig(path)
        plt.clf()

    def reset(self) -> None:
        """Remove all points."""
        self._curves = {title: ([], []) for title in self._curves}
