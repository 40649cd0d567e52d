"""Mutants of saved programs and model folders: no other errors, no hangs, no files outside, little memory.

``python tests/hostile/hostile_files.py --programs 50000 --folders 20000 --seed 1`` runs the full counts in one process;
the suite runs a few hundred. ``--only N`` runs the N-th program or folder again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

from folders import Place
from programs import changed_numbers, mutant, networks, operator_programs, program_of, use
from watch import Watch

from fluidlite.program.registry import ops

_MEMORY = "/dev/shm"
"""A file system whose fsync takes no time, if there is one."""


def program_mutants(watch: Watch, seed: int, numbers: range) -> None:
    """Mutants of programs of one operator, and, one in ten, of networks."""
    samples, large, types = operator_programs(), networks(), [op.type for op in ops]
    texts: dict[int, str] = {}
    for number in numbers:
        chance = random.Random(f"{seed} program {number}")
        if chance.random() < 0.1:
            source, text = "network", chance.choice(large)
        else:
            at = chance.randrange(len(samples))
            source, text = samples[at].id, texts.get(at) or texts.setdefault(at, program_of(samples[at]))
        hostile = mutant(text, chance, types)
        watch.case("program", partial(use, hostile, chance), len(hostile), f"{number} of seed {seed} ({source})")


def number_mutants(watch: Watch, seed: int, numbers: range) -> None:
    """Each number that steers an operator, replaced by large ones: of samples drawn by chance."""
    samples = [case for case in operator_programs() if case.dtype == case.sample.dtypes[0]]
    for number in numbers:
        chance = random.Random(f"{seed} numbers {number}")
        case = samples[number] if len(numbers) >= len(samples) else chance.choice(samples)
        if number < len(samples):
            for which, hostile in enumerate(changed_numbers(program_of(case))):
                where = f"numbers {number} of seed {seed}, {which} ({case.id})"
                watch.case("program", partial(use, hostile, chance), len(hostile), where)


def folder_mutants(watch: Watch, seed: int, numbers: range) -> None:
    """Mutants of folders with a file for each variable, and of those with one for all."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if Path(_MEMORY).is_dir() else None) as root:
        places = [Place(Path(root) / f"{filename}", filename) for filename in (None, "params")]
        for number in numbers:
            chance = random.Random(f"{seed} folder {number}")
            place = chance.choice(places)
            done = place.mutate(chance)
            watch.case("folder", partial(place.use, chance), 1 << 20, f"{number} of seed {seed} ({done})")


def load_libraries() -> None:
    """Run one good program: the compiler and the devices' libraries, which the first one loads, are not its own."""
    good = next(case for case in operator_programs() if case.op.type == "adamax")
    for seed in range(4):  # in both modes
        use(program_of(good).encode(), random.Random(seed))


def main() -> int:
    """Run what the arguments say; return 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--numbers", type=int, default=0)
    parser.add_argument("--folders", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    load_libraries()
    watch = Watch()
    for count, run in (
        (given.programs, program_mutants),
        (given.numbers, number_mutants),
        (given.folders, folder_mutants),
    ):
        if count:
            run(watch, given.seed, range(count) if given.only is None else range(given.only, given.only + 1))
    print(f"seed {given.seed}\n{watch.report()}")
    return 1 if watch.findings else 0


if __name__ == "__main__":
    sys.exit(main())
