"""TRL 1.16, for `addend torch-matrix`: the losses of its trainers (SFT, DPO, KTO, reward, GRPO) by `train()` itself, up
to the optimizer's step. The losses of one process are written by hand from papers and documentation. GRPO's completions
are given instead of sampled. TRL shuffles its rows before it makes microbatches of them, which the step's gradient does
not depend on, except with the loss "bnpo": there rows are not shuffled, so that it is known which microbatch has which.
"""

import contextlib
import functools
import os
import tempfile

import torch
import torch.nn.functional as F
import trl
from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast
from trl.trainer import grpo_trainer

import trainer as base
from trainer import GROUPED, MESHES, WORDS, EndError, Loader, Stop, model_of, named, place_of

NEEDS = ["--no-deps datasets==5.2.0 dill multiprocess pandas pyarrow python-dateutil six xxhash trl==1.16.0"]
os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
shuffle_sequence_dict = grpo_trainer.shuffle_sequence_dict
BETA, KL, LONGEST, MARGIN, CENTER = 0.3, 0.1, 7, 0.4, 0.2
ROWS = 2  # of each rank in a microbatch where a trainer gathers a number for each row, and so wants equally many

models = {
    "llama": model_of(AutoModelForCausalLM, "llama", **GROUPED),
    "qwen3_moe": model_of(AutoModelForCausalLM, "qwen3_moe", **GROUPED, num_experts=4, num_experts_per_tok=2,
                          moe_intermediate_size=12),
    "score": model_of(AutoModelForSequenceClassification, "llama", **GROUPED, num_labels=1, pad_token_id=0),
}  # fmt: skip


@functools.cache
def reference():
    """A reference policy that is not the policy."""
    model = models["llama"]()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.mul_(1 + 0.1 * (i % 3))
    return model.requires_grad_(False).eval()


@functools.cache
def reference_folder():
    """Where TRL loads it from."""
    folder = tempfile.mkdtemp()
    reference().save_pretrained(folder)
    return folder


def ranks_of(model):
    """The number of ranks that have their own rows."""
    return int(os.environ["WORLD_SIZE"]) // (model.tp_size or 1)


def tokenizer():
    made = Tokenizer(WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0", eos_token="w2", unk_token="w1")


# -- batches: {"examples": [...]}; each example has its weight in the step


def ids(draw, fewest, most):
    count = int(torch.randint(fewest, most + 1, (1,), generator=draw))
    return torch.randint(3, WORDS, (count,), generator=draw).tolist()


def example_of(draw, i):
    return {
        "prompt_ids": ids(draw, 2, 4), "chosen_ids": ids(draw, 1, 5), "rejected_ids": ids(draw, 2, 6),
        "completion_ids": ids(draw, 1, LONGEST), "KL_completion_ids": ids(draw, 1, 4), "label": i % 3 != 0,
        "margin": float(torch.rand(1, generator=draw, dtype=torch.float64)) * MARGIN,
    }  # fmt: skip


def by_rows(steps):
    """Each row's weight where each rank and microbatch takes the mean of its own."""
    for step in steps:
        for rows in step:
            for row in rows:
                row["weight"] = 1 / (len(rows) * len(step) * len(steps))


def by_tokens(averaged):
    """The weight of each token of a completion; `averaged`: over all ranks, else a rank's own in all microbatches."""

    def weigh(steps):
        for r in range(len(steps[0])):
            own = [row for step in steps for row in step[r]]
            counted = [row for step in steps for rows in step for row in rows] if averaged else own
            count = sum(len(row["completion_ids"]) for row in counted) * (1 if averaged else len(steps[0]))
            for row in own:
                row["weight"] = 1 / count

    return weigh


def by_group(kind):
    """GRPO: the advantages, within groups of rows that follow each other over all ranks, and each token's weight."""

    def weigh(steps):
        ranks, total = len(steps[0]), len(steps) * len(steps[0])
        rows = [row for r in range(ranks) for step in steps for row in step[r]]
        rewards = torch.tensor([reward(row["completion_ids"]) for row in rows], dtype=torch.float64)
        groups = rewards.view(-1, ROWS * ranks)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        for row, advantage in zip(rows, advantages.flatten().tolist()):
            row["advantage"] = advantage
        for step in steps:
            for own in step:
                tokens = sum(len(row["completion_ids"]) for row in own)
                for row in own:
                    each = {
                        "grpo": ROWS * len(row["completion_ids"]) * total,
                        "bnpo": tokens * total,
                        "dr_grpo": ROWS * LONGEST * total,
                        "dapo": sum(len(one["completion_ids"]) for one in rows),
                    }
                    row["weight"] = 1 / each[kind]

    return weigh


def reward(completion):
    return sum(completion) % 11 / 7


def batches_of(weigh, even=False):
    def batches(rank, mesh, microbatches):
        draw = torch.Generator().manual_seed(5)
        place, count = place_of(mesh)
        steps = [[[example_of(draw, i + m + r) for i in range(ROWS if even else 1 + (r + m) % 2 + (r == 0))]
                  for r in range(count)] for m in range(microbatches)]  # fmt: skip
        weigh(steps)
        whole = [{"examples": [row for rows in step for row in rows]} for step in steps]
        return whole if rank is None else [{"examples": step[place]} for step in steps]

    return batches


# -- losses of one process


def padded(rows, first, second=None):
    """(the tokens of each row, a mask of those of its completion)"""
    full = [row[first] + (row[second] if second else []) for row in rows]
    width = max(map(len, full))
    tokens = torch.tensor([one + [0] * (width - len(one)) for one in full])
    mask = torch.zeros_like(tokens)
    for i, (row, one) in enumerate(zip(rows, full)):
        mask[i, len(row[first]) if second else 0 : len(one)] = 1
    return tokens, mask


def seen(rows, completion):
    """Which tokens are no padding."""
    sizes = torch.tensor([len(row["prompt_ids"]) + len(row[completion]) for row in rows])
    return (torch.arange(int(sizes.max())) < sizes[:, None]).long()


def logps_of(model, rows, completion):
    """(the logarithm of each next token's probability, which of them belong to completions)"""
    tokens, mask = padded(rows, "prompt_ids", completion)
    logits = model(input_ids=tokens, attention_mask=seen(rows, completion), use_cache=False).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1), mask[:, 1:].to(logits.dtype)


def sums_of(model, rows, completion):
    logps, mask = logps_of(model, rows, completion)
    return (logps * mask).sum(-1)


def weights_of(rows):
    return torch.tensor([row["weight"] for row in rows], dtype=torch.float64)


def sft_loss(kind):
    def loss(model, batch):
        rows = batch["examples"]
        tokens, mask = padded(rows, "prompt_ids", "completion_ids")
        out = model(input_ids=tokens, attention_mask=seen(rows, "completion_ids"), use_cache=False)
        logs = out.logits[:, :-1].log_softmax(-1)
        own = logs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        each = -own
        if kind == "dft":
            each = each * own.exp().detach()
        if kind == "smoothed":
            each = (1 - base.SMOOTHED) * each - base.SMOOTHED * logs.mean(-1)
        return (each * mask[:, 1:] * weights_of(rows)[:, None]).sum()

    return loss


def dpo_loss(kind):
    def loss(model, batch):
        rows = batch["examples"]
        policy = [sums_of(model, rows, name) for name in ("chosen_ids", "rejected_ids")]
        with torch.no_grad():
            fixed = [sums_of(reference(), rows, name) for name in ("chosen_ids", "rejected_ids")]
        ratios = [ours - theirs for ours, theirs in zip(policy, fixed)]
        if kind == "ipo":
            sizes = [torch.tensor([len(row[name]) for row in rows]) for name in ("chosen_ids", "rejected_ids")]
            each = (ratios[0] / sizes[0] - ratios[1] / sizes[1] - 1 / (2 * BETA)) ** 2
        elif kind == "hinge":
            each = torch.relu(1 - BETA * (ratios[0] - ratios[1]))
        else:
            each = -F.logsigmoid(BETA * (ratios[0] - ratios[1]))
        return (each * weights_of(rows)).sum()

    return loss


def kto_loss(kind):
    def loss(model, batch):
        rows, weights = batch["examples"], weights_of(batch["examples"])
        policy = sums_of(model, rows, "completion_ids")
        with torch.no_grad():
            fixed = sums_of(reference(), rows, "completion_ids")
            kl = sums_of(model, rows, "KL_completion_ids") - sums_of(reference(), rows, "KL_completion_ids")
            kl = ((kl * weights).sum() / weights.sum()).clamp(min=0)  # of the microbatches of all ranks
        ratios = policy - fixed
        signs = torch.tensor([1.0 if row["label"] else -1.0 for row in rows], dtype=torch.float64)
        if kind == "kto":
            each = 1 - torch.sigmoid(signs * BETA * (ratios - kl))
        else:
            each = torch.where(signs > 0, 1 - torch.sigmoid(BETA * ratios), torch.sigmoid(BETA * ratios))
        return (each * weights).sum()

    return loss


def reward_loss(center):
    def loss(model, batch):
        rows = batch["examples"]
        scores = []
        for name in "chosen_ids", "rejected_ids":
            tokens, mask = padded(rows, name)
            scores.append(model(input_ids=tokens, attention_mask=mask, use_cache=False).logits.squeeze(-1))
        margins = torch.tensor([row["margin"] for row in rows], dtype=torch.float64)
        each = -F.logsigmoid(scores[0] - scores[1] - margins) + center * (scores[0] + scores[1]) ** 2
        return (each * weights_of(rows)).sum()

    return loss


def grpo_loss(beta):
    def loss(model, batch):
        rows = batch["examples"]
        logps, mask = logps_of(model, rows, "completion_ids")
        advantages = torch.tensor([row["advantage"] for row in rows], dtype=torch.float64)
        ratio = (logps - logps.detach()).exp()
        each = -ratio * advantages[:, None]
        if beta:
            with torch.no_grad():
                fixed, _ = logps_of(reference(), rows, "completion_ids")
            each = each + beta * ratio * ((fixed - logps).exp() - (fixed - logps) - 1)
        return (each * mask * weights_of(rows)[:, None]).sum()

    return loss


# -- trainers


class Given:
    """What each trainer is given instead of batches of a data set, and completions of its policy."""

    batches = [None]

    def get_train_dataloader(self):
        return Loader(self.batches)


class Sft(Given, trl.SFTTrainer):
    def take(self, microbatches):
        for rows in microbatches:
            for row in rows:
                full = row["prompt_ids"] + row["completion_ids"]
                row.update(input_ids=full, labels=[-100] * len(row["prompt_ids"]) + row["completion_ids"])
        self.batches = [self.data_collator(rows) for rows in microbatches]


class Dpo(Given, trl.DPOTrainer):
    def take(self, microbatches):
        self.batches = [self.data_collator(rows) for rows in microbatches]


class Kto(Given, trl.KTOTrainer):
    def take(self, microbatches):
        kept = ("prompt_ids", "completion_ids", "KL_completion_ids", "label")
        reported = kept if self.calculate_KL else tuple(key for key in kept if key != "KL_completion_ids")
        self.batches = [
            self.data_collator([{key: row[key] for key in reported} for row in rows]) for rows in microbatches
        ]


class Reward(Given, trl.RewardTrainer):
    def take(self, microbatches):
        self.batches = [self.data_collator(rows) for rows in microbatches]


class Grpo(Given, trl.GRPOTrainer):
    rollouts = []

    def _prepare_inputs(self, batch):
        grpo_trainer.shuffle_sequence_dict = (lambda rows: rows) if self.loss_type == "bnpo" else shuffle_sequence_dict
        return super()._prepare_inputs(batch)

    def take(self, microbatches):
        rows = [row for some in microbatches for row in some]
        self.rollouts, self._step, self._buffered_inputs = rows, 0, None
        self.args.steps_per_generation = len(microbatches)
        self.batches = [[{"prompt": "w3"} for _ in rows] for _ in microbatches]


def rolled_out(prompts, trainer):
    rows = trainer.rollouts
    return {"prompt_ids": [row["prompt_ids"] for row in rows], "logprobs": None,
            "completion_ids": [row["completion_ids"] for row in rows]}  # fmt: skip


def rewarded(completion_ids, **more):
    return [reward(one) for one in completion_ids]


DATA = {"prompt": ["w3"] * 8, "chosen": ["w4 w5"] * 8, "rejected": ["w6"] * 8, "completion": ["w7"] * 8,
        "label": [True, False] * 4}  # fmt: skip
KINDS = {
    "sft": (Sft, trl.SFTConfig, ("prompt", "completion")),
    "dpo": (Dpo, trl.DPOConfig, ("prompt", "chosen", "rejected")),
    "kto": (Kto, trl.KTOConfig, ("prompt", "completion", "label")),
    "reward": (Reward, trl.RewardConfig, ("prompt", "chosen", "rejected")),
    "grpo": (Grpo, trl.GRPOConfig, ("prompt",)),
}


def trained(kind, model, parallelism_config=None, **reported):
    """The model as the trainer's `train()` prepares it."""
    make, config, columns = KINDS[kind]
    data = Dataset.from_dict({name: DATA[name] for name in columns})
    more, stop = {"processing_class": tokenizer(), "callbacks": [Stop()]}, None
    if kind in ("dpo", "kto"):
        more["ref_model"] = reference()
    if kind == "grpo":
        more.update(reward_funcs=rewarded, rollout_func=rolled_out)
        reported.update(num_generations=ROWS * ranks_of(model), max_completion_length=LONGEST)
        model.config._name_or_path = reference_folder()
    if kind == "sft":
        reported["dataset_kwargs"] = {"skip_prepare_dataset": True}
        data = Dataset.from_dict({"input_ids": [[3, 4]] * 8, "labels": [[3, 4]] * 8})
    if kind in ("sft", "dpo"):
        reported["router_aux_loss_coef"] = 0.0  # that loss is a mean of each microbatch's own
    arguments = config(
        output_dir=tempfile.mkdtemp(), use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no", bf16=False,
        disable_tqdm=True, logging_strategy="no", max_grad_norm=0.0, max_steps=1, optim="adamw_torch",
        per_device_train_batch_size=ROWS, parallelism_config=parallelism_config, **reported,
    )  # fmt: skip
    (stop,) = more["callbacks"]
    trainer = make(model, args=arguments, train_dataset=data, **more)
    if kind == "grpo" and trainer.beta:
        ours = dict(reference().named_buffers())
        for name, buffer in trainer.ref_model.named_buffers():  # loading rounds them otherwise
            buffer.copy_(ours[name])
    stop.at = "begin"
    with contextlib.suppress(EndError):
        trainer.train()
    stop.at = "step"
    made = trainer.model_wrapped
    made.__dict__["trainer"] = trainer
    return made


def run(model, microbatches, loss):
    trainer = model.__dict__["trainer"]
    trainer.args.gradient_accumulation_steps = len(microbatches)
    trainer.take([one["examples"] for one in microbatches])
    with contextlib.suppress(EndError):
        trainer.train()
    return [float(trainer._tr_loss)]


JOBS = {
    "sft": ("sft", sft_loss("nll"), by_tokens(True), {}),
    "sft, own counts": ("sft", sft_loss("nll"), by_tokens(False), {"average_tokens_across_devices": False}),
    "sft, dft": ("sft", sft_loss("dft"), by_tokens(True), {"loss_type": "dft"}),
    "sft, smoothed": ("sft", sft_loss("smoothed"), by_tokens(True), {"label_smoothing_factor": base.SMOOTHED}),
    "dpo": ("dpo", dpo_loss("sigmoid"), by_rows, {"beta": BETA}),
    "dpo, ipo": ("dpo", dpo_loss("ipo"), by_rows, {"beta": BETA, "loss_type": ["ipo"]}),
    "dpo, hinge": ("dpo", dpo_loss("hinge"), by_rows, {"beta": BETA, "loss_type": ["hinge"]}),
    "kto": ("kto", kto_loss("kto"), by_rows, {"beta": BETA}),
    "kto, apo": ("kto", kto_loss("apo"), by_rows, {"beta": BETA, "loss_type": "apo_zero_unpaired"}),
    "reward": ("reward", reward_loss(0.0), by_rows, {}),
    "reward, centered": ("reward", reward_loss(CENTER), by_rows, {"center_rewards_coefficient": CENTER}),
    **{f"grpo, {kind}": ("grpo", grpo_loss(0.0), by_group(kind), {"loss_type": kind})
       for kind in ("grpo", "bnpo", "dr_grpo", "dapo")},
    "grpo, dapo, KL": ("grpo", grpo_loss(KL), by_group("dapo"), {"loss_type": "dapo", "beta": KL}),
}  # fmt: skip
HERE = {"ddp", "ddp of three", "plugin", "loaded fsdp", "loaded tp"}


def with_trainer(kind, how, reported):
    """`how` of the other file, with this file's trainer in place of its own."""

    def parallelize(model, mesh):
        before, base.trained = base.trained, lambda model, **more: trained(kind, model, **more)
        try:
            return how(model, mesh, **reported)
        finally:
            base.trained = before

    return parallelize


def models_of(job, layout):
    if job == "reward":
        return ["score"]
    return ["llama", "qwen3_moe"] if job in ("sft", "dpo") and layout == "ddp" else ["llama"]


layouts = {
    named(name, job): {
        "mesh": mesh,
        "models": models_of(kind, name),
        "parallelize": with_trainer(kind, how, reported),
        "batches": batches_of(weigh, even=kind in ("dpo", "reward", "grpo")),
        "loss": loss,
    }
    for job, (kind, loss, weigh, reported) in JOBS.items()
    for name, (mesh, how, _) in MESHES.items()
    if name in HERE
}
reference_folder()  # before any step, which would be said to draw numbers
loss, batches = layouts["ddp, sft"]["loss"], layouts["ddp, sft"]["batches"]
