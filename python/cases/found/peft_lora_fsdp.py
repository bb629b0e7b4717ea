"""PEFT 0.21.2 with Transformers 5.24: LoRA on a model that from_pretrained has divided by FSDP2.

The adapters belong to no group of FSDP: nobody sums or averages their gradients, and each rank trains its own adapter
on its own rows. No warning is given. With --repair each new layer is given to fully_shard.
usage: peft_lora_fsdp.py [--repair]
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
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.distributed import DistributedConfig


def adapted(model):
    torch.manual_seed(2)
    model = get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights=False))
    return model


def gradients(model, rows):
    for row in rows:
        (model(input_ids=row, labels=row).loss / len(rows)).backward()
    return {
        n: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        for n, p in model.named_parameters()
        if p.grad is not None
    }


def main(rank, folder, repaired):
    rows = [torch.randint(0, 32, (1, 9), generator=torch.Generator().manual_seed(r)) for r in range(2)]
    wanted = gradients(adapted(AutoModelForCausalLM.from_pretrained(folder)), rows)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    base = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=2))
    assert hasattr(base, "unshard"), "fsdp_size is without effect in this release of Transformers"
    mesh, model = base._device_mesh["fsdp"], adapted(base)
    if repaired:
        for name, module in model.named_modules():
            if ".lora_" in name and isinstance(module, torch.nn.Linear):
                fully_shard(module, mesh=mesh)
    found = gradients(model, rows[rank : rank + 1])
    bad = [name for name in wanted if not torch.allclose(found[name], wanted[name], rtol=1e-3, atol=1e-7)]
    for name in bad:
        print(rank, name, "off by", float((found[name] - wanted[name]).norm() / wanted[name].norm()), flush=True)
    dist.barrier()
    os._exit(1 if bad else 0)


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
