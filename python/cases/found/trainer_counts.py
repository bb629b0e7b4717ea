"""Transformers 5.24.0: the number of items by which Trainer divides a loss is not that of the loss's terms, in three
ways. A way shows where the gradient after a step's two microbatches is not the one that the documentation promises.
usage: trainer_counts.py [gpt2] [tp] [bert] [--repair]
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.

gpt2  Causal models whose class has no "ForCausalLM" or "ForConditionalGeneration" in its name (GPT2LMHeadModel,
      OpenAIGPTLMHeadModel, CTRLLMHeadModel, BertLMHeadModel, ReformerModelWithLMHead and others) have the loss of
      causal models, and Trainer counts the first label of each row, which that loss never reads: gradients are too
      small. --repair asks for the model's loss function instead of its name.
tp    With average_tokens_across_devices=False the count is a rank's own, and is divided by the number of
      tensor-parallel ranks all the same, as if it had been summed over them: gradients are tp times too large.
      --repair divides only what was summed.
bert  BertForMaskedLM, and others whose forward has **kwargs and whose loss is a plain mean: Trainer believes that the
      loss is divided by the count, and neither divides it by the microbatches nor takes the mean over ranks: gradients
      are too large by both. --repair sets accepts_loss_kwargs = False, and the gradient is the mean of the means."""

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
from accelerate import ParallelismConfig
from accelerate.utils import DistributedType
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig
from transformers.loss.loss_utils import ForCausalLMLoss

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
KINDS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
                                         embd_pdrop=0.0, attn_pdrop=0.0)),
    "tp": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "bert": (BertForMaskedLM, BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
}  # fmt: skip


class CPU(ParallelismConfig):
    """Accelerate asks for a GPU here, and needs none."""

    def _validate_accelerator(self, accelerator):
        accelerator.state.distributed_type = DistributedType.MULTI_XPU
        super()._validate_accelerator(accelerator)


class StopError(Exception):
    pass


class Stop(TrainerCallback):
    def on_pre_optimizer_step(self, *arguments, **reported):
        raise StopError


class Rows(torch.utils.data.Dataset):
    """Row i belongs to rank i % 2 if ranks have their own rows; it is one microbatch."""

    def __init__(self, shared):
        draw = torch.Generator().manual_seed(3)
        self.rows = [torch.randint(1, 30, (8,), generator=draw) for _ in range(2 if shared else 4)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i].clone()}


class Checked(Trainer):
    repaired = False

    def get_train_dataloader(self):
        own = range(len(self.train_dataset)) if len(self.train_dataset) == 2 else range(self.args.process_index, 4, 2)
        return torch.utils.data.DataLoader([self.train_dataset[i] for i in own])

    def get_tp_size(self):
        counting = sys._getframe(1).f_code.co_name == "_get_num_items_in_batch"
        return (
            1 if self.repaired and counting and not self.args.average_tokens_across_devices else super().get_tp_size()
        )


def wanted_of(model, rows, kind):
    """The mean of all terms of the loss: every row has as many."""
    for row in rows.rows:
        logits = model(input_ids=row[None]).logits[0]
        logits, labels = (logits, row) if kind == "bert" else (logits[:-1], row[1:])
        (F.cross_entropy(logits, labels) / len(rows)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def main(rank, folder, words):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    kind = next(word for word in words if word in KINDS)
    make, rows = KINDS[kind][0], Rows(kind == "tp")
    wanted = wanted_of(make.from_pretrained(folder), rows, kind)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    reported = {"distributed_config": DistributedConfig(tp_size=2)} if kind == "tp" else {}
    model = make.from_pretrained(folder, **reported)
    arguments = TrainingArguments(
        f"{folder}/{rank}", use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no", max_steps=1,
        gradient_accumulation_steps=2, max_grad_norm=0.0, average_tokens_across_devices=kind != "tp",
        disable_tqdm=True, parallelism_config=CPU() if kind == "tp" else None,
    )  # fmt: skip
    if "--repair" in words and kind == "bert":
        model.accepts_loss_kwargs = False
    trainer = Checked(model, arguments, train_dataset=rows, callbacks=[Stop()])
    trainer.repaired = "--repair" in words
    if trainer.repaired and kind == "gpt2":
        trainer._loss_shifts_labels = model.loss_function is ForCausalLMLoss
    try:
        trainer.train()
    except StopError:
        pass
    bad = 0
    for name, parameter in model.named_parameters():
        if name in wanted and wanted[name].norm() > 1e-4:  # that of a key's bias is 0
            grad = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
            if not torch.allclose(grad, wanted[name], rtol=1e-2, atol=1e-5):
                bad += 1
                times = float((grad * wanted[name]).sum() / wanted[name].square().sum())
                if bad < 3:
                    print(f"rank {rank}: {name} is {times:.4f} times that of all rows", flush=True)
    dist.barrier()
    os._exit(int(bad > 0))


def show(kind, words):
    """Whether the bug is there."""
    folder = tempfile.mkdtemp()
    torch.manual_seed(0)
    make, config = KINDS[kind]
    make(config).save_pretrained(folder)
    print(kind, flush=True)
    try:
        mp.spawn(main, (folder, [kind, *words]), 2)
    except mp.ProcessExitedException as error:
        if error.exit_code != 1:
            raise
        return True
    return False


if __name__ == "__main__":
    try:
        named = [word for word in sys.argv[1:] if word in KINDS] or list(KINDS)
        more = [word for word in sys.argv[1:] if word not in KINDS]
        status = int(any([show(kind, more) for kind in named]))
    except Exception as error:
        print(error)
        status = 2
    os._exit(status)
