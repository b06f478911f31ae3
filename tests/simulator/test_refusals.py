"""What the simulator does not understand is refused with its line, also where nobody uses the result."""

import pytest
import torch
from machines import launch

from agcli.errors import UsageError
from agcli.simulator.binding import load_kernel
from agcli.simulator.split import SplitKernel

HEAD = """import math

import triton
import triton.language as tl
from triton_dist.language.extra import libother, libshmem_device

ZERO = 0


def plain(x):
    return x


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
"""
LINE = HEAD.count("\n") + 1


def written(folder, body, name="kernel"):
    """A kernel whose body is this."""
    file = folder / "unusual.py"
    file.write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    return load_kernel(file, name)


@pytest.mark.parametrize(
    ("body", "line", "what"),
    [
        ("for i in range(n):\n    if i == 2:\n        break", 2, "'break' is not supported in a kernel"),
        ("for i in range(n):\n    if i == 2:\n        continue", 2, "'continue' is not supported"),
        ("if (value := tl.load(x_ptr)) > 0:\n    tl.store(x_ptr, value)", 0, "':=' is not supported"),
        ("with tl.async_task([0]):\n    value = tl.load(x_ptr)", 0, "'with' is not supported"),
        ("for i in range(n):\n    pass\nelse:\n    tl.store(x_ptr, n)", 0, "'else' of a loop is not supported"),
        ("while n > 3:\n    pass\nelse:\n    n = 3", 0, "'else' of a loop is not supported"),
        ("try:\n    n = 1\nfinally:\n    n = 2", 0, "'try' is not supported"),
        ("def inner():\n    pass", 0, "a function in a function is not supported"),
        ("x = lambda: n", 0, "'lambda' is not supported"),
        ("raise ValueError('x')", 0, "'raise' is not supported"),
        ("yield 3", 0, "'yield' is not supported"),
        ("del n", 0, "'del' is not supported"),
        ("import os", 0, "'import' is not supported"),
        ("from os import path", 0, "'import' is not supported"),
        ("global Q", 0, "'global' is not supported"),
        ("x = [i for i in (1, 2)]", 0, "a comprehension is not supported"),
        ("x = {1: n}", 0, "a dictionary is not supported"),
        ("x = doubled(*(n,))", 0, r"'\*' is not supported"),
        ("x = tl.load(x_ptr, **n)", 0, r"'\*\*' is not supported"),
        ("x_ptr[0] = n", 0, r"an assignment to 'x_ptr\[0\]' is not supported"),
        ("tl.load = n", 0, "an assignment to 'tl.load' is not supported"),
    ],
)
def test_syntax_beyond_tritons(tmp_path, body, line, what):
    with pytest.raises(UsageError, match=rf"unusual\.py:{LINE + line}: {what}.* \(kernel\)"):
        SplitKernel(written(tmp_path, body))


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("fence()", "fence is not defined"),
        ("x = undefined_function(3)", "undefined_function is not defined"),
        ("x = undefined_name", "undefined_name is not defined"),
        ("undefined_name", "undefined_name is not defined"),
        ("x = y + 1; y = 2", "y is used before it is given a value"),
        ("x += 1", "x is used before it is given a value"),
        ("open('f', 'w')", "open of Python cannot be used"),
        ("x_ptr.foo()", "the simulator does not know x_ptr.foo"),
        ("x = (x_ptr + n).foo", r"the simulator does not know \(x_ptr \+ n\).foo"),
        ("x = n.dtype()", "'n.dtype' is called, but is known at run time only"),
        ("BLOCK(n)", "'BLOCK' is called, but is known at run time only"),
        ("(tl.load if n else tl.load)(x_ptr)", "a call of 'tl.load if n else tl.load', which is no name"),
        ("tl.nonexistent(n)", "the simulator does not know tl.nonexistent"),
        ("x = tl.nonexistent", "the simulator does not know tl.nonexistent"),
        ("x = tl.as_int(n)", "the simulator does not know tl.as_int"),
        ("libshmem_device.nonexistent()", "the simulator does not know libshmem_device.nonexistent"),
        ("libother.barrier()", "the simulator does not know libother.barrier"),
        ("x = libother", "the simulator does not know libother"),
        ("plain(n)", "plain is neither a primitive nor a @triton.jit function"),
        ("math.sqrt(2)", "math.sqrt is neither a primitive nor a @triton.jit function"),
        ("x = doubled(n, n)", "doubled: too many positional arguments"),
        ("x = tl.cdiv(n)", "tl.cdiv: missing a required argument: 'div'"),
        ("x = tl.zeros((BLOCK,), dtype=tl.float32, colour=3)", "tl.zeros: got an unexpected keyword argument 'colour'"),
        ("1 / 0", "1 / 0 raises ZeroDivisionError: division by zero"),
        ("x = n // (ZERO * 3)", r"n // \(ZERO \* 3\) raises ZeroDivisionError"),
        ("x = tl.arange(0, n % 0)", "n % 0 raises ZeroDivisionError"),
        ("x = 'a' + 1", "'a' \\+ 1 raises TypeError"),
    ],
)
def test_what_has_no_meaning(tmp_path, statement, what):
    with pytest.raises(UsageError, match=rf"unusual\.py:{LINE}: {what}.* \(kernel\)"):
        SplitKernel(written(tmp_path, statement))


def test_functions_that_a_kernel_calls_are_read_too(tmp_path):
    file = tmp_path / "unusual.py"
    file.write_text(HEAD + "    n = outer(n)\n\n\n@triton.jit\ndef outer(n):\n    fence()\n    return n\n")
    with pytest.raises(UsageError, match=rf"unusual\.py:{LINE + 5}: fence is not defined \(outer\)"):
        SplitKernel(load_kernel(file, "kernel"))


@pytest.mark.parametrize("parameters", ["*, n=1", "*n", "**n"])
def test_parameters_that_have_no_place_are_refused(tmp_path, parameters):
    file = tmp_path / "unusual.py"
    file.write_text(f"import triton\n\n\n@triton.jit\ndef unusual(x_ptr, {parameters}):\n    pass\n")
    with pytest.raises(UsageError, match=r"unusual\.py:\d+: unusual (has keyword-only parameters|takes any number of)"):
        SplitKernel(load_kernel(file, "unusual"))


ACCEPTED = """\"\"\"What Triton takes.\"\"\"
tl.static_assert(BLOCK % 2 == 0, f"BLOCK must be even, got {BLOCK}")
assert BLOCK > ZERO
if BLOCK == 3:
    late = n
for i in range(0, 3):
    if i > 0:
        n = n + found - found
    found = i
    late = min(i, 7) + max(0, 1)
first, (second, third) = doubled(late), (len((1, 2, 3)), float("2"))
unused: tl.constexpr = isinstance(n, int)
print("first is", first)
kind = x_ptr.dtype.element_ty.is_fp16()
value = -first if not kind and n == 5 else 0
tl.store(x_ptr, (value + second + third).to(tl.float32))
"""


def test_what_triton_takes_runs(tmp_path, capsys):
    out = torch.zeros(1)
    launch(written(tmp_path, ACCEPTED), out, 5, BLOCK=4)
    assert out[0] == -2 * (2 + 1) + 3 + 2
    assert "first is 6" in capsys.readouterr().out


UNKNOWN = ["n = n // ZERO", "x = undefined_function(n)", "x = tl.nonexistent(n)", "x = tl.load(x_ptr).sum()"]


@pytest.mark.parametrize("statement", UNKNOWN)
def test_a_branch_that_constants_leave_out_may_hold_anything(tmp_path, statement):
    """As Triton has it: the usual switch between vendors."""
    body = f"if BLOCK == 3 and ZERO == 0:\n    {statement}\ntl.store(x_ptr, n)"
    kernel = written(tmp_path, body)
    x = torch.zeros(1, dtype=torch.int32)
    launch(kernel, x, 7, BLOCK=4)
    assert x.item() == 7
    with pytest.raises(UsageError, match=rf"unusual\.py:{LINE + 1}: .*\(kernel\)"):
        launch(kernel, x, 7, BLOCK=3)
    with pytest.raises(UsageError, match=rf"unusual\.py:{LINE + 1}: "):
        SplitKernel(written(tmp_path, f"if n == 3:\n    {statement}"))


def test_what_a_module_has_can_be_asked(tmp_path):
    body = "size = x_ptr.dtype.element_ty.itemsize\nif hasattr(tl, 'load'):\n    tl.store(x_ptr, size)"
    x = torch.zeros(1, dtype=torch.int32)
    launch(written(tmp_path, body), x, 7, BLOCK=4)
    assert x.item() == 4
