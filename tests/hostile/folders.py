"""Folders of saved models, and mutants of them: bytes, headers, manifests, links, and what is no file."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from programs import NUMBERS, STRANGE

from fluidlite import io
from fluidlite.base.errors import SavedModelError
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope, global_scope, scope_guard

EXECUTOR: Any = SimpleNamespace(place="cpu")
SECRET = 77_777.0
"""What files outside the folder hold: no load may give it."""
NAMES = ("fc_0.w_0", "fc_0.b_0", "step", "rows")


def save(folder: Path, value: float, filename: str | None) -> None:
    """Save a model of four values that begin with ``value``."""
    program = Program()
    block = program.global_block()
    block.create_parameter("fc_0.w_0", [3, 4], "float32")
    block.create_parameter("fc_0.b_0", [4], "float32")
    block.create_var("step", [1], "int64", persistable=True)
    block.create_var("rows", [-1, 4], "float32", lod_level=1, persistable=True)
    x, out = block.create_var("x", [-1, 3], "float32", is_data=True), block.create_var("out")
    block.append_op("mul", {"X": x, "Y": "fc_0.w_0"}, {"Out": out})
    for name in ("fc_0.b_0", "rows"):
        block.append_op("elementwise_add", {"X": out, "Y": name}, {"Out": out})
    block.append_op("increment", {"X": "step"}, {"Out": "step"})
    with scope_guard(Scope()):
        scope = global_scope()
        for name, dims, dtype in (
            ("fc_0.w_0", (3, 4), "float32"),
            ("fc_0.b_0", (4,), "float32"),
            ("step", (1,), "int64"),
        ):
            scope.var(name).get_tensor().set(np.full(dims, value, dtype), "cpu")
        scope.var("rows").get_tensor().set(np.full((5, 4), value, "float32"), "cpu", [[0, 2, 5]])
        io.save_inference_model(folder, ["x"], [out], EXECUTOR, program, params_filename=filename)


def _text(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > 1 << 20:
        raise ValueError("an earlier mutation made it large, or no file")
    return path.read_text()


class Place:
    """A folder to mutate, beside one that no load may look into.

    Attributes
    ----------
    folder, outside : Path
    """

    def __init__(self, root: Path, filename: str | None) -> None:
        self.root, self.filename = root, filename
        self.folder, self.outside = root / "model", root / "outside"
        self._good, self._other = root / "good", root / "other"
        save(self._good, 1.0, filename)
        save(self._other, 2.0, filename)
        save(self.outside, SECRET, filename)
        self.folder.mkdir()
        self._before = self._listing()

    def _listing(self) -> dict[str, tuple[int, bytes]]:
        """All that is beside the folder."""
        return {
            str(path.relative_to(self.root)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in self.root.rglob("*") if path.is_file() and self.folder not in path.parents
        }  # fmt: skip

    def renew(self) -> None:
        """Undo the mutations."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._good, self.folder)

    def mutate(self, chance: random.Random) -> str:
        """Change the folder in one to three places; return what was done."""
        self.renew()
        done = []
        if chance.random() < 0.6:
            (self.folder / "__manifest__").unlink()
            done.append("no manifest")
        for _ in range(chance.choice((1, 1, 2, 3))):
            names = sorted(path.name for path in self.folder.iterdir())
            name = chance.choice(names)
            read = [self.folder / each for each in (name, "__model__", "__manifest__")]
            if any(path.is_symlink() or path.is_fifo() for path in read):
                continue  # a mutation would write through the link, or wait for a reader
            kind = chance.choice(
                (self._bytes, self._header, self._header, self._strange, self._json, self._staged, self._swap)
            )
            try:
                kind(self.folder / name, chance)
            except (OSError, ValueError, KeyError, TypeError, struct.error):  # an earlier mutation left no such file
                continue
            done.append(f"{kind.__name__}({name})")
        return ", ".join(done)

    def _bytes(self, path: Path, chance: random.Random) -> None:
        if not path.is_file() or path.stat().st_size > 1 << 20:
            return
        content = path.read_bytes()
        at = chance.randrange(len(content) + 1)
        flipped = bytes([content[at] ^ (1 << chance.randrange(8))]) if at < len(content) else b"\0"
        path.write_bytes(chance.choice((
            content[:at], content[:at] + flipped + content[at + 1 :], content[:at] + chance.randbytes(5) + content[at:],
            content + content, b"",
        )))  # fmt: skip

    def _header(self, path: Path, chance: random.Random) -> None:
        """Change a number, a text or the structure of a safetensors header."""
        content = path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 20 else b""
        if path.name in ("__model__", "__manifest__") or len(content) < 9:
            return
        length = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        name = chance.choice(list(header))
        record = header[name]
        if name == "__metadata__":
            record["fluidlite"] = chance.choice((
                '{"version": Infinity}', '{"version": 1, "lod": {"rows": [[0, 1e999, 5]]}}', "[" * 5000,
                json.dumps({"version": 1, "lod": {"rows": [[0, chance.choice((5, 6, 2**40, 2**63, 10**30, -1))]]}}),
                json.dumps({"version": 1, "lod": {"rows": chance.choice(STRANGE)}}),
                json.dumps({"version": chance.choice(NUMBERS)}), json.dumps(chance.choice(STRANGE)),
            ))  # fmt: skip
        else:
            key = chance.choice(("shape", "shape", "data_offsets", "dtype", "all"))
            if key == "all":
                header[name] = chance.choice(STRANGE)
            elif key == "dtype":
                record[key] = chance.choice(("F64", "BOOL", "U8", "F8_E4M3", "C64", "I32", *map(str, STRANGE[:8])))
            elif chance.random() < 0.3:
                record[key] = chance.choice(
                    ([1] * 65, [0, 2**62, 8], [2**31] * 4, [-1, -12], [], chance.choice(STRANGE))
                )
            else:
                record[key][chance.randrange(len(record[key]))] = chance.choice(NUMBERS)
        text = json.dumps(header).encode()
        size = chance.choice((len(text),) * 8 + (0, 2**40, 2**64 - 1, len(text) - 1))
        path.write_bytes(struct.pack("<Q", size) + text + data)

    def _json(self, path: Path, chance: random.Random) -> None:
        """Change a field of the program or the manifest."""
        path = self.folder / chance.choice(("__model__", "__manifest__"))
        record = json.loads(_text(path))
        home, key = record, chance.choice(list(record))
        while isinstance(home[key], (dict, list)) and home[key] and chance.random() < 0.85:
            home = home[key]
            key = chance.choice(list(home) if isinstance(home, dict) else range(len(home)))
        home[key] = chance.choice((*NUMBERS, *STRANGE))
        path.write_text(json.dumps(record))

    def _strange(self, path: Path, chance: random.Random) -> None:
        """Put something else than a file in its place."""
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        kind = chance.randrange(9)
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            path.mkdir()
        elif kind == 2:
            with open(path, "wb") as stream:
                stream.truncate(1 << 36)
        elif kind == 3:
            header = json.dumps(
                {"fc_0.w_0": {"dtype": "U8", "shape": [1 << 36], "data_offsets": [0, 1 << 36]}}
            ).encode()
            with open(path, "wb") as stream:
                stream.write(struct.pack("<Q", len(header)) + header)
                stream.truncate(8 + len(header) + (1 << 36))
        elif kind == 4:
            path.symlink_to(
                chance.choice(("/dev/zero", "/dev/random", "/etc/passwd", path.name, "nowhere", "/proc/self/mem"))
            )
        elif kind == 5:
            path.symlink_to(os.path.relpath(self.outside / path.name, self.folder))
        elif kind == 6:
            path.symlink_to(self.outside / path.name)
        elif kind == 7:
            (self.folder / "real").write_bytes((self._good / path.name).read_bytes())
            path.symlink_to("real")
        # 8: it is missing

    def _staged(self, path: Path, chance: random.Random) -> None:
        """A save that seems to be under way."""
        staging = self.folder / f".save-{chance.randrange(16):016x}"
        if chance.random() < 0.3:
            staging.symlink_to(self.outside)
        elif not os.path.lexists(staging):
            staging.mkdir()
            if chance.random() < 0.5:
                (staging / path.name).symlink_to(self.outside / path.name)
            else:
                shutil.copy(self._other / path.name, staging / path.name)
        manifest = self.folder / "__manifest__"
        record = json.loads(_text(manifest if manifest.is_file() else self._good / "__manifest__"))
        record["pending"] = chance.choice((staging.name, staging.name, "..", "../outside", str(self.outside)))
        if chance.random() < 0.5:
            record["files"]["../outside/" + path.name] = [1, "x"]
        manifest.write_text(json.dumps(record))

    def _swap(self, path: Path, chance: random.Random) -> None:
        """A file of another save."""
        shutil.copy(self._other / path.name, path)

    def use(self, chance: random.Random) -> str:
        """Load the folder, and save into it; return how that ended.

        Raises
        ------
        AssertionError
            If a load gave values of two saves though a manifest was there, or values of other files, or if anything
            outside the folder changed.
        """
        manifest = os.path.lexists(self.folder / "__manifest__")
        with scope_guard(Scope()):
            try:
                io.load_inference_model(self.folder, EXECUTOR, params_filename=self.filename)
                ended = "folder: loaded"
            except SavedModelError:
                ended = "folder: refused"
                assert global_scope().local_var_names() == []
            found = {name: global_scope().find_var(name) for name in NAMES}
            firsts = {
                float(v.get_tensor().numpy().flat[0]) for v in found.values() if v is not None and v.get_tensor().dims
            }
        assert SECRET not in firsts, "a file outside was read"
        assert not manifest or not {1.0, 2.0} <= firsts, "a mixture"
        if chance.random() < 0.3:
            try:
                save(self.folder, 3.0, self.filename)
            except SavedModelError:
                ended += ", save refused"
            else:
                with scope_guard(Scope()):
                    io.load_inference_model(self.folder, EXECUTOR, params_filename=self.filename)
                ended += ", saved"
            assert self._listing() == self._before, "something outside changed"
        return ended
