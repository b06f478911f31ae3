"""A simulator of Ascend AI cores that runs Triton kernels from their Python source.

Each AI core is one cube task and two vector tasks. ``split`` gives each task its part of the kernel, as the compiler
does; ``language`` and ``shmem`` are the ``tl`` and ``dl`` that kernels see; ``memory`` checks every access;
``scheduler`` runs the tasks of one process and switches only where hardware would wait.

``from agcli.simulator import run`` checks any kernel (see ``agcli.check.run``).
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "run":
        from agcli.check.run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
