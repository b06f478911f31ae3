"""The reference: bounded memory, one rounding, right rows."""

from __future__ import annotations

import pytest
import torch

from agcli import reference
from tests.test_operator import on_ranks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_are_those_of_the_exact_product_within_fp32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    gathered = torch.randn((7, 300), generator=generator).to(dtype)
    b = torch.randn((300, 5), generator=generator).to(dtype)
    exact = gathered.double() @ b.double()
    for row0, row1 in ((0, 7), (2, 3), (6, 7), (3, 3)):
        rows = reference.reference_rows(gathered, b, row0, row1)
        assert rows.dtype == torch.float32
        assert rows.shape == (row1 - row0, 5)
        assert torch.allclose(rows.double(), exact[row0:row1], rtol=1e-5, atol=1e-5)
    prepared = reference.operand_b(b)
    assert torch.equal(reference.reference_rows(gathered, prepared, 1, 4), reference.reference_rows(gathered, b, 1, 4))


def test_chunks_keep_their_fp32_copies_within_the_bound() -> None:
    for n, k in ((1, 1), (4096, 4096), (10**9, 7)):
        rows = reference.chunk_rows(n, k)
        assert rows == 1 or rows * (n + k) * 4 <= reference.CHUNK_BYTES
        assert rows >= 1


def test_multiplying_in_chunks_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered, b = torch.randn((50, 8)).half(), torch.randn((8, 3)).half()
    whole = reference.multiply(gathered, b)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 4 * 11 * 7)  # seven rows at a time
    out = torch.zeros((50, 9), dtype=torch.float16)
    c = reference.multiply(gathered, b, out=out[:, 3:6])
    assert torch.allclose(c, whole, rtol=1e-3)
    assert bool((out[:, :3] == 0).all())


def test_gather_has_the_ranks_rows_in_rank_order() -> None:
    for found in on_ranks("gathered", world=3):
        assert found == {"fp16": [True, True], "bf16": [True, True]}
