"""``paddle.dataset``: data sets read from files of the user, or small substitutes.

If a file is missing, a line on stderr names the substitute.
"""

from fluidlite.paddle.dataset import (
    cifar as cifar,
    common as common,
    conll05 as conll05,
    flowers as flowers,
    image as image,
    imdb as imdb,
    imikolov as imikolov,
    mnist as mnist,
    movielens as movielens,
    mq2007 as mq2007,
    sentiment as sentiment,
    uci_housing as uci_housing,
    voc2012 as voc2012,
    wmt14 as wmt14,
    wmt16 as wmt16,
)
