"""Rules that cost speed: each is a warning with numbers, at the right line, and breaks nothing."""

import linecache

import programs as p
import pytest

SLOW = {
    "split_by_rank": ("idle-cores", {"cores": 5, "n": 192}, "tl.store(remote", ("up to 6 for one", "2 others")),
    "all_to_one_peer": ("incast", {"world": 4, "n": 64}, "", ("3 ranks write to rank", "(launch 0, phase 0")),
    "atomics_on_peers": ("remote-atomics", {"cores": 1}, "tl.atomic_add", ("18 atomic operations", "3 ranks")),
    "stored_twice": ("double-store", {"cores": 1}, "tl.store(slot", ("mem of rank 0", "sub_vec_id")),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_kernel_is_warned_of(name, tmp_path):
    kind, options, at, numbers = SLOW[name]
    program = p.Program(p.KERNELS / "slow.py", p.vectors, name, world=3, options={"n": 32, **options})
    result, _ = program.check(tmp_path)
    assert result.clean, str(result)
    warning = next((w for w in result.warnings if w.kind == kind), None)
    assert warning is not None, str(result)
    assert all(number in warning.what for number in numbers), warning.what
    assert not at or at in linecache.getline(warning.places[0].file, warning.places[0].line)


@pytest.mark.parametrize("transport", ["store", "putmem"])
@pytest.mark.parametrize("cores", [2, 3, 6])
def test_the_fused_kernel_keeps_the_rules(transport, cores, tmp_path):
    result, _ = p.FUSED.check(tmp_path, transport=transport, world=4, cores=cores)
    assert not result.warnings, str(result)


def test_a_scope_that_not_all_versions_accept_is_noted(tmp_path):
    result, _ = p.WAIT_GEMM.check(tmp_path, (('"gpu"', '"npu"'),))
    assert result.clean
    assert [w.kind for w in result.warnings if w.kind == "wait-scope"]
