"""PyTorch 2.15, torch.distributed.tensor.parallel.loss_parallel: (weights) cross_entropy with class weights and ignored
labels ends in an error in its backward; (entropy) log_softmax that no cross_entropy follows gets a wrong gradient.
usage: loss_parallel.py [weights|entropy] [repaired]   (default: one after the other)
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.
"""

import os
import sys
import tempfile
import traceback

if __name__ == "__main__":  # an error is not the bug
    sys.excepthook = lambda *error: (traceback.print_exception(*error, file=sys.__stderr__), os._exit(2))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss, loss_parallel


def repair():
    """weights: labels that are ignored are looked up as class 0, whose product is dropped two lines later."""
    plain = loss._nll_loss_and_log_softmax_backward

    def safe(grad, x, target, weight, reduction, ignored, *more):
        if weight is None:
            return plain(grad, x, target, weight, reduction, ignored, *more)
        grad = torch.where(target != ignored, grad, 0)  # with reduction sum, what is ignored has no gradient
        return plain(grad, x, torch.where(target != ignored, target, 0), weight, reduction, ignored, *more)

    loss._nll_loss_and_log_softmax_backward = safe


def main(rank, path, kind, words):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    if "repaired" in words:
        repair()
    torch.manual_seed(0)
    whole, labels, classes = torch.randn(5, 6, requires_grad=True), torch.tensor([1, -100, 5, 0, 3]), torch.rand(6)

    def value(logits):
        if kind == "weights":
            return F.cross_entropy(logits, labels, classes, reduction="sum")
        logarithms = F.log_softmax(logits, -1)
        return (logarithms.exp() * logarithms).sum()

    value(whole).backward()
    logits = distribute_tensor(whole.detach(), init_device_mesh("cpu", (2,)), [Shard(1)]).requires_grad_()
    with loss_parallel():
        result = value(logits)
        try:
            result.backward()
        except (IndexError, RuntimeError) as error:
            print(f"rank {rank}, {kind}: {error}", flush=True)
            os._exit(1)
    off = (logits.grad.full_tensor() - whole.grad).abs().max() / whole.grad.abs().max()
    print(f"rank {rank}, {kind}: the gradient is off by {off:.2g} of its largest element", flush=True)
    dist.barrier()
    os._exit(int(off > 1e-5))


if __name__ == "__main__":
    found = set()
    for kind in [word for word in sys.argv[1:] if word != "repaired"] or ["weights", "entropy"]:
        try:
            mp.start_processes(main, (tempfile.mktemp(), kind, sys.argv[1:]), 2, start_method="fork")
        except mp.ProcessExitedException as error:
            found.add(error.exit_code)
    sys.exit(2 if found - {1} else len(found))
