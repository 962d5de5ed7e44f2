"""Train a small classifier with DistributedDataParallel, one process per device.

Tercio sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; nothing here knows
Tercio. With TERCIO_OUTPUT_DIR or --checkpoint set it saves after every epoch and resumes.
"""

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 training and 360 test images of handwritten digits, 64 pixels each."""
    bunch = load_digits()
    pixels = torch.tensor(bunch.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(bunch.target)
    order = torch.tensor(np.random.default_rng(0).permutation(len(labels)))
    train, test = order[:1437], order[1437:]
    return (
        TensorDataset(pixels[train], labels[train]),
        TensorDataset(pixels[test], labels[test]),
    )


def main() -> None:
    """Train, print the loss of every epoch, and check that it fell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to rest per epoch")
    parser.add_argument("--checkpoint", default=os.environ.get("TERCIO_CHECKPOINT"))
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]) % max(torch.cuda.device_count(), 1))
        if has_gpu
        else torch.device("cpu")
    )
    print(
        f"rank {rank} of {world} on {device}, attempt {os.environ.get('TERCIO_ATTEMPT', '-')}",
        flush=True,
    )

    train, test = digits()
    sampler: DistributedSampler = DistributedSampler(train, shuffle=True, seed=0)
    loader = DataLoader(train, batch_size=options.batch, sampler=sampler)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(layers, device_ids=[device.index] if has_gpu else None)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    first_epoch = load(options.checkpoint, layers, optimiser, device)

    losses: list[float] = []
    for epoch in range(first_epoch, options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for pixels, labels in loader:
            loss = nn.functional.cross_entropy(model(pixels.to(device)), labels.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)], device=device)
        dist.all_reduce(total)
        losses.append((total[0] / total[1]).item())
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {losses[-1]:.4f}", flush=True)
            save(options.checkpoint, layers, optimiser, epoch + 1)
        if options.pause:
            time.sleep(options.pause)

    pixels, labels = test.tensors
    right = (layers(pixels.to(device)).argmax(1) == labels.to(device)).float().mean().item()
    if rank == 0:
        print(f"done: accuracy {right:.1%} on {len(labels)} test images", flush=True)
        if len(losses) > 1 and losses[-1] >= losses[0]:
            raise SystemExit(f"the loss did not fall: {losses[0]:.4f} -> {losses[-1]:.4f}")
    dist.destroy_process_group()


def load(
    path: str | None, layers: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device
) -> int:
    """Restore model and optimiser from the checkpoint if there is one; return the next epoch."""
    if not path or not os.path.exists(path):
        return 0
    state = torch.load(path, map_location=device)
    layers.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["epoch"])


def save(path: str | None, layers: nn.Module, optimiser: torch.optim.Optimizer, epoch: int) -> None:
    """Write the checkpoint, whole or not at all."""
    if not path:
        return
    state = {"model": layers.state_dict(), "optimiser": optimiser.state_dict(), "epoch": epoch}
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    main()
