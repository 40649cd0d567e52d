"""Whether a launcher of MPI started this process."""

from __future__ import annotations

import os

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS")
"""What MPICH and its variants, and Open MPI, say of how many processes they started."""


def started_by_mpi() -> bool:
    """Whether ``mpirun``, ``mpiexec`` or ``srun`` started several processes, of which this is one."""
    return any(os.environ.get(name, "1") != "1" for name in _SIZES)
