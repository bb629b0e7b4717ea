"""TRL 1.16.0: GRPOTrainer with a model that Transformers 5.24 divided over tensor-parallel ranks.

The trainer seeds each process by its own number, tensor-parallel ranks too. So each of them puts its rows into another
order before it makes microbatches of them, and samples other completions, and the ranks of one model compute parts of
different rows: gradients, and with `generate` the completions themselves, are of nothing. No warning is given. It shows
where the gradient after a step's two microbatches is not the one that rank 0's rows have in one process.
--repair seeds ranks that have the same rows alike.
usage: trl_grpo_tp.py [given] [sampled] [--repair]
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.

given    completions come from a `rollout_func`, the same on both ranks
sampled  completions come from the policy's `generate`"""

import os
import sys
import tempfile
import traceback

if __name__ == "__main__":  # an error is not the bug
    sys.excepthook = lambda *error: (traceback.print_exception(*error, file=sys.__stderr__), os._exit(2))

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import ParallelismConfig
from accelerate.utils import DistributedType, set_seed
from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.distributed import DistributedConfig
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

WORDS, LENGTH = 32, 4


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


def tokenizer():
    made = Tokenizer(WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0", eos_token="w2", unk_token="w1")


def given(prompts, trainer):
    """A completion of its own for each row, the same on both ranks."""
    ids = [[int(word[1:]) for word in prompt.split()] for prompt in prompts]
    completions = [[(7 * one[0] + 5 * i + 3 * j) % (WORDS - 3) + 3 for j in range(LENGTH)] for i, one in enumerate(ids)]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}


def rewarded(completion_ids, **more):
    return [sum(one) % 11 / 7 for one in completion_ids]


def repair(tp):
    grpo_trainer.set_seed = lambda seed, device_specific=False: set_seed(
        seed + dist.get_rank() // tp if device_specific else seed
    )


def wanted_of(model, batches):
    """The gradient of GRPO's loss, for these rows, divided by all completions' tokens."""
    count = sum(int(batch["completion_mask"].sum()) for batch in batches)
    for batch in batches:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1]
        logps = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)[:, -batch["completion_ids"].shape[1] :]
        ratio = (logps - logps.detach()).exp()
        (-(ratio * batch["advantages"][:, None] * batch["completion_mask"]).sum() / count).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def main(rank, folder, words):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    if "--repair" in words:
        repair(2)
    alone = LlamaForCausalLM.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
    arguments = GRPOConfig(
        f"{folder}/{rank}", use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no", max_steps=1, bf16=False,
        per_device_train_batch_size=2, gradient_accumulation_steps=2, num_generations=2, loss_type="dapo",
        max_completion_length=LENGTH, generation_kwargs={"min_new_tokens": LENGTH}, max_grad_norm=0.0,
        disable_tqdm=True, parallelism_config=CPU(),
    )  # fmt: skip
    rows = Dataset.from_dict({"prompt": [f"w{3 + i} w{9 + i}" for i in range(8)]})
    trainer = GRPOTrainer(
        model, args=arguments, train_dataset=rows, processing_class=tokenizer(), reward_funcs=rewarded,
        rollout_func=given if "given" in words else None, callbacks=[Stop()],
    )  # fmt: skip
    try:
        trainer.train()
    except StopError:
        pass
    every = [None, None]
    dist.all_gather_object(every, trainer._buffered_inputs)
    own = every[rank]
    for i, (first, second) in enumerate(zip(*every)):
        same = torch.equal(first["completion_ids"], second["completion_ids"])
        print(f"rank {rank}: completions of microbatch {i}: {own[i]['completion_ids'].tolist()}; ranks: {same}")
    wanted = wanted_of(alone, every[0])
    bad = 0
    for name, parameter in model.named_parameters():
        grad = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
        off = float((grad - wanted[name]).norm() / wanted[name].norm())
        if off > 1e-3:
            bad += 1
            if bad < 3:
                print(f"rank {rank}: {name} is off by {off:.2g} of its gradient's norm", flush=True)
    dist.barrier()
    os._exit(int(bad > 0))


def show(kind, words):
    """Whether the bug is there."""
    folder = tempfile.mkdtemp()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=False, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
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
        named = [word for word in sys.argv[1:] if word in ("given", "sampled")] or ["given", "sampled"]
        more = [word for word in sys.argv[1:] if word not in ("given", "sampled")]
        status = int(any([show(kind, more) for kind in named]))
    except Exception as error:
        print(error)
        status = 2
    os._exit(status)
