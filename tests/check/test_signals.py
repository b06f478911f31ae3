"""The history of a signal word, where it is more than what the kernels of the tables show."""

import programs as p
import pytest
import torch

from agcli.check.signals import Word
from agcli.simulator import run
from agcli.simulator.memory import Buffer

HOST_KERNEL = """
import triton
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(sig_ptr, want):
    libshmem_device.signal_wait_until(sig_ptr, 0, want)
"""


def test_a_change_that_nobody_watched_is_in_the_history():
    tensor = torch.zeros(4, dtype=torch.int32)
    word = Word(Buffer(tensor, "signals", 0, torch.zeros(4, dtype=torch.uint8)), 2)
    word.settle()
    tensor[2] = 5
    word.settle()
    word.settle()
    assert [entry.value for entry in word.history] == [0, 5]


@pytest.mark.parametrize("launches", [1, 3])
def test_the_host_may_set_words_between_launches(tmp_path, launches):
    (tmp_path / "host.py").write_text(HOST_KERNEL)

    def arguments(rank):
        words = rank.symmetric("signals", (1,), torch.int32).fill_(rank.launch)
        return {"sig_ptr": words, "want": rank.launch}

    result = run(f"{tmp_path / 'host.py'}:kernel", arguments, launches=launches)
    assert result.clean, str(result)


def test_a_wait_comes_after_the_earliest_signal_that_ends_it_not_the_latest(tmp_path):
    """The second chunk is signalled too, but no wait asks for it: it may be read before it is there."""
    edits = (
        ("libshmem_device.signal_wait_until(sig_ptr + 1, 3, turn)", "turn = turn + 0"),
        ("signal_wait_until(sig_ptr, 3, turn + 1)", "signal_wait_until(sig_ptr, 3, turn)"),
    )
    result, _ = p.STREAM.check(tmp_path, edits)
    assert "race" in {fault.kind for fault in result.faults}
