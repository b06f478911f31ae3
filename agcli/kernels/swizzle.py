"""Orders in which cores walk over tiles. One definition serves the NPU, the simulator, the compiler and the tests.

Both are bijections: each tile (each tile and rank) comes exactly once. The formulas are those of Triton-distributed's
``gemm_swizzle2d_Nz`` and, with ``swizzle_offset`` 1, of ``dist_swizzle2d_Nz``: with more, not all ranks are reached.
"""

import triton
import triton.language as tl


@triton.jit
def dist_swizzle2d_Nz(iter_id, rank_size, rows, cols, tile_rows, tile_cols):
    """Tile and target rank of step ``iter_id`` in ``[0, rank_size * tiles)``: ``(tile_row, tile_col, rank)``.

    All tiles are walked once per round; neighbouring tiles of a round go to different ranks, so that one rank's cores
    spread over all peers. Two ranks, four tiles in one row::

        iter_id   0 1 2 3   4 5 6 7
        tile_col  0 1 2 3   0 1 2 3
        rank      0 1 0 1   1 0 1 0
    """
    num_cols = tl.cdiv(cols, tile_cols)
    num_tiles = tl.cdiv(rows, tile_rows) * num_cols
    tile = iter_id % num_tiles
    rank = (iter_id // num_tiles + tile) % rank_size
    return tile // num_cols, tile % num_cols, rank


@triton.jit
def gemm_swizzle2d_Nz(iter_id, rows, cols, tile_rows, tile_cols, swizzle_offset: tl.constexpr = 7):
    """Tile of step ``iter_id`` in ``[0, tiles)``: ``(tile_row, tile_col)``.

    Columns go in groups of ``swizzle_offset``; in a group all its columns of a row, then the next row, so that cores
    working at the same time share rows of A and columns of B in L2. Every other group runs upwards (a zigzag).
    Three rows, three columns, ``swizzle_offset`` 2::

        (0,0)(0,1) (1,0)(1,1) (2,0)(2,1)   then   (2,2) (1,2) (0,2)
    """
    num_rows = tl.cdiv(rows, tile_rows)
    num_cols = tl.cdiv(cols, tile_cols)
    group = iter_id // (swizzle_offset * num_rows)
    in_group = iter_id % (swizzle_offset * num_rows)
    width = tl.minimum(swizzle_offset, num_cols - group * swizzle_offset)
    row = in_group // width
    col = group * swizzle_offset + in_group % width
    if group % 2 == 1:
        row = num_rows - 1 - row
    return row, col
