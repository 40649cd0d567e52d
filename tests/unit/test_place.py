"""Place: a value with a text form."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, strategies as st

import fluidlite as fluid
from fluidlite import Place
from fluidlite.base.errors import PlaceError

kinds = st.from_regex(r"[a-z][a-z0-9_]{0,8}(:[a-z][a-z0-9_]{0,8}){0,2}", fullmatch=True)


@given(kinds, st.integers(0, 10**9))
def test_text_goes_both_ways(kind: str, index: int) -> None:
    place = Place(kind, index)
    assert str(place) == f"{kind}:{index}"
    assert Place.parse(str(place)) == place
    assert Place.parse(kind) == Place(kind, 0)
    assert hash(Place.parse(str(place))) == hash(place)


@given(st.text(max_size=12))
def test_any_text_is_a_place_or_a_place_error(text: str) -> None:
    try:
        place = Place.parse(text)
    except PlaceError:
        return
    assert str(place).startswith(place.kind)
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "cpu:",
        ":0",
        "CPU",
        "cpu:-1",
        "cpu:1.5",
        "cpu 0",
        "cpu:0:",
        "0",
        "cpu:٣",
        "a b",
        "torch:mps:x y",
        "cpu\n",
    ],
)
def test_wrong_texts(text: str) -> None:
    with pytest.raises(PlaceError, match="is not a place"):
        Place.parse(text)


@pytest.mark.parametrize("index", [-1, 1.0, True, "0", None, 10**9 + 1, 10**400])
def test_wrong_indices(index: object) -> None:
    with pytest.raises(PlaceError, match="the index of place 'cpu' is"):
        Place("cpu", index)  # type: ignore[arg-type]


def test_the_last_digits_are_the_index() -> None:
    assert (Place.parse("torch:mps").kind, Place.parse("torch:mps").index) == ("torch:mps", 0)
    assert (Place.parse("torch:mps:3").kind, Place.parse("torch:mps:3").index) == ("torch:mps", 3)


def test_a_place_is_a_value() -> None:
    place = fluid.OpenCLPlace(1)
    assert place == Place("opencl", 1) == Place.parse("opencl:1")
    assert place != Place("opencl", 0)
    assert place != "opencl:1"
    assert fluid.CPUPlace() == fluid.CUDAPinnedPlace() == Place("cpu")
    assert fluid.CUDAPlace(2) == Place("cuda", 2)
    assert {place: 1}[Place("opencl", 1)] == 1
    assert Place.parse(place) is place
    assert pickle.loads(pickle.dumps(place)) is copy.deepcopy(place) is Place.parse(str(place)) is place
    assert repr(place) == "Place('opencl:1')"
    with pytest.raises(AttributeError, match="a Place is a value"):
        place.index = 2
    with pytest.raises(PlaceError, match="3 is not a place"):
        Place.parse(3)  # type: ignore[arg-type]
