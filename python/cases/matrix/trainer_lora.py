"""LoRA of PEFT 0.21 under Transformers' Trainer, for `addend torch-matrix`: over data-parallel ranks, and on models
that are divided when they are loaded, whose adapters the Trainer itself keeps the same on all ranks."""

import peft_lora
import trainer

NEEDS = ["--no-deps peft==0.21.2"]
trainer.SHIFTED += ("PeftModel", "PeftModelForCausalLM")
models = {
    name: peft_lora.models[name]
    for name in ("lora", "columns", "lora_bias", "head_lora", "embedding", "dora", "new_tokens", "norms", "vera", "ia3")
}


def replicas(model, mesh):
    return trainer.trained(model)


def loaded(**sizes):
    def parallelize(model, mesh):
        parts = peft_lora.loaded(model, mesh, **sizes)
        more = {"parallelism_config": trainer.Parallelism()} if "tp_size" in sizes else {}
        return trainer.trained(parts, **more)

    return parallelize


layouts = {
    "ddp": {"mesh": {"dp": 2}, "parallelize": replicas},
    "loaded fsdp": {"mesh": {"fsdp": 2}, "parallelize": loaded(fsdp_size=2)},
    "loaded tp": {"mesh": {"tp": 2}, "parallelize": loaded(tp_size=2)},
    "loaded fsdp and tp": {"mesh": {"fsdp": 2, "tp": 2}, "parallelize": loaded(fsdp_size=2, tp_size=2)},
    "loaded hsdp": {
        "mesh": {"dp_replicate": 2, "fsdp": 2},
        "parallelize": loaded(dp_replicate_size=2, fsdp_size=2),
    },
}
batches, loss, run = trainer.batches_of(trainer.tokens_of, True, True), trainer.loss_of(), trainer.run
