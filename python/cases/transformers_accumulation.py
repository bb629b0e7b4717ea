"""Transformers' Trainer: the loss of each microbatch is the mean over its own tokens, and the step's loss is the mean
of these means, so tokens of short microbatches weigh more.
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import addend.torch
import case

SOURCE = "https://github.com/huggingface/transformers/pull/34191"
WRONG = ["transformers==4.45.2 accelerate==1.0.1"]
RIGHT = ["transformers==4.46.3 accelerate==1.0.1"]

LENGTHS = [4, 9, 16]  # tokens of each microbatch, all different
CONFIG = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


def make_model():
    torch.manual_seed(1)
    return LlamaForCausalLM(CONFIG)


def microbatches():
    generator = torch.Generator().manual_seed(2)
    words = [torch.randint(0, 50, (1, length), generator=generator) for length in LENGTHS]
    return [{"input_ids": w, "labels": labels_of(w)} for w in words]


def labels_of(words):
    """Mark the first label as not counted: nothing predicts it, but the Trainer counts labels without a mark."""
    labels = words.clone()
    labels[:, 0] = -100
    return labels


def step(model, batches, loss=None):
    """Run one step of the Trainer with its own functions."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, gradient_accumulation_steps=len(batches), use_cpu=True, report_to=[], max_grad_norm=0
        )
        trainer = Trainer(model=model, args=arguments)
        model.train()
        reported = ()
        if hasattr(trainer, "get_batch_samples"):
            batches, count = trainer.get_batch_samples(iter(batches), len(batches))
            reported = (count,)
        for batch in batches:
            trainer.training_step(model, dict(batch), *reported)


def watched():
    model = make_model()
    with addend.torch.watch(model) as watch:
        step(model, microbatches())
    return watch.report


def summed(model, batches):
    """Return one process's loss of the whole batch: the sum over all tokens, divided by their number."""
    total, count = 0, 0
    for batch in batches:
        logits = model(input_ids=batch["input_ids"]).logits
        target = batch["labels"][0, 1:]
        total = total + torch.nn.functional.cross_entropy(logits[0, :-1], target, reduction="sum")
        count += target.numel()
    return total, count


def run(model, batches, loss):
    step(model, batches[0])


def checked():
    return addend.torch.check(
        make_model, lambda model, mesh: model, lambda *_: [microbatches()], summed, mesh={"dp": 1}, run=run
    )


if __name__ == "__main__":
    case.play(1, watched, checked)
