"""Train a small classifier with DistributedDataParallel, one process per device.

Tercio sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; the rest of this file
would run anywhere. With --checkpoint it saves after every epoch, or every few steps, and resumes.
Where TERCIO_MARKS names a file it writes down its steps, for `tercio report` and `tercio show`.
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
    parser.add_argument("--save-every", type=int, default=0, help="steps; 0 is every epoch")
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
    first_epoch, done = load(options.checkpoint, layers, optimiser, device)
    if rank == 0 and (first_epoch or done):
        print(f"resumed at epoch {first_epoch + 1}, after step {done}", flush=True)

    losses: list[float] = []
    for epoch in range(first_epoch, options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for step, (pixels, labels) in enumerate(loader, start=1):
            if step <= done:
                continue
            loss = nn.functional.cross_entropy(model(pixels.to(device)), labels.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)], device=device)
            if rank == 0:
                mark(f"step {epoch * len(loader) + step}")
                if options.save_every and step % options.save_every == 0:
                    save(options.checkpoint, layers, optimiser, epoch, step)
        done = 0
        dist.all_reduce(total)
        losses.append((total[0] / total[1]).item())
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {losses[-1]:.4f}", flush=True)
            save(options.checkpoint, layers, optimiser, epoch + 1, 0)
        if options.pause:
            time.sleep(options.pause)

    if rank == 0:
        report(layers, test, device, losses)
    dist.destroy_process_group()


def report(
    layers: nn.Module, test: TensorDataset, device: torch.device, losses: list[float]
) -> None:
    """Print the accuracy on the test images, and fail when the loss did not fall."""
    pixels, labels = test.tensors
    right = (layers(pixels.to(device)).argmax(1) == labels.to(device)).float().mean().item()
    print(f"done: accuracy {right:.1%} on {len(labels)} test images", flush=True)
    if len(losses) > 1 and losses[-1] >= losses[0]:
        raise SystemExit(f"the loss did not fall: {losses[0]:.4f} -> {losses[-1]:.4f}")


def load(
    path: str | None, layers: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device
) -> tuple[int, int]:
    """Restore model and optimiser from the checkpoint if there is one; return epoch and step."""
    if not path or not os.path.exists(path):
        return 0, 0
    state = torch.load(path, map_location=device)
    layers.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["epoch"]), int(state["step"])


def save(
    path: str | None, layers: nn.Module, optimiser: torch.optim.Optimizer, epoch: int, step: int
) -> None:
    """Write the checkpoint, whole or not at all."""
    if not path:
        return
    mark("checkpoint begin")
    state = {"model": layers.state_dict(), "optimiser": optimiser.state_dict()}
    torch.save({**state, "epoch": epoch, "step": step}, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
    mark(f"checkpoint end bytes {os.path.getsize(path)}")


def mark(what: str) -> None:
    """Tell the scheduler where the job is: a line with the time in the file it names."""
    path = os.environ.get("TERCIO_MARKS")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} {what}\n")


if __name__ == "__main__":
    main()
