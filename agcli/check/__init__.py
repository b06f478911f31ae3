"""Find races, deadlocks and misuse of a kernel, for every legal timing and not just the one that ran.

All ranks run in one process. ``races`` keeps vector clocks and, for each element, who touched it last; ``signals``
the history of each signal word; ``schedules`` decides who runs; ``rules`` counts what costs speed; ``findings`` is
what comes out. ``run.run`` checks any kernel, ``cases`` is the sweep of ``ag-gemm check``.
"""
