"""Shapes: lists, files, and projections of well-known models, whose dimensions are worked out by hand here."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agcli.errors import UsageError
from agcli.problem import Problem
from agcli.shapes import MODELS, PRESET_M, Shape, grid, parse_sizes, preset_names, preset_shapes, read_shapes


def test_there_are_at_least_eight_projections_from_128_to_8192_rows_each_with_its_source() -> None:
    assert len([name for name in preset_names() if "/" in name]) >= 8
    assert min(PRESET_M) == 128
    assert max(PRESET_M) == 8192
    assert all(model.source for model in MODELS.values())


@pytest.mark.parametrize(
    ("name", "world", "n", "k"),
    [
        ("llama-3-70b/qkv", 8, (8 + 2 * 1) * 128, 8192),
        ("llama-3-70b/mlp", 8, 2 * 3584, 8192),
        ("llama-2-7b/mlp", 4, 5504, 4096),
        ("llama-3-8b/qkv", 16, (2 + 2 * 1) * 128, 4096),  # more ranks than KV heads: a copy each
        ("qwen2.5-7b/qkv", 8, (4 + 2 * 1) * 128, 3584),  # 28 heads on 8 ranks: one rank has 4
        ("gpt-3-175b/mlp", 2, 24576, 12288),
    ],
)
def test_a_projection_gives_the_share_of_the_rank_with_the_most(name: str, world: int, n: int, k: int) -> None:
    assert {(s.n, s.k, s.name) for s in preset_shapes([name], world)} == {(n, k, name)}


def test_a_model_means_all_its_projections_and_all_means_all_models() -> None:
    names = {s.name for s in preset_shapes(["llama-3-8b"], 2, [64])}
    assert names == {"llama-3-8b/qkv", "llama-3-8b/mlp"}
    assert {s.name for s in preset_shapes(["all"], 2, [64])} == {n for n in preset_names() if "/" in n}


@given(st.sampled_from(sorted(MODELS)), st.integers(1, 64))
def test_the_shares_of_all_ranks_cover_the_layer(model: str, world: int) -> None:
    whole = MODELS[model].projections(1)
    for part, (n, k) in MODELS[model].projections(world).items():
        assert n * world >= whole[part][0]
        assert k == whole[part][1]
        Problem(128, n, k, world)  # a problem that can be built


@pytest.mark.parametrize("name", ["llama-9", "llama-3-8b/router", "deepseek-v3/qkv", ""])
def test_an_unknown_preset_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="known are all, llama-2-7b, llama-2-7b/qkv"):
        preset_shapes([name], 2)


def test_lists_make_every_combination_once_with_m_fastest() -> None:
    assert [s.text for s in grid([1, 2, 1], [3], [4, 5])] == ["1x3x4", "2x3x4", "1x3x5", "2x3x5"]
    assert parse_sizes("1024,4096", "--m") == [1024, 4096]
    for bad in ("", "12,", "1k", "1.5"):
        with pytest.raises(UsageError, match="--m takes whole numbers"):
            parse_sizes(bad, "--m")


def test_a_file_may_be_blanks_csv_or_x_with_comments_and_names(tmp_path: Path) -> None:
    path = tmp_path / "shapes.csv"
    text = "m,n,k,name\n128,256,512,down projection\n\n# all\n64 x 32x16\n1 2 3  # tail\n64x32x16\n"
    path.write_text(text)
    shapes = read_shapes(path)
    path.write_text(text, encoding="utf-8-sig")  # as spreadsheets write it
    assert read_shapes(path) == shapes == [Shape(128, 256, 512, "down projection"), Shape(64, 32, 16), Shape(1, 2, 3)]


@given(
    st.lists(st.tuples(*[st.integers(1, 10**6)] * 3), min_size=1),
    st.sampled_from([" ", ",", ";", "x", " x ", ", ", "\t"]),
)
def test_every_separator_gives_the_same_shapes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, int]], sep: str
) -> None:
    path = tmp_path_factory.mktemp("shapes") / "f"
    path.write_text("".join(sep.join(map(str, line)) + "\n" for line in sizes))
    assert read_shapes(path) == list(dict.fromkeys(Shape(*line) for line in sizes))


@pytest.mark.parametrize("text", ["1 2", "1 2 three", "a b c d", "-1 2 3", "0 2 3", "1.5 2 3", "12 34x"])
def test_a_line_that_is_no_shape_is_refused_with_file_and_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f"
    path.write_text(f"8 8 8\n{text}\n")
    with pytest.raises(UsageError, match=r"f:2: "):
        read_shapes(path)


def test_a_file_that_is_absent_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_shapes(tmp_path / "none")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(UsageError, match="holds no shape"):
        read_shapes(tmp_path / "empty")
