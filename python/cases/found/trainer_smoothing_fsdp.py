"""Transformers 5.24.0: Trainer with label_smoothing_factor on a causal model in FSDP2, whether Accelerate or
from_pretrained(distributed_config=...) divided it: labels are not shifted, so that each token is trained to give itself
instead of the next one. Trainer.compute_loss looks for the name of the class, which fully_shard has made
"FSDPLlamaForCausalLM". A model for images and text is not in that table under any name, without FSDP too.

With --repair labels are shifted where the model's own loss shifts them.
usage: trainer_smoothing_fsdp.py [llava] [--repair], llava: a model for images and text, in DDP
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
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Trainer,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig


def text():
    return LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


def model_of(folder, words):
    if "llava" in words:
        vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        torch.manual_seed(1)
        return LlavaForConditionalGeneration(LlavaConfig(text_config=text(), vision_config=vision))
    model = LlamaForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=2))
    assert hasattr(model, "unshard"), "fsdp_size is without effect in this release of Transformers"
    return model


class Repaired(Trainer):
    def compute_loss(self, model, inputs, *more, **reported):
        """Shifts where the model's own loss does."""
        smoother, shifts = self.label_smoother, self._loss_shifts_labels
        self.label_smoother = lambda out, labels, shift_labels=False, **count: smoother(
            out, labels, shift_labels=shifts, **count
        )
        loss = super().compute_loss(model, inputs, *more, **reported)
        self.label_smoother = smoother
        return loss


def main(rank, folder, words):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = model_of(folder, words)
    arguments = TrainingArguments(f"{folder}/{rank}", use_cpu=True, label_smoothing_factor=0.2, report_to=[])
    arguments.save_strategy = "no"
    trainer = (Repaired if "--repair" in words else Trainer)(model, arguments)
    rows = torch.randint(1, 30, (1, 8), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = model(input_ids=rows).logits
        wanted = F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), label_smoothing=0.2)
        found = trainer.compute_loss(model, {"input_ids": rows, "labels": rows.clone()})
    is_right = abs(found - wanted) < 1e-4
    print(f"rank {rank}: {type(model).__name__}: loss {found:.5f}, of shifted labels {wanted:.5f}", flush=True)
    dist.barrier()
    os._exit(int(not is_right))


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    torch.manual_seed(0)
    LlamaForCausalLM(text()).save_pretrained(folder)
    try:
        mp.spawn(main, (folder, sys.argv[1:]), 2)
    except mp.ProcessExitedException as error:
        os._exit(1 if error.exit_code == 1 else 2)
    except Exception as error:
        print(error)
        os._exit(2)
