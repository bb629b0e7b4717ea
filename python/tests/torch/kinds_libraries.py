"""Right jobs of Transformers, its Trainer, Accelerate and PEFT, with small models that begin at random."""

import contextlib
import copy
import io
import logging
import os
import tempfile

import kinds
import torch
import torch.distributed as dist
from kinds import Job, Net, data_parallel, square, watched

import addend.torch

VOCABULARY = 64
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=48, max_position_embeddings=64,
)  # fmt: skip


def config_of(name, **more):
    import transformers

    if name == "llama":
        return transformers.LlamaConfig(**{**SIZES, **more})
    if name == "qwen3":
        return transformers.Qwen3Config(**{**SIZES, "head_dim": 8, **more})
    if name == "mixtral":
        return transformers.MixtralConfig(**{**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, **more})
    if name == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    return transformers.Qwen3MoeConfig(
        **{**SIZES, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, **more}
    )


def new_model(draw, name, **more):
    import transformers

    logging.disable(logging.WARNING)
    torch.manual_seed(draw.base)
    return transformers.AutoModelForCausalLM.from_config(config_of(name, **more))


def counted(draw, count):
    return sum(
        int((draw.tokens(r, m, words=VOCABULARY)[1][:, 1:] >= 0).sum()) for r in range(draw.world) for m in range(count)
    )


def language_share(draw, total, **more):
    """The loss of the model itself, divided by the tokens of all ranks and microbatches."""

    def share(model, data, m):
        tokens, labels = draw.tokens(data, m, words=VOCABULARY)
        return model(input_ids=tokens, labels=labels, num_items_in_batch=total, use_cache=False, **more).loss

    return share


@watched(2, 3, needs=("transformers",))
def transformers_data_parallel(draw):
    name, count = draw.one_of("llama", "qwen3", "gpt2"), draw.randint(1, 2)
    tied = {"tie_word_embeddings": draw.random() < 0.5} if name != "gpt2" else {}
    model = new_model(draw, name, **tied)
    layers = (lambda model: model.transformer.h) if name == "gpt2" else (lambda model: model.model.layers)
    more = {"layers": layers} if draw.random() < 0.5 else {}
    kinds_ = ("fsdp2",) if more else ("ddp", "hand", "fsdp1")
    share = language_share(draw, counted(draw, count))
    return data_parallel(draw, model, share, count, kinds_, summed=True, fields={"bound": 1e-3}, **more)


@watched(2, needs=("transformers",))
def transformers_checkpointed(draw):
    model = new_model(draw, "llama")
    reference = copy.deepcopy(model)
    reentrant = draw.random() < 0.5
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    model.train()
    share = language_share(draw, counted(draw, 1))
    return data_parallel(
        draw, model, share, 1, ("ddp", "fsdp2"), summed=True, reference=reference, fields={"bound": 1e-3}
    )


@watched(2, 3, needs=("transformers",))
def transformers_experts(draw):
    """A mixture of experts; tokens choose, so that an expert may be without tokens on a rank."""
    model = new_model(draw, draw.one_of("mixtral", "qwen3_moe"))
    share = language_share(draw, counted(draw, 1))
    return data_parallel(draw, model, share, 1, ("ddp", "hand", "fsdp2"), summed=True, fields={"bound": 1e-3})


def saved(draw, name, folder, **more):
    """Save the model and return (the model of one process, its folder); the first rank writes."""
    model = new_model(draw, name, **more)
    path = [folder if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path)
    if dist.get_rank() == 0:
        model.save_pretrained(path[0])
    dist.barrier()
    return model, path[0]


def tp_model(draw, name, folder, **more):
    import transformers

    reference, path = saved(draw, name, folder, **more)
    with contextlib.redirect_stderr(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(path, tp_plan="auto", dtype=torch.float32)
    dist.barrier()
    return reference, model


@watched(2, needs=("transformers",))
def transformers_tensor_parallel(draw):
    """tp_plan="auto"."""
    name = draw.one_of("llama", "qwen3")
    with tempfile.TemporaryDirectory() as folder:
        reference, model = tp_model(draw, name, folder)
    tokens, labels = draw.tokens(0, words=VOCABULARY)
    share = lambda one: one(input_ids=tokens, labels=labels, use_cache=False).loss  # noqa: E731
    step = lambda watch: share(model).backward()  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, [share]), bound=1e-3)


@watched(2, needs=("transformers",))
def transformers_experts_tensor_parallel(draw):
    with tempfile.TemporaryDirectory() as folder:
        reference, model = tp_model(draw, draw.one_of("mixtral", "qwen3_moe"), folder)
    tokens, labels = draw.tokens(0, words=VOCABULARY)
    share = lambda one: one(input_ids=tokens, labels=labels, use_cache=False).loss  # noqa: E731
    step = lambda watch: share(model).backward()  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, [share]), bound=1e-3)


# -- Trainer


class Rows(torch.utils.data.Dataset):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 32

    def __getitem__(self, at):
        tokens, labels = self.draw.tokens(at % 60, at // 60, rows=1, words=VOCABULARY)
        return {"input_ids": tokens[0], "labels": labels[0]}


@watched(2, needs=("transformers", "accelerate"))
def trainer(draw):
    """Transformers' Trainer under DDP: accumulation, tokens counted over devices, checkpointing, bf16."""
    import transformers
    from accelerate.state import AcceleratorState, GradientState, PartialState

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    for state in AcceleratorState, GradientState, PartialState:
        state._reset_state()
    model = new_model(draw, draw.one_of("llama", "qwen3"))
    options = dict(
        gradient_accumulation_steps=draw.randint(1, 3),
        average_tokens_across_devices=draw.random() < 0.5,
        gradient_checkpointing=draw.random() < 0.3,
        bf16=draw.random() < 0.3,
        max_grad_norm=draw.one_of(0.0, 1.0),
        optim=draw.one_of("adamw_torch", "sgd", "adafactor"),
    )
    found = []

    def report():
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, use_cpu=True, per_device_train_batch_size=2, max_steps=3, report_to=[], save_strategy="no",
                disable_tqdm=True, logging_strategy="no", ddp_backend="gloo", **options,
            )  # fmt: skip
            running = transformers.Trainer(model, arguments, train_dataset=Rows(draw))
            callback = addend.torch.watch_trainer(running, every=draw.randint(1, 2))
            running.train()
        found.append(running)
        return callback.report

    return Job(model, None, dict, report=report, gradients=dict)


@watched(2, 3, needs=("accelerate",))
def accelerate_accumulates(draw):
    """accelerator.accumulate and accelerator.backward."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    for state in AcceleratorState, GradientState, PartialState:
        state._reset_state()
    count = draw.randint(1, 3)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=count)
    model = Net()
    reference = copy.deepcopy(model)
    model = accelerator.prepare_model(model)

    def step(watch):
        for m in range(count):
            with accelerator.accumulate(model):
                accelerator.backward(square(model, draw.batch(draw.rank, m)))

    places = [(r, m) for r in range(draw.world) for m in range(count)]
    shares = [lambda one, r=r, m=m: square(one, draw.batch(r, m)) / len(places) for r, m in places]
    return Job(model, step, lambda: kinds.alone(reference, shares))


@watched(2, 3, needs=("peft", "transformers"))
def peft_adapters(draw):
    import peft

    base = new_model(draw, draw.one_of("llama", "qwen3"))
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=draw.random() < 0.5,
        modules_to_save=["lm_head"] if draw.random() < 0.3 else None, use_dora=draw.random() < 0.3,
    )  # fmt: skip
    model = peft.get_peft_model(base, config)
    count = draw.randint(1, 2)
    share = language_share(draw, counted(draw, count))
    return data_parallel(draw, model, share, count, ("ddp", "fsdp2", "hand"), summed=True, fields={"bound": 1e-3})
