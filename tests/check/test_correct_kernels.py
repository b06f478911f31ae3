"""Correct kernels: none is accused, under no schedule, and each computes what it should."""

import programs as p
import pytest
import torch

CORRECT = {
    "barrier an iteration, slots go on, odd iterations, tail": (p.BARRIER_GEMM, {}, ()),
    "more cores than ranks": (p.BARRIER_GEMM, {"cores": 4}, ()),
    "three ranks, fewer cores than ranks": (p.BARRIER_GEMM, {"cores": 2}, ()),
    "even iterations": (p.BARRIER_GEMM, {"m": 32}, ()),
    "three slots": (p.BARRIER_GEMM, {"slots": 3}, ()),
    "three slots that restart, which two iterations allow": (
        p.BARRIER_GEMM,
        {"slots": 3, "restart": True, "m": 32},
        (),
    ),
    "an end barrier instead of moving slots": (
        p.BARRIER_GEMM,
        {"restart": True},
        (("        # end of iteration", "    libshmem_device.barrier_all()"),),
    ),
    "one slot and two barriers an iteration": (
        p.BARRIER_GEMM,
        {"slots": 1},
        (("        # end of iteration", "        libshmem_device.barrier_all()"),),
    ),
    "non-blocking puts, which the barrier completes": (
        p.BARRIER_GEMM,
        {},
        (("libshmem_device.putmem(", "libshmem_device.putmem_nbi("),),
    ),
    "a wait for EQ with a scope of the defining document": (p.WAIT_GEMM, {}, (('"gpu"', '"npu"'),)),
    "the fused kernel, stores": (p.FUSED, {"world": 3}, ()),
    "the fused kernel, puts": (p.FUSED, {"transport": "putmem", "slots": 3, "cores": 3}, ()),
    "signals of each source instead of barriers": (p.SIGNAL_GEMM, {"world": 3}, ()),
    "dl.notify and dl.wait": (p.WAIT_GEMM, {"world": 3}, ()),
    "ring": (p.RING, {}, ()),
    "ring of two": (p.RING, {"world": 2, "cores": 2}, ()),
    "put and signal in one": (p.PUT_SIGNAL, {}, ()),
    "put and signal in one, not blocking": (
        p.PUT_SIGNAL,
        {},
        (
            ("putmem_signal(", "putmem_signal_nbi("),
            ("    for source in range(0,", "    libshmem_device.quiet()\n    for source in range(0,"),
        ),
    ),
    "pull behind a barrier of vector cores": (p.PULL, {}, ()),
    "one counter for all sources": (p.COUNTER, {}, ()),
    "stream through one slot with acknowledgements": (p.STREAM, {}, ()),
    "a flag that is always 1 and is reset": (p.HANDSHAKE, {}, ()),
    "GEMM+ReduceScatter": (p.REDUCE_SCATTER, {"world": 3}, ()),
}


@pytest.mark.parametrize("name", CORRECT)
def test_no_correct_kernel_is_accused(name, tmp_path):
    program, options, edits = CORRECT[name]
    result, results = program.check(tmp_path, edits, **options)
    assert result.clean, str(result)
    assert len(results) == 3 * options.get("world", program.world), "all launches of all ranks ran"
    if program.expected and "m" not in options:
        assert torch.equal(results[2, 0], program.expected(options.get("world", program.world)))


def test_there_are_enough_correct_kernels():
    assert len(CORRECT) >= 10
