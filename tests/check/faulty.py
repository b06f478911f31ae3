"""Faulty kernels: each is a correct one with one fault, and what must be found in it.

``kinds`` are all kinds of faults that may be reported, and the first of them must come first in the report: it names
the fault. ``at`` is text of a source line that it must point to, or several of which one will do, divided by ``|``.
"""

from dataclasses import dataclass, field

import programs as p


@dataclass
class Faulty:
    program: p.Program
    kinds: tuple[str, ...]
    at: str
    edits: tuple[tuple[str, str], ...] = ()
    options: dict = field(default_factory=dict)


RACE = ("race",)
RACE_OR_UNWRITTEN = ("race", "unwritten-read")

FAULTY = {
    # barriers
    "the barrier is missing": Faulty(
        p.BARRIER_GEMM,
        RACE_OR_UNWRITTEN,
        "tl.load(a_ptrs|tl.store(own_mem",
        (("        libshmem_device.barrier_all()\n        tiles_m", "        tiles_m"),),
    ),
    "one slot": Faulty(p.BARRIER_GEMM, RACE, "tl.load(a_ptrs", options={"slots": 1}),
    "slots restart at 0 each launch, odd iterations": Faulty(
        p.BARRIER_GEMM, RACE, "tl.load(a_ptrs", options={"restart": True}
    ),
    "three slots that restart, four iterations": Faulty(
        p.BARRIER_GEMM, RACE, "tl.load(a_ptrs", options={"restart": True, "slots": 3, "m": 64}
    ),
    "some cores do not reach the barrier": Faulty(
        p.BARRIER_GEMM,
        ("barrier-not-reached", *RACE_OR_UNWRITTEN),
        "barrier_all()",
        (
            (
                "        libshmem_device.barrier_all()\n        tiles_m",
                "        if pid == 0:\n            libshmem_device.barrier_all()\n        tiles_m",
            ),
        ),
    ),
    "the barrier is under a sub-core's guard": Faulty(
        p.BARRIER_GEMM,
        ("barrier-not-reached", *RACE_OR_UNWRITTEN),
        "barrier_all()",
        (
            (
                "        libshmem_device.barrier_all()\n        tiles_m",
                "        if subblock_idx == 1:\n            libshmem_device.barrier_all()\n        tiles_m",
            ),
        ),
    ),
    "one rank skips the barrier of the last iteration": Faulty(
        p.BARRIER_GEMM,
        ("barrier-not-reached", *RACE_OR_UNWRITTEN),
        "barrier_all()",
        (
            (
                "        libshmem_device.barrier_all()\n        tiles_m",
                (
                    "        if (rank == 0) or (rows == rows_each):\n"
                    "            libshmem_device.barrier_all()\n        tiles_m"
                ),
            ),
        ),
    ),
    "barrier_all_vec where the cube must wait too": Faulty(
        p.BARRIER_GEMM,
        RACE_OR_UNWRITTEN,
        "tl.load(a_ptrs",
        (("libshmem_device.barrier_all()", "libshmem_device.barrier_all_vec()"),),
    ),
    "no barrier before the peers' partial products are read": Faulty(
        p.REDUCE_SCATTER, RACE_OR_UNWRITTEN, "tl.load(remote", (("    libshmem_device.barrier_all()\n", ""),)
    ),
    "partial products of all launches in one slot": Faulty(
        p.REDUCE_SCATTER, RACE, "tl.load(remote", (("mem_ptr + launch % 2 * rank_size * m_per_rank * N", "mem_ptr"),)
    ),
    "load, add and store where two cores add to one element": Faulty(
        p.REDUCE_SCATTER,
        RACE,
        "c_ptr",
        (
            (
                "tl.atomic_add(c_ptr + (offs_m[:, None] * N + offs_n[None, :]), part, mask=mask)",
                (
                    "c_ptrs = c_ptr + (offs_m[:, None] * N + offs_n[None, :])\n"
                    "                tl.store(c_ptrs, tl.load(c_ptrs, mask=mask) + part, mask=mask)"
                ),
            ),
        ),
    ),
    # signals
    "wait without consume_token": Faulty(
        p.WAIT_GEMM,
        ("dead-wait", *RACE_OR_UNWRITTEN),
        "dl.wait",
        (("mem_ptr = dl.consume_token(peer_mem_ptr, token)", "mem_ptr = peer_mem_ptr"),),
    ),
    "the signal is sent before the data": Faulty(
        p.SIGNAL_GEMM,
        RACE_OR_UNWRITTEN,
        "putmem(",
        (
            (
                (
                    "            libshmem_device.putmem(peer_mem_ptr + row * K, a_ptr + i * ROWS * K, "
                    "rows * K * 2, target)\n"
                    "            libshmem_device.signal_op(sig_ptr + i * rank_size + rank, launch + 1, "
                    "0, target)\n"
                ),
                (
                    "            libshmem_device.signal_op(sig_ptr + i * rank_size + rank, launch + 1, "
                    "0, target)\n"
                    "            libshmem_device.putmem(peer_mem_ptr + row * K, a_ptr + i * ROWS * K, "
                    "rows * K * 2, target)\n"
                ),
            ),
        ),
    ),
    "a guard that lets the cube send the signal too": Faulty(
        p.SIGNAL_GEMM, RACE_OR_UNWRITTEN, "putmem(", (("if sub_vec_id() == 1:", "if sub_vec_id() == 0:"),)
    ),
    "no barrier at the end of a launch": Faulty(
        p.SIGNAL_GEMM, RACE, "tl.load(a_ptrs", (("    libshmem_device.barrier_all()\n", ""),)
    ),
    "waits for the first source only": Faulty(
        p.SIGNAL_GEMM,
        RACE_OR_UNWRITTEN,
        "tl.load(a_ptrs",
        (("signal_wait_until(sig_ptr + word,", "signal_wait_until(sig_ptr + word // rank_size * rank_size,"),),
    ),
    "the signal is always 1": Faulty(
        p.WAIT_GEMM,
        ("signal-reuse", *RACE_OR_UNWRITTEN),
        "dl.wait",
        (
            ("signal=launch + 1", "signal=1"),
            ("waitValue=launch + 1", "waitValue=1"),
        ),
    ),
    "the signal goes to the wrong rank": Faulty(
        p.STREAM,
        ("deadlock",),
        "signal_wait_until",
        (("signal_op(sig_ptr, turn + 1, 0, 1)", "signal_op(sig_ptr, turn + 1, 0, 0)"),),
    ),
    "waits for a value that nobody sends": Faulty(
        p.COUNTER,
        ("deadlock",),
        "signal_wait_until",
        (("(launch // 2 + 1) * rank_size)", "(launch // 2 + 1) * rank_size + 1)"),),
    ),
    "waits for all sources but one": Faulty(
        p.COUNTER,
        RACE_OR_UNWRITTEN,
        "tl.load(slot",
        (("(launch // 2 + 1) * rank_size)", "(launch // 2 + 1) * rank_size - 1)"),),
    ),
    "one counter for consecutive launches": Faulty(
        p.COUNTER,
        RACE_OR_UNWRITTEN,
        "tl.load(slot",
        (
            ("signal_op(sig_ptr + launch % 2,", "signal_op(sig_ptr,"),
            (
                "signal_wait_until(sig_ptr + launch % 2, 3, (launch // 2 + 1) *",
                "signal_wait_until(sig_ptr, 3, (launch + 1) *",
            ),
        ),
    ),
    "the receiver does not say that it has read": Faulty(
        p.STREAM,
        RACE,
        "tl.load(mem_ptr",
        (("libshmem_device.signal_wait_until(sig_ptr + 1, 3, turn)", "turn = turn + 0"),),
    ),
    "the receiver says that it has read before it has": Faulty(
        p.STREAM,
        RACE,
        "tl.load(mem_ptr",
        (
            ("                libshmem_device.signal_op(sig_ptr + 1, turn + 1, 0, 0)\n", ""),
            (
                "                data = tl.load(mem_ptr",
                (
                    "                libshmem_device.signal_op(sig_ptr + 1, turn + 1, 0, 0)\n"
                    "                data = tl.load(mem_ptr"
                ),
            ),
        ),
    ),
    "a wait for EQ that growing values can overtake": Faulty(
        p.STREAM,
        (
            "lost-signal",
            "deadlock",
            "race",
        ),
        "signal_wait_until(sig_ptr, 0",
        (
            ("libshmem_device.signal_wait_until(sig_ptr + 1, 3, turn)", "turn = turn + 0"),
            ("signal_wait_until(sig_ptr, 3, turn + 1)", "signal_wait_until(sig_ptr, 0, turn + 1)"),
        ),
    ),
    "the flag is reset after it was said to be free": Faulty(
        p.HANDSHAKE,
        (
            "race",
            "lost-signal",
            "deadlock",
        ),
        "tl.store(sig_ptr, 0)",
        (
            ("                tl.store(sig_ptr, 0)\n", ""),
            (
                ('                dl.notify(sig_ptr + 16, 0, signal=1, sig_op="set", comm_scope="intra_node")'),
                (
                    '                dl.notify(sig_ptr + 16, 0, signal=1, sig_op="set", '
                    'comm_scope="intra_node")\n                tl.store(sig_ptr, 0)'
                ),
            ),
        ),
    ),
    "the flag is never reset": Faulty(
        p.HANDSHAKE,
        (
            "signal-reuse",
            "deadlock",
            "race",
            "unwritten-read",
        ),
        "dl.wait(sig_ptr, 1",
        (("                tl.store(sig_ptr, 0)\n", ""),),
    ),
    "a plain store for a signal and a plain load for a wait": Faulty(
        p.STREAM,
        RACE_OR_UNWRITTEN,
        "while",
        (
            (
                "libshmem_device.signal_wait_until(sig_ptr, 3, turn + 1)",
                "while tl.load(sig_ptr) < turn + 1:\n                    pass",
            ),
        ),
    ),
    "a loop that waits for a plain word that nobody sets": Faulty(
        p.STREAM,
        ("deadlock",),
        "while",
        (
            (
                "libshmem_device.signal_wait_until(sig_ptr, 3, turn + 1)",
                "while tl.load(sig_ptr + 5) < turn + 1:\n                    pass",
            ),
        ),
    ),
    "a loop that waits for a block of plain words": Faulty(
        p.STREAM,
        RACE_OR_UNWRITTEN,
        "while",
        (
            (
                "libshmem_device.signal_wait_until(sig_ptr, 3, turn + 1)",
                "while tl.max(tl.load(sig_ptr + tl.arange(0, 16))) < turn + 1:\n                    pass",
            ),
        ),
    ),
    "a loop that waits for two plain words that nobody sets": Faulty(
        p.STREAM,
        ("deadlock",),
        "while",
        (
            (
                "libshmem_device.signal_wait_until(sig_ptr, 3, turn + 1)",
                "while (tl.load(sig_ptr + 5) < 1) | (tl.load(sig_ptr + 6) < 1):\n                    pass",
            ),
        ),
    ),
    # transfers
    "no quiet after a non-blocking put": Faulty(
        p.RING, ("unfinished-transfer", *RACE_OR_UNWRITTEN), "putmem_nbi", (("        libshmem_device.quiet()\n", ""),)
    ),
    "quiet only after the signal": Faulty(
        p.RING,
        RACE_OR_UNWRITTEN,
        "putmem_nbi",
        (
            ("        libshmem_device.quiet()\n", ""),
            ("launch + 1, 0, right)\n", "launch + 1, 0, right)\n        libshmem_device.quiet()\n"),
        ),
    ),
    "no quiet after a non-blocking get": Faulty(
        p.PULL,
        (
            "unfinished-transfer",
            "race",
        ),
        "getmem_nbi",
        (("    libshmem_device.quiet()\n", ""),),
    ),
    "no quiet at the end": Faulty(
        p.STREAM, ("unfinished-transfer",), "putmem_nbi", (("    libshmem_device.quiet()\n", "    pass\n"),)
    ),
    "the source is overwritten before quiet": Faulty(
        p.RING,
        RACE_OR_UNWRITTEN,
        "putmem_nbi|tl.store",
        (
            (
                "        libshmem_device.quiet()\n",
                (
                    "        tl.store(place + offs - first, tl.load(src_ptr + offs, mask=mask), mask=mask)\n"
                    "        libshmem_device.quiet()\n"
                ),
            ),
        ),
    ),
    "a put with elements for bytes": Faulty(
        p.BARRIER_GEMM,
        (
            "transfer-size",
            "unwritten-read",
        ),
        "putmem",
        (("rows * K * 2, target_rank", "rows * K, target_rank"),),
    ),
    "a put that goes to the sender's place of the receiver": Faulty(
        p.PUT_SIGNAL,
        RACE_OR_UNWRITTEN,
        "tl.load(slot|putmem_signal",
        (("putmem_signal(slot + rank * n", "putmem_signal(slot + target * n"),),
    ),
    "a ring whose launches share a slot": Faulty(
        p.RING, RACE, "ring_ptr|tl.load|tl.store|putmem", (("ring_ptr + launch % 2 * rank_size * n", "ring_ptr"),)
    ),
    # memory
    "the own shard is never written": Faulty(
        p.BARRIER_GEMM,
        ("unwritten-read",),
        "tl.load(a_ptrs",
        (
            (
                (
                    "                tl.store(own_mem + ((own_row + offs_m)[:, None] * K + offs_k[None, "
                    ":]), a, mask=mask)\n"
                ),
                "",
            ),
        ),
    ),
    "a mask that lets the tail read past A": Faulty(
        p.BARRIER_GEMM,
        ("outside-tensor",),
        "tl.load(a_ptrs",
        (
            (
                "                mask = (offs_k[None, :] < K) & row_mask\n",
                "                mask = offs_k[None, :] < K\n",
            ),
        ),
    ),
    "a mask that lets the tail write past its rows": Faulty(
        p.BARRIER_GEMM,
        (
            "outside-tensor",
            "race",
        ),
        "tl.store(",
        (("c_mask = (offs_m[:, None] < rows)", "c_mask = (offs_m[:, None] < rows + 8)"),),
    ),
    "peer rows at the stride of A": Faulty(
        p.FUSED,
        (
            "outside-tensor",
            "outside-slot",
            "unwritten-read",
            "race",
        ),
        "tl.store(dst_ptr",
        (("tl.store(dst_ptr + (offs_m * stride_dm", "tl.store(dst_ptr + (offs_m * stride_sm"),),
        options={"strided": True},
    ),
    "a transfer over the end of its slot": Faulty(
        p.BARRIER_GEMM,
        ("outside-slot", *RACE_OR_UNWRITTEN),
        "putmem",
        (("peer_mem_ptr + own_row * K, a_ptr", "peer_mem_ptr + (own_row - buffer_id * 8) * K, a_ptr"),),
    ),
    "the cube reads the next slot": Faulty(
        p.BARRIER_GEMM,
        RACE_OR_UNWRITTEN,
        "tl.load(a_ptrs",
        (("mem_rows = (buffer_id * rank_size", "mem_rows = ((buffer_id + 1) % buffer_num * rank_size"),),
    ),
    # misuse
    "symm_at of a block of pointers": Faulty(
        p.BARRIER_GEMM,
        ("symm-at-block",),
        "dl.symm_at",
        (
            (
                "own_mem = dl.symm_at(peer_mem_ptr, rank)",
                "own_mem = dl.symm_at(peer_mem_ptr + offs_m[:, None] * 0, rank)",
            ),
        ),
    ),
    "a 32-bit index that overflows": Faulty(
        p.BARRIER_GEMM,
        ("overflow",),
        "own_row =",
        (("own_row = buffer_id", "own_row = (M * 16777216 * 8) // (M * 16777216 * 8) * buffer_id"),),
    ),
    "a scope that dl.wait does not know": Faulty(p.WAIT_GEMM, ("misuse",), "dl.wait", (('"gpu"', '"cluster"'),)),
    "symm_at of memory that is not symmetric": Faulty(
        p.WAIT_GEMM, ("misuse",), "dl.symm_at", (("dl.symm_at(peer_mem_ptr", "dl.symm_at(a_ptr"),)
    ),
}
