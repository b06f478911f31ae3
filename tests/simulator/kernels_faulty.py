"""Small kernels that break one rule each, and a few that break none. Loaded with the simulator's stand-ins."""

import triton
import triton.language as tl
import triton_dist.language as dl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device


@triton.jit
def reads_past_the_end(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs), mask=offs < n)


@triton.jit
def writes_past_the_end(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n, other=0.0))


@triton.jit
def reads_beside_a_column_slice(x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + stride + offs))


@triton.jit
def symm_at_of_a_block(peer_ptr, out_ptr):
    offs = tl.arange(0, 8)
    tl.store(out_ptr + offs, tl.load(dl.symm_at(peer_ptr + offs, 0)))


@triton.jit
def symm_at_of_plain_memory(x_ptr, out_ptr):
    offs = tl.arange(0, 8)
    tl.store(out_ptr + offs, tl.load(dl.symm_at(x_ptr, 0) + offs))


@triton.jit
def reads_what_nothing_wrote(peer_ptr, out_ptr):
    offs = tl.arange(0, 8)
    if sub_vec_id() == 0:
        tl.store(out_ptr + offs, tl.load(peer_ptr + offs))


@triton.jit
def barrier_by_some(x_ptr):
    if tl.program_id(0) == 0:
        libshmem_device.barrier_all()


@triton.jit
def waits_for_ever(sig_ptr):
    libshmem_device.signal_wait_until(sig_ptr, 0, 5)


@triton.jit
def wait_without_consume(sig_ptr, x_ptr, out_ptr):
    offs = tl.arange(0, 8)
    token = dl.wait(sig_ptr, 1, "gpu", "acquire")
    if sub_vec_id() == 0:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def wait_with_consume(sig_ptr, x_ptr, out_ptr):
    offs = tl.arange(0, 8)
    if sub_vec_id() == 1:
        dl.notify(sig_ptr, 0, signal=1, sig_op="set")
    token = dl.wait(sig_ptr, 1, "gpu", "acquire")
    x_ptr = dl.consume_token(x_ptr, token)
    if sub_vec_id() == 0:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def overflows(x_ptr, out_ptr, rows, stride):
    tl.store(out_ptr, rows * stride)


@triton.jit
def unmasked_remainder_is_not_zero(x_ptr, out_ptr, n):
    offs = tl.arange(0, 16)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n))


@triton.jit
def scaled(value, factor):
    return value * factor


@triton.jit
def product_with_a_second_load_of_the_same_name(a_ptr, b_ptr, c_ptr, copy_ptr):
    """``a`` is first the vectors' (copied), then the cube's (multiplied); a helper scales the product."""
    offs = tl.arange(0, 16)
    block = offs[:, None] * 16 + offs[None, :]
    a = tl.load(a_ptr + block)
    if sub_vec_id() == 0:
        tl.store(copy_ptr + block, a)
    a = tl.load(a_ptr + block)
    c = scaled(tl.dot(a, tl.load(b_ptr + block)), 2.0)
    tl.store(c_ptr + block, c)


@triton.jit
def several_values_for_one_element(out_ptr):
    offs = tl.arange(0, 4)
    tl.store(out_ptr + offs * 0, offs)


@triton.jit
def scalars_behind_a_mask(x_ptr, out_ptr, n):
    tl.store(out_ptr, tl.load(x_ptr, mask=n > 0, other=5).to(tl.float32))
    tl.store(out_ptr + 1, tl.load(x_ptr, mask=n > 0))


@triton.jit
def cube_needs_an_atomic(x_ptr, out_ptr):
    offs = tl.arange(0, 16)
    block = offs[:, None] * 16 + offs[None, :]
    before = tl.atomic_add(x_ptr, 1.0)
    a = tl.load(x_ptr + block)
    tl.store(out_ptr + block, tl.dot(a, a) + before)


@triton.jit
def wait_for(word_ptr, value):
    return dl.wait(word_ptr, 1, "gpu", "acquire", waitValue=value)


@triton.jit
def helper_wait_without_consume(sig_ptr, x_ptr, out_ptr):
    offs = tl.arange(0, 8)
    token = wait_for(sig_ptr, 5)
    if sub_vec_id() == 0:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def helper_wait_with_consume(sig_ptr, x_ptr, out_ptr):
    offs = tl.arange(0, 8)
    x_ptr = dl.consume_token(x_ptr, wait_for(sig_ptr, 5))
    if sub_vec_id() == 0:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def unknown_primitive(sig_ptr):
    libshmem_device.broadcast(sig_ptr, 0)


@triton.jit
def no_such_operation(sig_ptr):
    libshmem_device.signal_op(sig_ptr, 1, 7, 0)


@triton.jit
def no_such_comparison(sig_ptr):
    libshmem_device.signal_wait_until(sig_ptr, 9, 1)


@triton.jit
def sum_beyond_the_word(sig_ptr):
    libshmem_device.signal_op(sig_ptr, 2147483647, 0, 0)
    libshmem_device.signal_op(sig_ptr, 1, 1, 0)


@triton.jit
def product_before_and_after_a_store(a_ptr, b_ptr, first_ptr, second_ptr, third_ptr):
    """The cube reads ``a`` three times, and stores a product into it before the last."""
    offs = tl.arange(0, 16)
    block = offs[:, None] * 16 + offs[None, :]
    b = tl.load(b_ptr + block)
    tl.store(first_ptr + block, tl.dot(tl.load(a_ptr + block), b))
    product = tl.dot(tl.load(a_ptr + block), b)
    tl.store(second_ptr + block, product)
    tl.store(a_ptr + block, product.to(tl.float16))
    tl.store(third_ptr + block, tl.dot(tl.load(a_ptr + block), b))
