"""Scripts that say ``import paddle`` run as they are, and leave nothing behind."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.paddle import compat, dataset, reader, run_script
from fluidlite.paddle.__main__ import main
from fluidlite.paddle.dataset import files
from fluidlite.paddle.script import ScriptError

BOOK = """
from __future__ import print_function
import sys
import numpy
import paddle
import paddle.fluid as fluid
import paddle.fluid.core as core
from paddle.fluid.layers.nn import fc
from paddle.dataset import uci_housing
import paddle.dataset.mnist as mnist
import helper

with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(core.Scope()):
    x = fluid.layers.data(name='x', shape=[13], dtype='float32')
    y = fluid.layers.data(name='y', shape=[1], dtype='float32')
    cost = fluid.layers.mean(fluid.layers.square_error_cost(input=fc(input=x, size=1), label=y))
    fluid.optimizer.SGD(learning_rate=0.01).minimize(cost)
    train = paddle.batch(paddle.reader.shuffle(uci_housing.train(), buf_size=500), batch_size=20)
    place = fluid.CPUPlace()
    feeder = fluid.DataFeeder(place=place, feed_list=[x, y])
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    costs = []
    for epoch in range(8):
        for data in train():
            value, = exe.run(fluid.default_main_program(), feed=feeder.feed(data), fetch_list=[cost])
            costs.append(float(numpy.ravel(value)[0]))
same = fluid.layers is sys.modules['paddle.fluid.layers'] and mnist.train is paddle.dataset.mnist.train
arguments = sys.argv[1:]
name = __name__
"""


@pytest.fixture(autouse=True)
def no_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(files.VARIABLE, raising=False)
    monkeypatch.setattr(files, "_chosen_folder", [])
    monkeypatch.setattr(files, "_reported", set())
    yield


def write(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_book_runs_and_leaves_no_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "", "helper.py")
    before = (sys.argv, list(sys.path), list(sys.meta_path), sys.modules["__main__"], fluid.layers.__spec__)
    found: Any = run_script(write(tmp_path, BOOK), ["a", "b"])
    sys.modules.pop("helper", None)
    assert np.mean(found["costs"][-20:]) < 0.6 * np.mean(found["costs"][:5])
    assert found["same"] and found["arguments"] == ["a", "b"] and found["name"] == "__main__"
    assert [name for name in sys.modules if name.split(".")[0] == "paddle"] == []
    assert before == (sys.argv, sys.path, sys.meta_path, sys.modules["__main__"], fluid.layers.__spec__)
    said = capsys.readouterr().err
    assert said.count("paddle.dataset.uci_housing: ") == said.count("\n") == 1


def test_an_installed_paddle_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    installed = types.ModuleType("paddle")
    monkeypatch.setitem(sys.modules, "paddle", installed)
    run_script(write(tmp_path, "import paddle\nassert paddle.batch"))
    assert sys.modules["paddle"] is installed


def test_an_import_hides_no_layer(tmp_path: Path) -> None:
    """As in Fluid, ``layers.rnn`` is a module by import, and a layer by attribute."""
    script = tmp_path / "script.py"
    script.write_text(
        "import paddle.fluid.layers.rnn\n"
        "from paddle.fluid.layers.rnn import GRUCell, dynamic_decode\n"
        "import paddle.fluid as fluid\n"
        "found = callable(fluid.layers.rnn) and dynamic_decode is fluid.layers.dynamic_decode\n"
    )
    assert run_script(script)["found"] is True


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("import paddle.fluid as fluid\nx = 1\nfluid.layers.fc(None, 3)\n", 3, "fc"),
        ("import paddle\ndef f():\n    1 / 0\nf()\n", 3, "ZeroDivisionError"),
        ("import paddle.fluid.no_such_part\n", 1, "No module named 'paddle.fluid.no_such_part'"),
        ("import paddle\nprint 'old'\n", 2, "SyntaxError"),
    ],
)
def test_errors_keep_the_scripts_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: int, says: str
) -> None:
    path = write(tmp_path, text)
    assert main([str(path)]) == 1
    told = capsys.readouterr().err
    assert f'File "{path}", line {line}' in told and says in told
    assert ", in run_script" not in told  # the traceback begins in the script
    assert not any(name.startswith("paddle") for name in sys.modules)


def test_as_a_command(tmp_path: Path) -> None:
    path = write(tmp_path, "import sys, paddle.fluid\nprint(sys.argv[1:])\nsys.exit(3)\n")
    found = subprocess.run(
        [sys.executable, "-m", "fluidlite.paddle", path, "--data", "x"], capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (3, "['--data', 'x']\n")


def test_what_cannot_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.py")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["--data", str(tmp_path / "none"), "x.py"]) == 2
    assert "is no folder" in capsys.readouterr().err
    with pytest.raises(ScriptError, match="the script raised KeyError"):
        run_script(write(tmp_path, "{}[1]"))


COMPATIBLE = """
import paddle
import paddle.compat as cpt
from paddle import version

held = [b"a", {b"b", "c"}, None]
same = cpt.to_text(held, inplace=True)
found = [
    same is held, held, cpt.to_bytes([u"\u00e9", None, b"x"]), cpt.to_text(3), cpt.round(2.5), cpt.round(-2.5),
    cpt.round(0.125, 2), cpt.round(-0.0), cpt.floor_division(7, -2), cpt.get_exception_message(ValueError("why")),
    cpt.long_type(3), paddle.__version__ == version.full_version, version.mkl(),
]
version.show()
"""


def test_what_scripts_for_both_pythons_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: Any = run_script(write(tmp_path, COMPATIBLE))
    assert found["found"] == [
        *(True, ["a", {"b", "c"}, None], ["\u00e9".encode(), None, b"x"], 3, 3.0, -3.0),
        *(0.13, 0.0, -4, "why", 3, True, "OFF"),
    ]
    assert capsys.readouterr().out.splitlines()[0] == "full_version: 1.8.5"
    with pytest.raises(ScriptError, match=r"compat.to_bytes got int 3"):
        run_script(write(tmp_path, "import paddle.compat as cpt; cpt.to_bytes([3])"))


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_that_have_nothing_to_round(sign: int) -> None:
    whole = [2.0**52, 2.0**52 + 1, 2.0**53 - 1, 2.0**60, 1e22, 1e308, sys.float_info.max, float("inf")]
    for number in (sign * each for each in whole):
        for decimals in (0, 1, 2, 17, 308, 400):
            assert compat.round(number, decimals) == number
    for number, decimals in ((5e-324, 400), (1.5, 400), (123.456, 308), (0.1 + 0.2, 20)):
        assert compat.round(sign * number, decimals) == sign * number
    assert np.isnan(compat.round(sign * float("nan"), 2))
    for number, decimals, rounded in (
        (2.0**52 - 1.5, 0, 2.0**52 - 1), (2.0**51 + 0.5, 0, 2.0**51 + 1), (2.5, 0, 3.0), (25, -1, 30.0),
        (12345678901234567.0, -6, 12345678901000000.0), (0.0, 3, 0.0),
    ):  # fmt: skip
        assert compat.round(sign * number, decimals) == sign * rounded


@pytest.mark.parametrize("order", [False, True])
def test_xmap_readers(order: bool) -> None:
    assert list(reader.xmap_readers(lambda n: n * n, lambda: range(20), 3, 4, order)()) == [n * n for n in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(reader.xmap_readers(lambda n: 1 // n, lambda: range(3), 2, 2)())
    with pytest.raises(fluid.FluidError, match="process_num is 0"):
        reader.xmap_readers(abs, lambda: [], 0, 1)


def test_other_readers() -> None:
    merged = reader.multiprocess_reader([lambda: range(3), lambda: "ab"])
    assert sorted(map(str, merged())) == ["0", "1", "2", "a", "b"]
    assert list(reader.decorator.Fake()(lambda: iter([7, 8]), 3)()) == [7, 7, 7]
    with pytest.raises(fluid.FluidError, match="no readers"):
        reader.multiprocess_reader([])


@pytest.mark.parametrize("length", [0, 1, 3])
def test_fake_needs_a_sample(length: int) -> None:
    for empty in (list, tuple, lambda: iter([]), lambda: (sample for sample in ())):
        with pytest.raises(fluid.errors.FeedError, match="has no sample"):
            list(reader.decorator.Fake()(empty, length)())


@pytest.mark.parametrize("library", ["sklearn", "none"])
def test_small_data_sets(library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if library == "none":
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for images in (dataset.mnist.train(), dataset.mnist.test()):
        image, label = next(iter(images()))
        assert image.shape == (784,) and image.dtype == "float32" and -1 <= image.min() < image.max() <= 1
        assert 0 <= label <= 9
    rows = [*dataset.uci_housing.train()(), *dataset.uci_housing.test()()]
    assert all(x.shape == (13,) and y.shape == (1,) for x, y in rows)
    np.testing.assert_allclose(np.mean([x for x, _ in rows], axis=0), 0, atol=1e-6)
    words = dataset.imdb.word_dict()
    reviews = list(dataset.imdb.train(words)())
    assert {label for _, label in reviews} == {0, 1}
    assert sorted(words.values()) == list(range(len(words)))
    assert max(max(ids) for ids, _ in reviews) < len(words) - 1  # no word is unknown
    ids = dataset.imikolov.build_dict()
    grams = list(dataset.imikolov.train(ids, 5)())
    assert len(ids) > 200 and len(grams) > 10_000 and all(len(gram) == 5 for gram in grams)
    source, target = next(iter(dataset.imikolov.test(ids, 0, dataset.imikolov.DataType.SEQ)()))
    assert source[1:] == target[:-1] and source[0] == ids["<s>"] and target[-1] == ids["<e>"]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0].split(".")[-1] for line in said] == ["mnist", "uci_housing", "imdb", "imikolov"]


def idx(array: Any) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def tar(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def place(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)


def test_data_sets_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    pixels = np.zeros((2, 28, 28), "uint8")
    pixels[1] = 255
    place(tmp_path, "mnist/t10k-images-idx3-ubyte.gz", idx(pixels))
    place(tmp_path, "mnist/t10k-labels-idx1-ubyte.gz", idx(np.array([3, 9], "uint8")))
    (dark, three), (bright, nine) = dataset.mnist.test()()
    assert (three, nine) == (3, 9) and (dark == -1).all() and (bright == 1).all()
    table = np.arange(70.0).reshape(5, 14)
    place(tmp_path, "uci_housing/housing.data", "\n".join(" ".join(map(str, row)) for row in table).encode())
    ((features, price),) = dataset.uci_housing.test()()
    np.testing.assert_allclose(features, 0.5)
    assert price == [69.0]
    texts = {
        f"aclImdb/{part}/{kind}/1.txt": b"Good, good film!\n" for part in ("train", "test") for kind in ("pos", "neg")
    }
    place(tmp_path, "imdb/aclImdb_v1.tar.gz", tar(texts))
    assert list(dataset.imdb.train({"good": 0, "<unk>": 1})()) == [([0, 0, 1], 0), ([0, 0, 1], 1)]
    lines = {"./simple-examples/data/ptb.train.txt": b"a b a\n", "./simple-examples/data/ptb.valid.txt": b"a\n"}
    place(tmp_path, "imikolov/simple-examples.tgz", tar(lines))
    ids = dataset.imikolov.build_dict(1)
    assert ids == {"a": 0, "<e>": 1, "<s>": 2, "<unk>": 3}
    assert list(dataset.imikolov.train(ids, 3)()) == [(2, 0, 3), (0, 3, 0), (3, 0, 1)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("uci_housing/housing.data", b"1 2 x", "no table of numbers"),
        ("uci_housing/housing.data", b"1 2 3", "rows of 14"),
        ("imdb/aclImdb_v1.tar.gz", b"no archive", "cannot be read"),
        ("imdb/aclImdb_v1.tar.gz", tar({"other": b""}), "has no file aclImdb/train"),
        ("imikolov/simple-examples.tgz", tar({"other": b""}), "has no file simple-examples"),
    ],
)
def test_files_that_are_not_what_they_claim(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    place(tmp_path, name, content)
    files.set_folder(tmp_path)
    with pytest.raises(fluid.FluidError, match=says):
        list(dataset.uci_housing.train()())
        list(dataset.imdb.train({"<unk>": 0})())
        dataset.imikolov.build_dict()


@pytest.mark.parametrize("content", [b"\0", idx(np.zeros((2, 3, 3), "uint8"))[:-12], idx(np.zeros((2, 3), "uint8"))])
def test_images_that_lie_about_their_size(tmp_path: Path, content: bytes) -> None:
    place(tmp_path, "mnist/train-images-idx3-ubyte.gz", content)
    place(tmp_path, "mnist/train-labels-idx1-ubyte.gz", idx(np.zeros(2, "uint8")))
    files.set_folder(tmp_path)
    with pytest.raises(fluid.FluidError, match="train-images"):
        list(dataset.mnist.train()())


def test_dictionaries_without_unknown() -> None:
    with pytest.raises(fluid.FluidError, match="has no '<unk>'"):
        dataset.imdb.train({})
    with pytest.raises(fluid.FluidError, match="has no '<s>'"):
        dataset.imikolov.train({}, 3)


@pytest.mark.parametrize("how", ["drawn", "disabled", "no_matplotlib"])
def test_curves_of_costs(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    names = ("plot", "legend", "savefig", "pause", "clf")
    plt = SimpleNamespace(
        **{name: partial(lambda name, *args, **_: calls.append((name, *args)), name) for name in names}
    )
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None if how == "no_matplotlib" else plt)
    monkeypatch.setitem(sys.modules, "matplotlib", None if how == "no_matplotlib" else SimpleNamespace(pyplot=plt))
    monkeypatch.setenv("DISABLE_PLOT", str(how == "disabled"))
    script = tmp_path / "script.py"
    script.write_text(
        "from paddle.utils.plot import Ploter\n"
        "curves = Ploter('train', 'test')\n"
        "curves.append('train', 1, 0.5)\n"
        "curves.plot('costs.png')\n"
        "curves.plot()\n"
        "curves.reset()\n"
        "curves.append('other', 1, 0.5)\n"
    )
    with pytest.raises(ScriptError, match="title is 'other'; expected one of 'train', 'test'"):
        run_script(script)
    drawn = [("plot", [1], [0.5]), ("legend",)]
    both = [*drawn, ("savefig", "costs.png"), ("clf",), *drawn, ("pause", 0.001), ("clf",)]
    assert calls == (both if how == "drawn" else [])


def test_files_that_paddle_would_download_are_those_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ctr").mkdir()
    (tmp_path / "ctr" / "a.tgz").write_bytes(b"abc")
    digest = hashlib.md5(b"abc", usedforsecurity=False).hexdigest()
    script = write(
        tmp_path,
        "import sys\nfrom paddle.dataset.common import DATA_HOME, download\n"
        "found = [download('http://host/x/a.tgz', 'ctr', sys.argv[1])]\n"
        "found.append(download('http://host/b', 'ctr', None, save_name='a.tgz'))\n",
    )
    with pytest.raises(ScriptError, match=r"ctr/a.tgz is not in \$FLUIDLITE_DATASETS, and nothing is downloaded"):
        run_script(script, [digest])
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    names = run_script(script, [digest])
    assert names["DATA_HOME"] == str(tmp_path) and names["found"] == [str(tmp_path / "ctr" / "a.tgz")] * 2
    with pytest.raises(ScriptError, match=f"has the MD5 {digest}; expected 000"):
        run_script(script, ["0" * 32])
