"""paddle.dataset's other sets: the small ones, those of files made in the originals' formats, files that lie."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fluidlite.errors import LoaderError, MissingExtraError
from fluidlite.paddle import dataset
from fluidlite.paddle.dataset import files, image

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_chosen_folder", [])
    monkeypatch.setattr(files, "_reported", set())
    monkeypatch.delenv(files.VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files.set_folder(tmp_path)
    return tmp_path


def place(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    (folder / name).write_bytes(content)


def tar(contents: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(contents: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content.encode("latin-1"))
    return out.getvalue()


# The small sets -----------------------------------------------------------------------------------------------------


def test_small_images(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for make, classes in ((dataset.cifar.test10, 10), (dataset.cifar.test100, 100)):
        samples = list(make()())
        assert {pixels.shape for pixels, _ in samples} == {(3072,)} and samples[0][0].dtype == "float32"
        assert 0 <= min(p.min() for p, _ in samples) < 0.9 < max(p.max() for p, _ in samples) <= 1
        labels = {label for _, label in samples}
        assert 0.8 * classes < len(labels) <= classes and max(labels) < classes
    assert len(list(itertools.islice(dataset.cifar.test10(cycle=True)(), 700))) == 700
    pixels, kind = next(iter(dataset.flowers.train()()))
    assert pixels.shape == (3 * 224 * 224,) and pixels.dtype == "float32" and kind == 0
    for colours, classes_of in itertools.islice(dataset.voc2012.val()(), 20):
        assert colours.shape == (96, 128, 3) and classes_of.shape == (96, 128) and classes_of.max() <= 20
    said = [line.split(":")[0].split(".")[-1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["cifar", "flowers", "voc2012"]
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert len(list(dataset.cifar.test10()())) == 500


def test_small_texts(capsys: pytest.CaptureFixture[str]) -> None:
    words, verbs, labels = dataset.conll05.get_dict()
    for sample in dataset.conll05.test()():
        assert len(sample) == 9 and len({len(field) for field in sample}) == 1
        at = sample[8].index(labels["B-V"])
        assert sample[0][at] == sample[3][0] and sample[7] == [int(abs(i - at) <= 2) for i in range(len(sample[0]))]
    emb = Path(dataset.conll05.get_embedding()).read_bytes()
    assert np.frombuffer(emb[16:], "float32").reshape(len(words), 32).std() > 0.05 and len(verbs) == 5
    source, target, following = next(iter(dataset.wmt14.train(20)()))
    assert source[0] == target[0] == 0 and source[-1] == following[-1] == 1 and target[1:] == following[:-1]
    names = dataset.wmt14.get_dict(20)[1]
    assert {names[i] for i in range(3)} == {"<s>", "<e>", "<unk>"} and "cinq" in names.values()
    assert len(list(dataset.wmt16.validation(20, 20)())) == 200
    assert dataset.wmt16.get_dict("de", 5, reverse=True)[0] == "<s>"
    reader = dataset.sentiment.train()
    rows = list(reader())
    assert len(rows) == len(list(reader)) == 800 and {label for _, label in rows} == {0, 1}
    assert len(list(dataset.sentiment.test()())) == 200
    assert max(max(ids) for ids, _ in rows) < len(dataset.sentiment.get_word_dict())
    said = [line.split(":")[0].split(".")[-1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["conll05", "conll05", "wmt14", "wmt16", "sentiment"]


def test_small_tables(capsys: pytest.CaptureFixture[str]) -> None:
    train, test = list(dataset.movielens.train()()), list(dataset.movielens.test()())
    assert len(train) + len(test) == 5000 and 400 < len(test) < 600
    user, gender, age, job, movie, kinds, title, rating = train[0]
    assert 1 <= user <= dataset.movielens.max_user_id() and gender in (0, 1)  # type: ignore[operator]
    assert age < len(dataset.movielens.age_table) and job <= dataset.movielens.max_job_id()  # type: ignore[operator]
    assert 1 <= movie <= dataset.movielens.max_movie_id() and len(title) == 3  # type: ignore[operator,arg-type]
    assert max(kinds) < len(dataset.movielens.movie_categories())  # type: ignore[call-overload]
    assert rating[0] in (-3.0, -1.0, 1.0, 3.0, 5.0)  # type: ignore[index]
    for label, better, worse in dataset.mq2007.train()():
        assert label == [1] and better.shape == worse.shape == (46,)
    assert all(len(sample) == 3 for sample in dataset.mq2007.test("plain_txt")())
    ranks, features = next(iter(dataset.mq2007.test(format="listwise")))
    assert ranks.ravel().tolist() == [2, 1] + [0] * 8 and features.shape == (10, 46)
    said = [line.split(":")[0].split(".")[-1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["movielens", "mq2007"]


# From files ---------------------------------------------------------------------------------------------------------


def python2(arrays: Any, labels: list[int]) -> bytes:
    """A pickle as Python 2 wrote cifar's: texts are bytes, the array's numbers too."""
    content = pickle.dumps({"data": arrays, "labels": labels, "batch_label": "training batch 1 of 5"}, 2)
    return content.replace(b"X\x04\x00\x00\x00data", b"U\x04data")


def test_cifar(folder: Path) -> None:
    pixels = RNG.integers(0, 256, (3, 3072), dtype="uint8")
    place(folder, "cifar/cifar-10-python.tar.gz", tar({
        "cifar-10-batches-py/batches.meta": b"not read", "cifar-10-batches-py/data_batch_1": python2(pixels, [3, 0, 9]),
        "cifar-10-batches-py/data_batch_2": pickle.dumps({b"data": pixels[:1], b"labels": [7]}, 4),
        "cifar-10-batches-py/test_batch": python2(pixels[1:2], [5]),
    }))  # fmt: skip
    found = list(dataset.cifar.train10()())
    assert [label for _, label in found] == [3, 0, 9, 7]
    np.testing.assert_array_equal(found[1][0], (pixels[1] / 255.0).astype("float32"))
    assert [label for _, label in dataset.cifar.test10()()] == [5]
    fine = pickle.dumps({"data": pixels[:2], "fine_labels": [99, 3], "coarse_labels": [1, 2]}, 2)
    place(folder, "cifar/cifar-100-python.tar.gz", tar({"cifar-100-python/train": fine}))
    assert [label for _, label in dataset.cifar.train100()()] == [99, 3]
    with pytest.raises(LoaderError, match="has no file named test"):
        list(dataset.cifar.test100()())


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("/tmp/fluidlite-was-run"),)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (pickle.dumps({"data": Evil(), "labels": [1]}), "nothing of it was run"),
        (pickle.dumps([1, 2]), "holds no images"),
        (pickle.dumps({"data": np.zeros((1, 7), "uint8"), "labels": [1]}), "holds no images"),
        (pickle.dumps({"data": np.zeros((2, 3072), "uint8"), "labels": [1]}), "holds no images"),
        (pickle.dumps({"data": np.zeros((1, 3072), "uint8"), "labels": [10]}), "labels outside 0 to 9"),
        (b"garbage", "no pickle"),
    ],
)
def test_cifar_that_lies(folder: Path, batch: bytes, says: str) -> None:
    place(folder, "cifar/cifar-10-python.tar.gz", tar({"x/data_batch_1": batch}))
    with pytest.raises(LoaderError, match=says):
        list(dataset.cifar.train10()())
    assert not Path("/tmp/fluidlite-was-run").exists()


def test_a_tar_of_negative_sizes_ends(folder: Path) -> None:
    """Python's reader would find the same header again and again."""
    content = bytearray(tar({"one": b"", "two": b""}, "w"))
    header = content[512:1024]
    header[124:136] = b"\xff" + (-512 & (2**88 - 1)).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[512:1024] = header
    place(folder, "cifar/cifar-10-python.tar.gz", bytes(content))
    with pytest.raises(LoaderError, match="'two' is of -512 bytes"):
        list(dataset.cifar.train10()())
    with pytest.raises(LoaderError, match="'two' is of -512 bytes"):
        files.Archive(folder / "cifar/cifar-10-python.tar.gz")


def _sparse(value: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("x/data_batch_1")
        member.pax_headers = {"GNU.sparse.map": value, "GNU.sparse.size": value}
        archive.addfile(member)
    return out.getvalue()


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


@pytest.mark.parametrize("kind", ["tar", "tar of xz", "tar of bz2", "tar of gz", "zip", "zip of lzma"])
def test_random_damage_of_archives_is_refused_or_harmless(folder: Path, kind: str) -> None:
    contents = {f"x/data_batch_{number}": bytes(range(200)) * number for number in range(1, 4)}
    if kind.startswith("zip"):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA if "lzma" in kind else zipfile.ZIP_DEFLATED) as archive:
            for name, value in contents.items():
                archive.writestr(name, value)
        good = out.getvalue()
    else:
        good = tar(contents, f"w:{kind[7:]}")
    random, path = np.random.default_rng(len(kind)), folder / "archive"
    damaged = [_flipped(good, at) for at in random.permutation(len(good))[:400].tolist()]
    damaged += [good[:end] for end in random.integers(0, len(good), 40).tolist()]
    refused = 0
    for content in damaged + [_sparse("x"), _sparse("0,x")] * (kind == "tar"):
        path.write_bytes(content)
        try:
            list(files.zip_members(path, "x/") if kind.startswith("zip") else files.members(path, bool, "named so"))
        except LoaderError:
            refused += 1
    assert refused > 30


def test_movielens(folder: Path) -> None:
    names = {
        "ml-1m/movies.dat": "1::Toy Story (1995)::Animation|Comedy\n9::Caf\xe9 (1990)::Comedy\n",
        "ml-1m/users.dat": "5::F::25::12::55117\n6::M::1::3::1\n",
        "ml-1m/ratings.dat": "5::9::4::978300760\n6::1::1::978300760\n",
    }
    place(folder, "movielens/ml-1m.zip", zipped(names))
    rows = [*dataset.movielens.train()(), *dataset.movielens.test()()]
    assert sorted(rows, key=str) == [[5, 1, 2, 12, 9, [1], [0], [3.0]], [6, 0, 0, 3, 1, [0, 1], [2, 1], [-3.0]]]
    assert dataset.movielens.get_movie_title_dict() == {"café": 0, "story": 1, "toy": 2}
    assert (dataset.movielens.max_user_id(), dataset.movielens.max_movie_id()) == (6, 9)
    assert "Toy Story" in repr(dataset.movielens.movie_info()[1]) and "job(3)" in repr(dataset.movielens.user_info()[6])
    for wrong, says in (
        ({**names, "ml-1m/users.dat": "5::F::26::12::1\n"}, "is no MovieLens"),
        ({**names, "ml-1m/users.dat": "5::F\n"}, "has 2 columns of 5"),
        ({**names, "ml-1m/ratings.dat": "77::9::4::1\n"}, "users or movies that it does not have"),
        ({"ml-1m/movies.dat": "1::a::b\n"}, "has no file ml-1m/users.dat"),
    ):
        place(folder, "movielens/ml-1m.zip", zipped(wrong))
        dataset.movielens._tables_of_file.clear()
        with pytest.raises(LoaderError, match=says):
            list(dataset.movielens.train()())


def conll(words: str, props: str) -> bytes:
    root = "conll05st-release/test.wsj"
    return tar({
        f"{root}/words/test.wsj.words.gz": gzip.compress(words.encode()),
        f"{root}/props/test.wsj.props.gz": gzip.compress(props.encode()),
    })  # fmt: skip


def test_conll05(folder: Path) -> None:
    words = "He\nsaid\nPaul\nran\nhome\n\nRain\nfell\n\n"
    props = "-  (A0*)  *\nsay  (V*)  *\n-  (A1*  (A0*)\nrun  *  (V*)\n-  *)  (A4*)\n\n-  (A1*)\nfall  (V*)\n\n"
    place(folder, "conll05st/conll05st-tests.tar.gz", conll(words, props))
    place(folder, "conll05st/wordDict.txt", b"<unk>\nbos\neos\nHe\nsaid\nPaul\nran\nhome\nRain\n")
    place(folder, "conll05st/verbDict.txt", b"say\nrun\nfall\n")
    place(folder, "conll05st/targetDict.txt", b"B-A0\nI-A0\nB-A1\nI-A1\nB-V\nB-A4\nO\n")
    labels = dataset.conll05.get_dict()[2]
    assert labels == {"B-A0": 0, "I-A0": 1, "B-A1": 2, "I-A1": 3, "B-V": 4, "I-V": 5, "B-A4": 6, "I-A4": 7, "O": 8}
    first, second, third = dataset.conll05.test()()
    assert first == (
        [3, 4, 5, 6, 7], [1] * 5, [3] * 5, [4] * 5, [5] * 5, [6] * 5, [0] * 5, [1, 1, 1, 1, 0], [0, 4, 2, 3, 3]
    )  # fmt: skip
    assert second[6:] == ([1] * 5, [0, 1, 1, 1, 1], [8, 8, 0, 4, 6]) and second[5] == [2] * 5
    assert third == ([8, 0], [1] * 2, [8] * 2, [0] * 2, [2] * 2, [2] * 2, [2] * 2, [1, 1], [2, 4])
    place(folder, "conll05st/emb", bytes(16))
    assert dataset.conll05.get_embedding() == str(folder / "conll05st/emb")
    for archive, says in (
        (conll("a\n\n", "- (V*) *\n\n"), "not a column for each of its verbs"),
        (conll("a\n\n", "run V*\n\n"), "no bracket"),
        (conll("a\n\n", "run (A0*)\n\n"), "has no verb"),
        (conll("a\n\n", "swim (V*)\n\n"), "have no 'swim'"),
        (conll("a\nb\n", "run (V*)\n"), "words have 2 lines"),
        (tar({"x": b""}), "has no file conll05st-release"),
        (b"junk", "cannot be read"),
    ):
        place(folder, "conll05st/conll05st-tests.tar.gz", archive)
        with pytest.raises(LoaderError, match=says):
            list(dataset.conll05.test()())


def test_translations(folder: Path) -> None:
    long = " ".join(["the"] * 79)
    place(folder, "wmt14/wmt14.tgz", tar({
        "wmt14/src.dict": b"<s>\n<e>\n<unk>\nthe\ncat\n", "wmt14/trg.dict": "<s>\n<e>\n<unk>\nle\nchât\n".encode(),
        "wmt14/train/train": f"the cat\tle châtin\nno tab\n{long}\tle\n".encode(), "wmt14/test/test": b"cat\tle\n",
    }))  # fmt: skip
    assert list(dataset.wmt14.train(5)()) == [([0, 3, 4, 1], [0, 3, 2], [3, 2, 1])]
    assert list(dataset.wmt14.test(4)()) == [([0, 2, 1], [0, 3], [3, 1])]
    assert dataset.wmt14.get_dict(4, reverse=False)[1] == {"<s>": 0, "<e>": 1, "<unk>": 2, "le": 3}
    with pytest.raises(LoaderError, match="has no file gen/gen"):
        list(dataset.wmt14.gen(5)())
    with pytest.raises(LoaderError, match="dict_size is 2"):
        list(dataset.wmt14.train(2)())
    place(folder, "wmt16/wmt16.tar.gz", tar({
        "wmt16/train": b"a cat\teine Katze\na dog\tein Hund\n", "wmt16/val": b"a cat\tein Tier\n",
    }))  # fmt: skip
    assert dataset.wmt16.get_dict("en", 5) == {"<s>": 0, "<e>": 1, "<unk>": 2, "a": 3, "cat": 4}
    assert list(dataset.wmt16.validation(5, 10)()) == [([0, 3, 4, 1], [0, 5, 2], [5, 2, 1])]
    assert list(dataset.wmt16.validation(10, 5, "de")()) == [([0, 5, 2, 1], [0, 3, 4], [3, 4, 1])]
    for call in (lambda: dataset.wmt16.train(5, 5, "fr"), lambda: list(dataset.wmt16.test(5, 5)()),
                 lambda: dataset.wmt16.get_dict("en", 1)):  # fmt: skip
        with pytest.raises(LoaderError):
            call()
    place(folder, "wmt14/wmt14.tgz", tar({"x": b""}))
    with pytest.raises(LoaderError, match=r"src.dict"):
        dataset.wmt14.get_dict(5)


def test_sentiment(folder: Path) -> None:
    texts = {
        f"movie_reviews/{kind}/cv{i}.txt": f"{kind} film , it's {i} ." for kind in ("neg", "pos") for i in range(5)
    }
    place(folder, "corpora/movie_reviews.zip", zipped({**texts, "movie_reviews/README": "x"}))
    rows = list(dataset.sentiment.train()())
    assert [label for _, label in rows] == [0, 1] * 4 and [len(ids) for ids, _ in rows] == [8] * 8
    assert len(list(dataset.sentiment.test()())) == 2
    numbers = dict(dataset.sentiment.get_word_dict())
    assert set(numbers) == {"neg", "pos", "film", ",", "it", "'", "s", ".", *"01234"}
    assert rows[1][0][0] == numbers["pos"]
    dataset.sentiment._reviews_of_file.clear()
    place(folder, "corpora/movie_reviews.zip", zipped({"movie_reviews/neg/1.txt": "a"}))
    with pytest.raises(LoaderError, match="has no files"):
        list(dataset.sentiment.train()())
    place(folder, "corpora/movie_reviews.zip", b"PK junk")
    dataset.sentiment._reviews_of_file.clear()
    with pytest.raises(LoaderError, match="cannot be read"):
        list(dataset.sentiment.test()())


def test_mq2007(folder: Path) -> None:
    def line(relevance: int, query: int, value: float) -> str:
        return f"{relevance} qid:{query} 1:{value} 46:0.5 #docid = GX029-35 inc = 0.01 prob = 0.13\n"

    text = line(0, 1, 0.1) + line(2, 1, 0.2) + line(1, 1, 0.3) + line(0, 2, 0.4) + line(1, 3, 0.5)
    place(folder, "MQ2007/MQ2007/Fold1/train.txt", text.encode())
    pairs = list(dataset.mq2007.train()())
    assert [(float(better[0]), float(worse[0])) for _, better, worse in pairs] == [(0.2, 0.1), (0.3, 0.1), (0.2, 0.3)]
    assert pairs[0][1][1] == -1 and pairs[0][1][45] == 0.5
    assert [point[0] for point in dataset.mq2007.train("pointwise")()] == [0, 2, 1, 1]  # query 2 tells nothing
    lists = list(dataset.mq2007.train("listwise")())
    assert [ranks.ravel().tolist() for ranks, _ in lists] == [[2, 1, 0], [1]]
    assert [query for query, _, _ in dataset.mq2007.train("plain_txt")] == [1, 1, 1, 3]
    with pytest.raises(LoaderError, match="format is 'x'"):
        dataset.mq2007.train("x")
    for wrong in ("x qid:1 1:2", "1 pid:1 1:2", "1 qid:1 47:2", "1 qid:1 1:a", "1"):
        place(folder, "MQ2007/MQ2007/Fold1/test.txt", wrong.encode())
        with pytest.raises(LoaderError, match="line 1, is no document"):
            list(dataset.mq2007.test()())


def read_all(folder: Path, inner: str, end: str) -> list[Any]:
    """What the sets of lines give, with a character inside of lines, and with an end of lines."""

    def text(*lines: str) -> str:
        return "".join(line.replace("_", inner) + end for line in lines)

    place(folder, "wmt14/wmt14.tgz", tar({
        **{f"wmt14/{side}.dict": text("<s>", "<e>", "<unk>", "the_cat", "dog").encode() for side in ("src", "trg")},
        "wmt14/train/train": text("a_dog\tdog", "dog\tdog").encode(),
    }))  # fmt: skip
    place(folder, "wmt16/wmt16.tar.gz", tar({"wmt16/train": text("a_cat\teine Katze", "a dog\tein_Hund").encode()}))
    part = "simple-examples/data/ptb.{}.txt"
    texts = {part.format(name): text("the_cat", "a dog_").encode() for name in ("train", "valid")}
    place(folder, "imikolov/simple-examples.tgz", tar(texts))
    place(folder, "conll05st/conll05st-tests.tar.gz", conll(text("He", "ran_on", ""), text("-  (A0*)", "run_(V*)", "")))
    for name, names in (("word", ("He", "ran_on")), ("verb", ("run", "do_it")), ("target", ("B-A0", "B-V", "O"))):
        place(folder, f"conll05st/{name}Dict.txt", text(*names).encode("latin-1"))
    place(folder, "movielens/ml-1m.zip", zipped({
        "ml-1m/movies.dat": text("1::Toy_Story (1995)::A_B"), "ml-1m/users.dat": text("5::F::25::12::55117"),
        "ml-1m/ratings.dat": text("5::1::4::978300760", ""),
    }))  # fmt: skip
    documents = text("1 qid:1 1:0.5 #a_b", "0 qid:1 1:0.25 #")
    place(folder, "MQ2007/MQ2007/Fold1/train.txt", documents.encode())
    return [
        dataset.wmt14.get_dict(5, reverse=False)[0],
        list(dataset.wmt14.train(5)()),
        list(dataset.wmt16.train(9, 9)()),
        sorted(dataset.imikolov.build_dict(0).items()),
        list(dataset.imikolov.train(dataset.imikolov.build_dict(0), 0, dataset.imikolov.DataType.SEQ)()),
        dataset.conll05.get_dict(),
        list(dataset.conll05.test()()),
        [(movie.title, movie.categories) for movie in dataset.movielens.movie_info().values()],
        [*dataset.movielens.train()(), *dataset.movielens.test()()],
        [(query, relevance, values[0]) for query, relevance, values in dataset.mq2007.train("plain_txt")()],
    ]


@pytest.mark.parametrize("inner", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_lines_end_at_newlines_only(folder: Path, inner: str) -> None:
    """As those of the files that Paddle iterates over; and a carriage return before the end is no part of a word."""
    if inner < "\x80":
        wanted = read_all(folder, " ", "\n")
        assert [len(wanted[index]) for index in (0, 1, 2, 4, 6, 7, 9)] == [5, 2, 2, 2, 1, 1, 2]
        for end in ("\n", "\r\n"):
            found = read_all(folder, inner, end)
            assert str(found).replace(repr(inner)[1:-1], " ") == str(wanted)
    content = f"a{inner}b\r\n\nc{inner}".encode()
    assert files.lines(content) == [f"a{inner}b\r", "", f"c{inner}"]
    assert files.lines(content + b"\n") == files.lines(content) and files.lines(b"") == []


def picture(array: Any, format: str, mode: str | None = None) -> bytes:
    pillow = pytest.importorskip("PIL.Image")
    out, drawn = io.BytesIO(), pillow.fromarray(array)
    if mode == "P":
        drawn.putpalette(list(range(256)) * 3)
    drawn.save(out, format, **({"quality": 95} if format == "JPEG" else {}))
    return out.getvalue()


def test_flowers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matlab = pytest.importorskip("scipy.io")
    flat = np.full((300, 400, 3), (200, 100, 50), "uint8")
    place(folder, "flowers/102flowers.tgz", tar({f"jpg/image_0000{i}.jpg": picture(flat, "JPEG") for i in (1, 2)}))

    def table(name: str, **values: Any) -> None:
        out = io.BytesIO()
        matlab.savemat(out, values, do_compression=True)
        place(folder, f"flowers/{name}.mat", out.getvalue())

    table("imagelabels", labels=np.array([[102, 7]], "uint8"))
    table("setid", tstid=np.array([[2]], "uint16"), trnid=np.array([[1]], "uint16"), valid=np.array([[2, 1]], "uint16"))
    for use_xmap in (True, False):
        ((pixels, label),) = dataset.flowers.test(use_xmap=use_xmap)()
        assert label == 101 and pixels.shape == (3 * 224 * 224,)
        expected = np.array([50 - 103.94, 100 - 116.78, 200 - 123.68])
        np.testing.assert_allclose(pixels.reshape(3, -1).mean(1), expected, atol=2)
    ((pixels, label),) = itertools.islice(dataset.flowers.train(cycle=True)(), 1)
    assert label == 6
    assert [label for _, label in dataset.flowers.valid(mapper=lambda sample: sample)()] == [6, 101]
    table("setid", tstid=np.array([[3]], "uint16"))
    with pytest.raises(LoaderError, match="do not fit"):
        list(dataset.flowers.train()())
    with pytest.raises(LoaderError, match="no MATLAB file with 'trnid'"):
        list(dataset.flowers.test()())
    with pytest.raises(LoaderError, match="no image that can be read"):
        image.load_image_bytes(b"\xff\xd8 junk")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="Pillow"):
        image.load_image_bytes(b"")


def test_voc2012(folder: Path) -> None:
    root, classes = "VOCdevkit/VOC2012", np.zeros((4, 6), "uint8")
    classes[1, 2], classes[0, 0] = 20, 255
    pixels = np.full((4, 6, 3), 90, "uint8")
    contents = {
        f"{root}/ImageSets/Segmentation/val.txt": b"2007_000033\n",
        f"{root}/ImageSets/Segmentation/train.txt": b"../x\n",
        f"{root}/JPEGImages/2007_000033.jpg": picture(pixels, "JPEG"),
        f"{root}/SegmentationClass/2007_000033.png": picture(classes, "PNG", "P"),
    }  # fmt: skip
    place(folder, "voc2012/VOCtrainval_11-May-2012.tar", tar(contents, "w"))
    ((found, labels),) = dataset.voc2012.val()()
    assert abs(found.astype(int) - 90).max() <= 2 and np.array_equal(labels, classes)
    with pytest.raises(LoaderError, match="no name of an image"):
        list(dataset.voc2012.test()())
    with pytest.raises(LoaderError, match=r"has no file .*trainval"):
        list(dataset.voc2012.train()())
    contents[f"{root}/SegmentationClass/2007_000033.png"] = picture(classes[:2], "PNG", "P")
    place(folder, "voc2012/VOCtrainval_11-May-2012.tar", tar(contents, "w"))
    with pytest.raises(LoaderError, match="not one class for each pixel"):
        list(dataset.voc2012.val()())


def test_images_are_cut() -> None:
    grey = np.arange(60 * 80, dtype="float32").reshape(60, 80)
    small = image.resize_short(grey, 30)
    assert small.shape == (30, 40)
    np.testing.assert_allclose(small, grey.reshape(30, 2, 40, 2).mean((1, 3)))  # halves meet between pixels
    assert image.resize_short(grey.T, 30).shape == (40, 30)
    assert image.center_crop(grey, 20)[0, 0] == grey[20, 30] and image.random_crop(grey, 60).shape == (60, 60)
    assert image.left_right_flip(grey)[0, 0] == 79
    with pytest.raises(LoaderError, match="cannot be cut"):
        image.center_crop(grey, 61)
    assert image.simple_transform(np.zeros((50, 60, 3), "uint8"), 40, 32, True, mean=[1, 2, 3]).shape == (3, 32, 32)


def test_a_file_that_is_another_at_the_same_moment_is_read_again(folder: Path) -> None:
    held: dict[Any, bytes] = {}
    found = []
    for content in (b"one", b"one", b"other"):
        place(folder, "set", content)
        os.utime(folder / "set", (0, 0))
        found.append(files.read_once(held, "set", "set", Path.read_bytes, bytes, ""))
    assert found == [b"one", b"one", b"other"] and len(held) == 1
