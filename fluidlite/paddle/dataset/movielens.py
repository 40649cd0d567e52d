"""``paddle.dataset.movielens``: users' ratings of movies, with features of both."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files

Sample = list[object]
_FILE = "movielens/ml-1m.zip"
_MAX_BYTES = 256 << 20
_TITLE = re.compile(r"^(.*)\((\d+)\)$")
_TEST_SHARE = 0.1

age_table = [1, 18, 25, 35, 45, 50, 56]
"""The lower bound of each age group."""


class MovieInfo:
    """A movie: its number, the names of its categories, its title without the year."""

    def __init__(self, index: int, categories: list[str], title: str) -> None:
        self.index, self.categories, self.title = int(index), categories, title

    def value(self) -> list[object]:
        """Its number, indices of its categories, indices of the words of its title."""
        kinds, words = movie_categories(), get_movie_title_dict()
        return [self.index, [kinds[c] for c in self.categories], [words[w.lower()] for w in self.title.split()]]

    def __repr__(self) -> str:
        return f"<MovieInfo id({self.index}), title({self.title}), categories({self.categories})>"


class UserInfo:
    """A user: number, gender, age group, job."""

    def __init__(self, index: int, gender: str, age: int, job_id: int) -> None:
        self.index, self.is_male = int(index), gender == "M"
        self.age, self.job_id = age_table.index(int(age)), int(job_id)

    def value(self) -> list[object]:
        """Number, 0 (male) or 1, age group, job."""
        return [self.index, 0 if self.is_male else 1, self.age, self.job_id]

    def __repr__(self) -> str:
        gender = "M" if self.is_male else "F"
        return f"<UserInfo id({self.index}), gender({gender}), age({age_table[self.age]}), job({self.job_id})>"


class _Tables:
    """Movies, users and ratings of one file."""

    def __init__(self, movies: list[MovieInfo], users: list[UserInfo], ratings: list[tuple[int, int, float]]) -> None:
        self.movies = {movie.index: movie for movie in movies}
        self.users = {user.index: user for user in users}
        self.ratings = ratings
        kinds = sorted({kind for movie in movies for kind in movie.categories})
        words = sorted({word.lower() for movie in movies for word in movie.title.split()})
        self.kinds, self.words = ({name: i for i, name in enumerate(names)} for names in (kinds, words))


_tables_of_file: dict[tuple[str, float] | None, _Tables] = {}
"""The tables of the last file, by its path and state."""


def _tables() -> _Tables:
    substitute = "5,000 generated ratings of 120 movies by 200 users"
    return files.read_once(_tables_of_file, "movielens", _FILE, _from_file, _generated, substitute)


def _from_file(path: Path) -> _Tables:
    contents = {name.rsplit("/", 1)[-1]: content for name, content in files.zip_members(path, "ml-1m/", _MAX_BYTES)}
    rows: dict[str, list[list[str]]] = {}
    for name, columns in (("movies.dat", 3), ("users.dat", 5), ("ratings.dat", 4)):
        if name not in contents:
            raise LoaderError(f"{path} has no file ml-1m/{name}")
        rows[name] = [line.strip().split("::") for line in files.lines(contents[name], "latin-1") if line.strip()]
        for number, row in enumerate(rows[name]):
            if len(row) != columns:
                raise LoaderError(f"{path}: ml-1m/{name}, line {number + 1}, has {len(row)} columns of {columns}")
    try:
        movies = []
        for index, title, kinds in rows["movies.dat"]:
            match = _TITLE.match(title)
            movies.append(MovieInfo(int(index), kinds.split("|"), match[1] if match is not None else title))
        users = [UserInfo(int(row[0]), row[1], int(row[2]), int(row[3])) for row in rows["users.dat"]]
        ratings = [(int(row[0]), int(row[1]), float(row[2])) for row in rows["ratings.dat"]]
        tables = _Tables(movies, users, ratings)
    except ValueError as exc:
        raise LoaderError(f"{path} is no MovieLens: {exc}") from None
    invalid = [row for row in ratings if row[0] not in tables.users or row[1] not in tables.movies]
    if invalid or not ratings:
        raise LoaderError(f"{path} has no ratings, or ratings of users or movies that it does not have: {invalid[:1]}")
    return tables


def _generated() -> _Tables:
    """Generated ratings: they depend on the user's age group and the movie's categories."""
    rng = np.random.default_rng(0)
    kinds = ["Action", "Comedy", "Drama", "Horror", "Romance", "Sci-Fi"]
    words = ["Last", "Night", "River", "Star", "Home", "City", "Dance", "Winter", "Road", "Dream"]
    movies = []
    for index in range(1, 121):
        chosen = rng.choice(kinds, rng.integers(1, 3), replace=False)
        movies.append(MovieInfo(index, [str(k) for k in chosen], " ".join(map(str, rng.choice(words, 3))) + " "))
    users = [
        UserInfo(i, "MF"[rng.integers(2)], int(rng.choice(age_table)), int(rng.integers(0, 21))) for i in range(1, 201)
    ]
    preferences = rng.normal(0, 1.2, (len(age_table), len(kinds)))
    ratings = []
    for _ in range(5000):
        user, movie = users[rng.integers(len(users))], movies[rng.integers(len(movies))]
        preference = np.mean([preferences[user.age, kinds.index(kind)] for kind in movie.categories])
        ratings.append((user.index, movie.index, float(np.clip(np.rint(3 + preference + rng.normal(0, 0.4)), 1, 5))))
    return _Tables(movies, users, ratings)


def _samples(is_test: bool) -> Iterator[Sample]:
    tables, rng = _tables(), random.Random(0)
    users = {index: user.value() for index, user in tables.users.items()}
    movies = {index: movie.value() for index, movie in tables.movies.items()}
    for user, movie, rating in tables.ratings:
        if (rng.random() < _TEST_SHARE) == is_test:
            yield [*users[user], *movies[movie], [rating * 2 - 5.0]]


def train() -> Callable[[], Iterator[Sample]]:
    """A reader of nine tenths of the ratings: user, gender, age, job, movie, categories, title, [rating] in -3..5."""
    return partial(_samples, False)


def test() -> Callable[[], Iterator[Sample]]:
    """A reader of the other tenth."""
    return partial(_samples, True)


def get_movie_title_dict() -> dict[str, int]:
    """Indices of the words of titles."""
    return _tables().words


def movie_categories() -> dict[str, int]:
    """Indices of the categories."""
    return _tables().kinds


def movie_info() -> dict[int, MovieInfo]:
    """The movies by number."""
    return _tables().movies


def user_info() -> dict[int, UserInfo]:
    """The users by number."""
    return _tables().users


def max_movie_id() -> int:
    """The largest number of a movie."""
    return max(_tables().movies)


def max_user_id() -> int:
    """The largest number of a user."""
    return max(_tables().users)


def max_job_id() -> int:
    """The largest number of a job."""
    return max(user.job_id for user in _tables().users.values())
