"""PyTorch's own optimizers under its wrappers, for `addend torch-matrix`: parameters are compared after two steps."""

import torch
from small import batches, loss, make_frozen, make_model  # noqa: F401 - functions of the matrix
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch_parallel import BOTH, DP, HSDP, cut_by_plan, ddp, over, placed, replicated, sharded

models = {"decoder": make_model, "frozen": make_frozen}
steps = 2


def matrices(model):
    return [p for p in model.parameters() if p.dim() == 2 and p.requires_grad]


class Pair:
    """Muon for the matrices and AdamW for all else, as its users have them."""

    def __init__(self, model, **arguments):
        rest = [p for p in model.parameters() if p.dim() != 2 and p.requires_grad]
        self.both = [torch.optim.Muon(matrices(model), lr=0.02, **arguments), torch.optim.AdamW(rest, lr=0.02)]
        self.param_groups = [group for one in self.both for group in one.param_groups]

    def step(self):
        for one in self.both:
            one.step()


def muon(**arguments):
    return lambda model: Pair(model, **arguments)


def plain(kind, **arguments):
    def make(model):
        return kind([p for p in model.parameters() if p.requires_grad], **arguments)

    return make


def zero(kind, **arguments):
    """ZeroRedundancyOptimizer on the ranks, and the same optimizer alone in one process."""

    def make(model):
        import torch.distributed as dist

        own = [p for p in model.parameters() if p.requires_grad]
        if not dist.is_initialized():
            return kind(own, **{k: v for k, v in arguments.items() if k != "parameters_as_bucket_view"})
        return ZeroRedundancyOptimizer(own, optimizer_class=kind, **arguments)

    return make


def clipping(make):
    """Gradients are clipped before the step, by `clip_grad_norm_` of all parameters."""

    def made(model):
        optimizer = make(model)
        step = optimizer.step

        def clipped():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            step()

        optimizer.step = clipped
        return optimizer

    return made


OPTIMIZERS = {
    "Muon": muon(),
    "Muon, rms": muon(adjust_lr_fn="match_rms_adamw", nesterov=False),
    "AdamW, foreach": plain(torch.optim.AdamW, lr=0.01, foreach=True),
    "AdamW, fused": plain(torch.optim.AdamW, lr=0.01, fused=True),
    "AdamW, amsgrad": plain(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "Adafactor": plain(torch.optim.Adafactor, lr=0.05),
    "Adafactor, foreach": plain(torch.optim.Adafactor, lr=0.05, foreach=True),
    "SGD": plain(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adagrad": plain(torch.optim.Adagrad, lr=0.05),
    "RMSprop": plain(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
    "Adamax": plain(torch.optim.Adamax, lr=0.01),
    "NAdam": plain(torch.optim.NAdam, lr=0.01),
    "RAdam": plain(torch.optim.RAdam, lr=0.01),
    "Adadelta": plain(torch.optim.Adadelta),
    "ASGD": plain(torch.optim.ASGD, lr=0.01),
    "Rprop": plain(torch.optim.Rprop, lr=0.01),
    "AdamW, clipped": clipping(plain(torch.optim.AdamW, lr=0.01)),
}
WRAPPERS = {"fsdp": ({"dp": 3}, sharded())}
SOME = {
    "ddp": (DP, ddp()),
    "hsdp": (HSDP, sharded(tuple(HSDP))),
    "replicate": (DP, replicated),
    "fsdp, second dimension": ({"dp": 3}, placed),
    "fsdp over tp, sequence": (BOTH, cut_by_plan(True, wrap=over)),
    "tp, sequence": ({"tp": 2}, cut_by_plan(True)),
}
SUBTLE = ("Muon", "Adafactor", "Adafactor, foreach", "AdamW, foreach", "AdamW, clipped")


def layout(pair, optimizer, models=("decoder",)):
    return {"mesh": pair[0], "parallelize": pair[1], "optimizer": optimizer, "models": models}


layouts = {f"{name}, {how}": layout(pair, make) for name, make in OPTIMIZERS.items() for how, pair in WRAPPERS.items()}
layouts.update({f"{name}, {how}": layout(pair, OPTIMIZERS[name]) for name in SUBTLE for how, pair in SOME.items()})
ZERO = {
    "ZeRO, AdamW": zero(torch.optim.AdamW, lr=0.01),
    "ZeRO, SGD": zero(torch.optim.SGD, lr=0.1, momentum=0.9),
    "ZeRO, views": zero(torch.optim.AdamW, lr=0.01, parameters_as_bucket_view=True),
}
layouts.update({name: layout(({"dp": 3}, ddp()), make) for name, make in ZERO.items()})
for name in "ZeRO, AdamW", "Muon, fsdp", "AdamW, clipped, fsdp":
    layouts[name]["models"] = list(models)
