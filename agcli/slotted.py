"""``SlottedEngine``: symmetric memory in slots, and launches that go round them, for platforms that run the kernel.

Legend: W ranks, A ``[M, K]``, B ``[K, N]``, C ``[W * M, N]``, peer memory ``[buffer_num, W * block_m * pvalue, K]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from agcli.operands import strides_of
from agcli.problem import Plan

Launch = Callable[[dict[str, Any]], None]
"""Enqueue the kernel once with these arguments, which are named like the kernel's parameters."""


class SlottedEngine:
    """An engine (see ``backends.base.Engine``) over one symmetric buffer whose slots go on from launch to launch.

    Args:
        plan: the problem and all sizes.
        rank: this rank within the plan's world.
        peer_mem: the symmetric buffer, ``plan.peer_shape`` of the plan's dtype, contiguous and cleared on all ranks.
        launch: enqueues the kernel.
        synchronize: waits for this rank's queued work.
        barrier: waits for all ranks, on the host.
        release: frees ``peer_mem``; called once, collectively.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        peer_mem: torch.Tensor,
        launch: Launch,
        *,
        synchronize: Callable[[], None],
        barrier: Callable[[], None],
        release: Callable[[torch.Tensor], None],
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.first_slot = 0  # of the next launch; the same on all ranks, since all launch equally often
        self._peer_mem: torch.Tensor | None = peer_mem
        self._last_first_slot: int | None = None
        self._launch = launch
        self._synchronize = synchronize
        self._barrier = barrier
        self._release = release

    def run(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Enqueue ``c = all_gather(a) @ b`` once, in the slots after those of the launch before."""
        if self.plan.config.transport == "putmem":
            a = a.contiguous()  # a put moves whole rows of K elements
        self._launch(kernel_arguments(self.plan, self.rank, a, b, c, self._memory(), self.first_slot))
        self._last_first_slot = self.first_slot
        self.first_slot = self.plan.next_slot(self.first_slot)

    def poison(self) -> None:
        """Fill with NaN every slot but the one that a peer's next launch may be writing already.

        A peer cannot get further than the first barrier of the next launch, and its earlier stores ended before the
        last barrier of the launch before, so only ``first_slot`` may be in use. Before the first launch all slots are
        filled and the ranks meet: then it is collective.
        """
        memory = self._memory()
        if self._last_first_slot is None:
            memory.fill_(float("nan"))
            self._synchronize()
            self._barrier()
            return
        for slot in range(self.plan.config.buffer_num):
            if slot != self.first_slot:
                memory[slot].fill_(float("nan"))

    def move(self, peer_mem: torch.Tensor | None) -> None:
        """Use another symmetric buffer, cleared, from now on; None while there is none. No launch may be under way."""
        self._peer_mem = peer_mem

    def place(self) -> dict[str, Any]:
        """The first slot of the last launch, ``{"first_slot": int}``, from which ``Plan.locate`` tells a row's slot."""
        return {"first_slot": self._last_first_slot or 0}

    def close(self) -> None:
        """Wait for all work of all ranks, then free the symmetric memory. Collective; may be called twice."""
        if self._peer_mem is not None:
            self._synchronize()
            self._barrier()
            memory, self._peer_mem = self._peer_mem, None
            self._release(memory)

    def _memory(self) -> torch.Tensor:
        if self._peer_mem is None:
            raise RuntimeError("this engine is closed")
        return self._peer_mem


def kernel_arguments(
    plan: Plan, rank: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, peer_mem: torch.Tensor, first_slot: int
) -> dict[str, Any]:
    """Every parameter of ``kernel_allgather_gemm`` by name. Strides are in elements."""
    problem, config = plan.problem, plan.config
    stride_am, stride_ak = strides_of(a)
    stride_bk, stride_bn = strides_of(b)
    stride_cm, stride_cn = strides_of(c)
    return {
        "a_ptr": a,
        "b_ptr": b,
        "c_ptr": c,
        "peer_mem_ptr": peer_mem,
        "rank": rank,
        "rank_size": problem.world,
        "buffer_num": config.buffer_num,
        "first_slot": first_slot,
        "M": problem.m,
        "N": problem.n,
        "K": problem.k,
        "stride_am": stride_am,
        "stride_ak": stride_ak,
        "stride_bk": stride_bk,
        "stride_bn": stride_bn,
        "stride_cm": stride_cm,
        "stride_cn": stride_cn,
        "pvalue": config.pvalue,
        "BLOCK_SIZE_M": config.block_m,
        "BLOCK_SIZE_N": config.block_n,
        "BLOCK_SIZE_K": config.block_k,
        "COMM_BLOCK_SIZE_M": config.comm_block_m,
        "COMM_BLOCK_SIZE_K": config.comm_block_k,
        "TRANSPORT": config.transport,
    }
