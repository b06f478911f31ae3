"""A column-parallel linear layer over sequence shards, as in tensor parallelism: ``all_gather(x) @ weight.T`` fused.

    torchrun --nproc-per-node 2 examples/column_parallel_linear.py

On NPUs and GPUs each rank takes the device of its local rank; without either, simulated cores. With W ranks: x
``[tokens / W, features]``, weight ``[outputs / W, features]``, y ``[tokens, outputs / W]`` on each rank. For inference:
the operator computes no gradients.
"""

import os

import torch
import torch.distributed as dist

from agcli import AllGatherGemm


class ColumnParallelLinear(torch.nn.Module):
    """This rank's columns of a linear layer, for a fixed number of tokens."""

    def __init__(self, tokens: int, features: int, outputs: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        world = dist.get_world_size()
        if tokens % world or outputs % world:
            raise ValueError(f"{tokens} tokens and {outputs} outputs cannot be divided evenly among {world} ranks")
        weight = torch.randn(outputs // world, features, dtype=dtype, device=device) / features**0.5
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.gemm = AllGatherGemm(tokens // world, outputs // world, features, dtype=dtype, tuned=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y of all tokens from this rank's x. Collective, and it works on the transposed weight where it lies."""
        return self.gemm(x, self.weight.t())

    def close(self) -> None:
        """Free the symmetric memory; collective, and before the process group is destroyed."""
        self.gemm.close()


def join() -> torch.device:
    """Join torchrun's job with the collectives of this machine's accelerator, if it has one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    if found.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group({"npu": "hccl", "cuda": "nccl"}.get(found.type, "gloo"))
    return found


def main(tokens: int = 96, features: int = 64, outputs: int = 128) -> None:
    """Compare the layer with all_gather and matmul."""
    device = join()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layer = ColumnParallelLinear(tokens, features, outputs, torch.bfloat16, device)
    x = torch.randn(tokens // world, features, dtype=torch.bfloat16, device=device)
    y = layer(x)

    shards = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(shards, x)
    wanted = torch.cat(shards).float() @ layer.weight.t().float()
    error = (y.float() - wanted).abs().max().item()
    print(f"rank {rank} of {world} on {device}: y {list(y.shape)}, largest error {error:.4f}; {layer.gemm.tuned}")
    assert error < 0.05
    layer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
