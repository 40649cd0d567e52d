"""The books of ``examples/book``: their first losses are equal on places, and their saved models predict alike."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from grouped import Member, run_each

import fluidlite as fluid
from fluidlite.base.errors import MissingExtraError, ProgramError
from fluidlite.cli import books
from fluidlite.cli.books import book_names, book_programs, run_program
from fluidlite.cli.main import main

pytestmark = pytest.mark.skipif(not find_spec("sklearn"), reason="the data of some books come from scikit-learn")
MAX_LOSS_DIFFERENCE = 1e-4
QUICK_STEPS = {
    "fit_a_line": 20,
    "recognize_digits:mlp": 20,
    "recognize_digits:conv": 20,
    "word2vec:dense": 20,
    "word2vec:sparse": 20,
    "image_classification:vgg": 0,
    "image_classification:resnet": 2,
    "label_semantic_roles": 2,
}
"""Steps of the quick check, where not 4; none of what takes longest to compile, which WHOLE checks."""
WHOLE = os.environ.get("FLUIDLITE_BOOKS") == "whole"
COMPARED = {"image_classification:vgg": 5, "image_classification:resnet": 5, "understand_sentiment:stacked_lstm": 5}


def each_program(book: str, check: Callable[[books.BookProgram], None]) -> None:
    """Check every program of a book; a book whose packages are missing is skipped."""
    try:
        programs = book_programs(book)
    except MissingExtraError as exc:
        pytest.skip(str(exc))
    run_each((Member(each.name, {"program": each}) for each in programs), lambda member: check(**member.values))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("book", book_names())
def test_first_losses_are_equal_on_places(book: str) -> None:
    """On the cpu and on one other place, the next program on the next one; WHOLE compares all places."""
    turns = itertools.count(book_names().index(book))

    def check(program: books.BookProgram) -> None:
        steps = QUICK_STEPS.get(program.name, 4)
        if not steps:
            pytest.skip(f"{program.name} is left to FLUIDLITE_BOOKS=whole")
        first, *others = fluid.places()
        places = [first, others[next(turns) % len(others)]] if others else [first]
        found = [run_program(program, str(place), steps) for place in places]
        for each in found:
            assert not each.problems, (each.place, each.problems)
            assert each.losses == pytest.approx(found[0].losses, rel=MAX_LOSS_DIFFERENCE), each.place

    each_program(book, check)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not WHOLE, reason="trains every program to its goal on every place: FLUIDLITE_BOOKS=whole does")
@pytest.mark.parametrize("book", book_names())
def test_goals_are_reached_on_every_place(book: str) -> None:
    def check(program: books.BookProgram) -> None:
        found = [run_program(program, str(place)) for place in fluid.places()]
        count = COMPARED.get(program.name, 20)
        for each in found:
            assert not each.problems, (each.place, each.problems)
            assert each.losses[:count] == pytest.approx(found[0].losses[:count], rel=MAX_LOSS_DIFFERENCE), each.place

    each_program(book, check)


def test_run_book_prints_loss_metric_kernels_and_transfers(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run-book", "fit_a_line", "--steps", "3"]) == 0
    printed = capfd.readouterr().out
    for text in (
        "step 3 of 3: loss",
        "mean squared error",
        "kernels of a training step: ",
        "transfers of a training step: ",
        "seconds: ",
    ):
        assert text in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run-book", "no_such_book"], "there is no book 'no_such_book'"),
        (["run-book", "fit_a_line:other"], "fit_a_line has no program 'other'"),
        (["run-book", "fit_a_line", "--place", "nowhere"], "nowhere"),
    ],
)
def test_run_book_refuses(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("text", [b"def f(:\n", b"\0", b"x = '\xff'\n", b"  x = 1\n y = 2\n", b"import bad_part\n"])
def test_run_book_refuses_what_is_no_python(text: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad_part.py").write_text("return 3")
    book = tmp_path / "bad.py"
    book.write_bytes(text)
    assert main(["run-book", str(book)]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("ProgramError: the book bad cannot be compiled: ") and "Traceback" not in printed


@pytest.mark.parametrize(
    ("line", "verb", "tags"),
    [
        (
            "x = self . y [ 0 ] . f ( a , g ( b , c ) , d , k = e )",
            9,
            "O O 0 1 1 1 1 1 O O O 2 O 4 5 5 5 5 5 O 6 O 6 7 7 O",
        ),
        ("f ( g ( x ) . y . h ( ) , * z )", 9, "O O 0 1 1 1 1 1 O O O O O O O O"),
        ("return f ( a = 1 )", 1, "O O O 6 7 7 O"),
        ("f ( ( a , b ) , [ c ] )", 0, "O O 2 3 3 3 3 O 4 5 5 O"),
    ],
)
def test_roles_of_a_call(line: str, verb: int, tags: str) -> None:
    (program,) = book_programs("label_semantic_roles")
    outside = program.module.OUTSIDE
    wanted = [outside if tag == "O" else int(tag) for tag in tags.split()]
    assert program.module.roles(line.split(), verb) == wanted
    assert program.module.roles(line.split()[:-1], verb) in (None, wanted[:-1])


def test_a_missed_goal_is_a_problem_of_a_whole_training_alone() -> None:
    (program,) = book_programs("fit_a_line")
    missed = replace(program, goal=0.0, steps=3)
    assert run_program(missed, "cpu", 2).problems == []
    (problem,) = run_program(missed, "cpu").problems
    assert problem.startswith("the mean squared error of the test part, in variances is ")


def test_a_file_that_is_no_book_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("DATA = METRIC = ''\n")
    with pytest.raises(ProgramError, match="has no GOAL"):
        book_programs(str(tmp_path / "mine.py"))
    (tmp_path / "mine.py").write_text("import no_such_package\n")
    with pytest.raises(MissingExtraError, match="the book mine needs no_such_package"):
        book_programs(str(tmp_path / "mine.py"))
