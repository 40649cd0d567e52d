"""``paddle.dataset``: each data set from files that the user names, or a small one that stands for it.

Where no file is found, a line on stderr says what is read instead.
"""

from fluidlite.paddle.dataset import (
    cifar,
    conll05,
    flowers,
    image,
    imdb,
    imikolov,
    mnist,
    movielens,
    mq2007,
    sentiment,
    uci_housing,
    voc2012,
    wmt14,
    wmt16,
)

__all__ = [
    "cifar",
    "conll05",
    "flowers",
    "image",
    "imdb",
    "imikolov",
    "mnist",
    "movielens",
    "mq2007",
    "sentiment",
    "uci_housing",
    "voc2012",
    "wmt14",
    "wmt16",
]
