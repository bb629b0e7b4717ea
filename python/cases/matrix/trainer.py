"""Transformers' Trainer as its users write it, for `addend torch-matrix`: `train()` itself prepares the model and runs
its loop up to the optimizer's step, over data-parallel ranks, FSDP2 and models that are divided when they are loaded.

The losses of one process are written by hand, as the documentation of each option has them. On CPU Accelerate takes no
FSDP plugin, and so the plugin is put into its state by hand.
"""

import contextlib
import functools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig, PartialState
from accelerate.utils import DistributedType
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig

from addend.torch._matrix import _architectures, _draw

transformers.logging.set_verbosity_error()
# Accelerate asks for these and does not use them: the ranks have joined already
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
WORDS, LENGTH, IGNORED, CLASSES, SMOOTHED = 37, 9, -100, 5, 0.2
DATA = ("dp", "dp_replicate", "fsdp")  # the axes whose ranks have their own rows


# -- models


def model_of(auto, kind, **more):
    sizes = {
        "vocab_size": WORDS, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
        "num_attention_heads": 4, "tie_word_embeddings": False, **more,
    }  # fmt: skip

    def make_model():
        torch.manual_seed(1)
        config = AutoConfig.for_model(kind, **sizes)
        config._attn_implementation = config._experts_implementation = "eager"  # these compute in f64
        for name in "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate", "dropout":
            if hasattr(config, name):
                setattr(config, name, 0.0)
        model = auto.from_config(config, dtype=torch.float64).train()
        _draw.draw(model)
        return model

    return make_model


class Small(nn.Module):
    """A model without keywords, whose loss is a mean over its own rows' tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.up, self.down = nn.Embedding(WORDS, 12), nn.Linear(12, 20), nn.Linear(20, WORDS)

    def forward(self, input_ids, labels=None):
        logits = self.down(torch.tanh(self.up(self.embed(input_ids))))
        loss = None if labels is None else F.cross_entropy(logits.transpose(1, 2), labels)
        return {"loss": loss, "logits": logits}


def make_llava():
    """A model that may take images, and is given none."""
    full = _architectures.full("llava")
    torch.manual_seed(1)
    model = full.auto.from_config(full.small(1, 1)[0], dtype=torch.float64).train()
    _draw.draw(model)
    for name, parameter in model.named_parameters():  # no gradient reaches these
        parameter.requires_grad_("vision" not in name and "projector" not in name)
    return model


ROWS = {"num_labels": CLASSES, "pad_token_id": 0}
GROUPED = {"num_key_value_heads": 2, "head_dim": 6}
models = {
    "llama": model_of(AutoModelForCausalLM, "llama", **GROUPED),
    "qwen3_moe": model_of(AutoModelForCausalLM, "qwen3_moe", **GROUPED, num_experts=4, num_experts_per_tok=2,
                          moe_intermediate_size=12),
    "gpt2": model_of(AutoModelForCausalLM, "gpt2", n_embd=24, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                     attn_pdrop=0.0),
    "bert": model_of(AutoModelForMaskedLM, "bert"),
    "t5": model_of(AutoModelForSeq2SeqLM, "t5", d_model=24, d_kv=6, d_ff=36, num_layers=2, num_heads=4,
                   decoder_start_token_id=0),
    "llava": make_llava,
    "small": Small,
    "tokens": model_of(AutoModelForTokenClassification, "bert", num_labels=WORDS),
    "classes": model_of(AutoModelForSequenceClassification, "llama", **GROUPED, **ROWS,
                        problem_type="single_label_classification"),
    "values": model_of(AutoModelForSequenceClassification, "llama", **GROUPED, num_labels=1, pad_token_id=0,
                       problem_type="regression"),
    "several": model_of(AutoModelForSequenceClassification, "llama", **GROUPED, **ROWS,
                        problem_type="multi_label_classification"),
}  # fmt: skip
SHIFTED = (  # models whose logits of a token are for the next one
    "LlamaForCausalLM", "Qwen3MoeForCausalLM", "GPT2LMHeadModel", "LlavaForConditionalGeneration",
)  # fmt: skip


# -- batches


def place_of(mesh):
    """(the rank's place among those that have their own rows, their number); the place is 0 for the whole."""
    place, count = 0, 1
    for axis in (name for name in mesh.mesh_dim_names if name in DATA):
        place = place * mesh.size(axis) + (mesh.get_local_rank(axis) if mesh.rank is not None else 0)
        count *= mesh.size(axis)
    return place, count


def tokens_of(draw, rows, padded):
    ids = torch.randint(1, WORDS, (rows, LENGTH), generator=draw)
    labels = torch.randint(1, WORDS, (rows, LENGTH), generator=draw)
    labels[0, 1:3] = IGNORED
    if padded:
        labels[-1, LENGTH // 2 :] = IGNORED
    return {"input_ids": ids, "labels": labels}


def shifted_right(draw, rows, padded):
    """As DataCollatorForSeq2Seq has them."""
    batch = tokens_of(draw, rows, padded)
    before = F.pad(batch["labels"], (1, 0))[:, :-1]
    return {**batch, "decoder_input_ids": before.masked_fill(before == IGNORED, 0)}


def labelled(kind):
    """Rows with one label each."""

    def rows_of(draw, rows, padded):
        ids = torch.randint(1, WORDS, (rows, LENGTH), generator=draw)
        labels = torch.randint(CLASSES, (rows,), generator=draw)
        if kind == "values":
            labels = torch.randn(rows, generator=draw, dtype=torch.float64)
        if kind == "several":
            labels = torch.randint(2, (rows, CLASSES), generator=draw).to(torch.float64)
        return {"input_ids": ids, "labels": labels}

    return rows_of


def counted(batch, shifted):
    """Which labels of a batch count, as one number each."""
    labels = batch["labels"]
    kept = (labels != IGNORED).to(torch.float64)
    if shifted:
        kept[:, 0] = 0  # nothing predicts the first token
    return kept


def batches_of(rows_of, averaged, shifted, by_batch=False):
    """Ranks have unequal numbers of rows, and one has padding. Each label has the weight that the options give it: one
    over the number of all labels in the step (`averaged`), of the rank's own, or of the rank's own batch."""

    def batches(rank, mesh, microbatches):
        draw = torch.Generator().manual_seed(5)
        place, count = place_of(mesh)
        steps = [[rows_of(draw, 1 + (r + m) % 2 + (r == 0), r == m % count) for r in range(count)]
                 for m in range(microbatches)]  # fmt: skip
        kept = [[counted(batch, shifted) for batch in step] for step in steps]
        for m in range(microbatches):
            for r in range(count):
                of = [k[r] for k in kept] if not averaged else [one for k in kept for one in k]
                parts = 1 if averaged else count
                if by_batch:
                    of, parts = [kept[m][r]], count * microbatches
                steps[m][r]["weights"] = kept[m][r] / (sum(float(one.sum()) for one in of) * parts)
        if rank is None:
            return [{key: torch.cat([one[key] for one in step]) for key in step[0]} for step in steps]
        return [step[place] for step in steps]

    return batches


# -- losses of one process


def loss_of(smoothing=0.0):
    def loss(model, batch):
        """The sum of all labels' losses, each times its weight."""
        inputs = {key: value for key, value in batch.items() if key != "weights"}
        out, labels, weights = model(**inputs), batch["labels"], batch["weights"]
        logits = out["logits"]
        if labels.shape == logits.shape:
            each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        elif labels.is_floating_point():
            each = (logits.squeeze(-1) - labels).square()
        else:
            if type(model).__name__ in SHIFTED:
                logits, labels, weights = logits[:, :-1], labels[:, 1:], weights[:, 1:]
            logits = logits.flatten(0, -2)
            each = F.cross_entropy(
                logits, labels.flatten(), reduction="none", ignore_index=IGNORED, label_smoothing=smoothing
            ).view(weights.shape)
        return (each * weights).sum()

    return loss


def summed_over_items(out, labels, num_items_in_batch=None):
    """A `compute_loss_func` as the documentation has it: the loss is divided by the number of items."""
    logits, labels = out["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / num_items_in_batch


# -- the Trainer


class EndError(Exception):
    """Ends a training where the check looks at it."""


class Stop(TrainerCallback):
    at = ""

    def on_train_begin(self, args, state, control, **more):
        if self.at == "begin":
            raise EndError

    def on_pre_optimizer_step(self, args, state, control, **more):
        raise EndError


class Rows(torch.utils.data.Dataset):
    """Only the number of rows is asked for: batches come from the check."""

    def __len__(self):
        return 64


class Checked(Trainer):
    batches = [None]
    gradient_norm = None

    def get_train_dataloader(self):
        return Loader(self.batches)

    def _get_grad_norm(self, model, grad_norm=None):
        self.gradient_norm = super()._get_grad_norm(model, grad_norm)
        return self.gradient_norm


class Loader(list):
    dataset = Rows()
    batch_size = 1


class Parallelism(ParallelismConfig):
    """Accelerate asks for a GPU before it looks at the plugin; all else runs on CPU."""

    plugin = None

    def _validate_accelerator(self, accelerator):
        accelerator.state.distributed_type = DistributedType.FSDP if self.plugin else DistributedType.MULTI_XPU
        if self.plugin:
            accelerator.state.fsdp_plugin = self.plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # as where there is a GPU
        super()._validate_accelerator(accelerator)


def trained(model, **reported):
    """The model as `train()` prepares it."""
    function = reported.pop("compute_loss_func", None)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no",
        disable_tqdm=True, logging_strategy="no", max_grad_norm=0.0, max_steps=1, optim="adamw_torch", **reported,
    )  # fmt: skip
    stop = Stop()
    trainer = Checked(model, arguments, train_dataset=Rows(), compute_loss_func=function, callbacks=[stop])
    stop.at = "begin"
    with contextlib.suppress(EndError):
        trainer.train()
    stop.at = "step"
    made = trainer.model_wrapped
    made.__dict__["trainer"] = trainer
    return made


def run(model, microbatches, loss):
    """`train()`, up to the optimizer's step. Returns the loss that it logs for this rank."""
    trainer = model.__dict__["trainer"]
    trainer.batches = [{key: value for key, value in one.items() if key != "weights"} for one in microbatches]
    trainer.args.gradient_accumulation_steps = len(microbatches)
    with contextlib.suppress(EndError):
        trainer.train()
    return [float(trainer._tr_loss)]


def norm(model):
    found = model.__dict__["trainer"].gradient_norm
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, foreach=False)


def replicas(model, mesh, **reported):
    return trained(model, **reported)


def plugin(model, mesh, **reported):
    """FSDP2 as Accelerate applies it."""
    names = {type(module).__name__ for module in model.modules() if type(module).__name__.endswith("DecoderLayer")}
    policy = {"auto_wrap_policy": "no_wrap"}
    if names:
        policy = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": sorted(names)}
    Parallelism.plugin = FullyShardedDataParallelPlugin(fsdp_version=2, **policy)
    return trained(model, parallelism_config=Parallelism(dp_shard_size=mesh.size()), **reported)


def loaded(model, mesh, sizes=None, **reported):
    """Divided by Transformers when it is loaded."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        model.save_pretrained(folder[0])
    dist.barrier()
    own = {f"{axis}_size": mesh[axis].size() for axis in mesh.mesh_dim_names}
    parts = type(model).from_pretrained(
        folder[0], distributed_config=DistributedConfig(**own, **(sizes or {})), dtype=torch.float64,
        attn_implementation="eager", experts_implementation="eager",
    )  # fmt: skip
    if "tp" in mesh.mesh_dim_names or sizes:  # the Trainer asks Accelerate for these, which wants a GPU
        reported["parallelism_config"] = Parallelism()
    return trained(parts.train(), **reported)


# -- layouts

OPTIONS = {
    "": {},
    "own counts": {"average_tokens_across_devices": False},
    "smoothed": {"label_smoothing_factor": SMOOTHED},
    "smoothed, own counts": {"label_smoothing_factor": SMOOTHED, "average_tokens_across_devices": False},
    "function": {"compute_loss_func": summed_over_items},
    "function, own counts": {"compute_loss_func": summed_over_items, "average_tokens_across_devices": False},
}


def layout(mesh, parallelize, which, option="", rows_of=tokens_of, shifted=True, by_batch=False):
    reported = OPTIONS[option]
    return {
        "mesh": mesh,
        "models": list(which),
        "parallelize": functools.partial(parallelize, **reported),
        "batches": batches_of(rows_of, reported.get("average_tokens_across_devices", True), shifted, by_batch),
        "loss": loss_of(reported.get("label_smoothing_factor", 0.0)),
    }


def named(*words):
    return ", ".join(word for word in words if word)


DENSE, CAUSAL = ["llama"], ["llama", "qwen3_moe", "gpt2"]
MESHES = {
    "ddp": ({"dp": 2}, replicas, CAUSAL),
    "ddp of three": ({"dp": 3}, replicas, CAUSAL),
    "plugin": ({"fsdp": 2}, plugin, ["llama", "qwen3_moe"]),
    "loaded fsdp": ({"fsdp": 2}, loaded, ["llama", "qwen3_moe"]),
    "loaded fsdp of three": ({"fsdp": 3}, loaded, DENSE),
    "loaded hsdp": ({"dp_replicate": 2, "fsdp": 2}, loaded, DENSE),
    "loaded tp": ({"tp": 2}, loaded, DENSE),
    "loaded fsdp and tp": ({"fsdp": 2, "tp": 2}, loaded, DENSE),
    "loaded experts": ({"fsdp": 2}, functools.partial(loaded, sizes={"ep_size": 2}), ["qwen3_moe"]),
}
layouts = {
    named(name, option): layout(mesh, parallelize, which if not option else which[:1], option)
    for name, (mesh, parallelize, which) in MESHES.items()
    for option in OPTIONS
}
for option in OPTIONS:
    layouts[named("images, ddp", option)] = layout({"dp": 2}, replicas, ["llava"], option)
    if "function" not in option:  # losses of labels that are not shifted
        for which, rows_of in (["bert", "tokens"], tokens_of), (["t5"], shifted_right):
            layouts[named(f"{which[0]}, ddp", option)] = layout(
                {"dp": 2}, replicas, which, option, rows_of, shifted=False
            )
for option in "", "own counts":
    layouts[named("no keywords, ddp", option)] = layout(
        {"dp": 2}, replicas, ["small"], option, shifted=False, by_batch=True
    )
    for kind in "classes", "values", "several":
        layouts[named(f"{kind}, ddp", option)] = layout(
            {"dp": 2}, replicas, [kind], option, labelled(kind), shifted=False
        )
steps = 1
loss, batches = layouts["ddp"]["loss"], layouts["ddp"]["batches"]
NEEDS = []
