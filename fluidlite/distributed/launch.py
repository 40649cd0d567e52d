"""Detection of MPI launchers."""

from __future__ import annotations

import os

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS")
"""Environment variables of MPICH, its variants and Open MPI with the number of processes."""


def started_by_mpi() -> bool:
    """Whether ``mpirun``, ``mpiexec`` or ``srun`` started several processes, of which this is one."""
    return any(os.environ.get(name, "1") != "1" for name in _SIZES)
