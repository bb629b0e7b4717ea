"""PEFT 0.21.2 with Transformers 5.24: VeRA on a layer that tensor parallelism divides by columns.

Every rank has its own part of the output and all of lambda_d and of the input, so their gradients are addends, which
nobody sums: replicas of lambda_d, and all below the layer, get gradients that differ from rank to rank. No warning is
given. With --repair the input and lambda_d pass through an identity whose backward is a sum.
usage: peft_vera_tp.py [--repair]
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
from peft import VeraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.distributed import DistributedConfig


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


def repair():
    """Two lines of peft/tuners/vera/layer.py, Linear.forward, that make addends sums."""
    import inspect
    import textwrap

    from peft.tuners.vera import layer

    text = textwrap.dedent(inspect.getsource(layer.Linear.forward))
    text = text.replace(
        "lambda_d = self.vera_lambda_d[active_adapter]", "lambda_d = sum_(self.vera_lambda_d[active_adapter])"
    )
    text = text.replace("dropout(x)", "dropout(sum_(x))")
    names = {**vars(layer), "sum_": SumBackward.apply}
    exec(text, names)
    layer.Linear.forward = names["forward"]


def main(rank, folder, repaired):
    if repaired:
        repair()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
    torch.manual_seed(2)
    model = get_peft_model(model, VeraConfig(r=3, target_modules=["q_proj"], d_initial=0.5))
    for name, parameter in model.named_parameters():
        if "vera_lambda_b" in name:
            torch.nn.init.ones_(parameter)
    ids = torch.arange(2, 11).view(1, 9)
    model(input_ids=ids, labels=ids).loss.backward()
    differ = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and "vera_lambda_d" in name:
            every = [torch.empty_like(parameter.grad) for _ in range(2)]
            dist.all_gather(every, parameter.grad)
            if not torch.allclose(*every, rtol=1e-4, atol=0):
                differ.append(name)
                if rank == 0:
                    print(name, *(one.tolist() for one in every), sep="\n  ")
    dist.barrier()
    os._exit(1 if differ else 0)


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    try:
        mp.spawn(main, (folder, "--repair" in sys.argv), 2)
    except mp.ProcessExitedException as error:
        sys.exit(1 if error.exit_code == 1 else 2)
