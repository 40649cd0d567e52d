"""``paddle.dataset.uci_housing``: 13 scaled features, float32 [13], and a price, float32 [1]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files

Sample = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
feature_names = ["CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT"]
_FILE = "uci_housing/housing.data"
_TRAIN_RATIO = 0.8


def train() -> Callable[[], Iterator[Sample]]:
    """A reader of the first four fifths."""
    return partial(_samples, True)


def test() -> Callable[[], Iterator[Sample]]:
    """A reader of the last fifth."""
    return partial(_samples, False)


def _samples(train: bool) -> Iterator[Sample]:
    rows = _rows()
    split = int(len(rows) * _TRAIN_RATIO)
    for row in rows[:split] if train else rows[split:]:
        yield row[:-1].astype("float32"), row[-1:].astype("float32")


def _rows() -> Any:
    path = files.find(_FILE)
    rows = _substitute() if path is None else _table(path)
    features = rows[:, :-1]
    spread = features.max(axis=0) - features.min(axis=0)
    features = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return np.concatenate([features, rows[:, -1:]], axis=1)


def _table(path: Path) -> Any:
    try:
        numbers = np.array(files.read(path).split(), dtype="float64")
    except ValueError as exc:
        raise LoaderError(f"{path} is no table of numbers: {exc}") from None
    if not numbers.size or numbers.size % 14 or not np.isfinite(numbers).all():
        raise LoaderError(f"{path} has {numbers.size:,} numbers; expected rows of 14 finite ones")
    return numbers.reshape(-1, 14)


def _substitute() -> Any:
    """Substitute: ten real features and three products of them, 13 in all as in the data set."""
    try:
        from sklearn.datasets import load_diabetes
    except ImportError:
        files.report_substitute("uci_housing", _FILE, "506 generated rows, a linear price in noise")
        rng = np.random.default_rng(0)
        features = rng.normal(size=(506, 13))
        price = features @ np.linspace(-3, 3, 13) + 22.5 + rng.normal(size=506)
        return np.concatenate([features, price[:, None]], axis=1)
    files.report_substitute(
        "uci_housing", _FILE, "scikit-learn's diabetes (442 real rows; 10 features, 3 products of two; target / 10)"
    )
    features, target = load_diabetes(return_X_y=True)
    bmi, pressure, s5 = features[:, 2], features[:, 3], features[:, 8]
    products = np.stack([bmi * pressure, bmi * s5, pressure * s5], axis=1)
    return np.concatenate([features, products, target[:, None] / 10.0], axis=1)
