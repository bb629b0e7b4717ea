"""A wrong gradient in Transformers 5.24.0, PyTorch 2.15.0+cu132.

The weights of linear attention's conv1d, which loading fuses of those of q, k and v, are cut before they are fused: the
model that is loaded is another one.

Run: python3 kimi_linear_fused.py   (CPU, 2 processes on gloo; needs torch and transformers only)
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.
"""

import os
import sys
import tempfile
import traceback

os.environ.update(CUDA_VISIBLE_DEVICES="", MASTER_ADDR="localhost", OMP_NUM_THREADS="1")
if __name__ == "__main__":  # an error is not the bug
    sys.excepthook = lambda *error: (traceback.print_exception(*error, file=sys.__stderr__), os._exit(2))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import transformers
from transformers.distributed import DistributedConfig

CONFIG = {
    "model_type": "kimi_linear",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 13,
    "moe_intermediate_size": 7,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "num_experts_per_token": 2,
    "model_max_length": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": 4,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "qk_head_dim": 16,
    "head_dim": 8,
}
LAYOUT = {"fsdp_size": 2}
RANKS, REPLICAS, MICROBATCHES = 2, 2, 1  # a replica has its own rows
NAME = "model.embed_tokens.weight"
MODEL = dict(dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
AUTO = transformers.AutoModelForCausalLM
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def gradient(model, microbatches):
    """The gradient of NAME for the mean over microbatches of the mean loss of the next token."""
    for tokens in microbatches:
        logits = model(input_ids=tokens).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        (loss / len(microbatches)).backward()
    grad = model.get_parameter(NAME).grad
    return grad.full_tensor() if hasattr(grad, "full_tensor") else grad


def one_rank(rank, folder, tokens, expected, bad):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = AUTO.from_pretrained(folder, distributed_config=DistributedConfig(**LAYOUT), **MODEL).train()
    assert hasattr(model, "unshard"), "fsdp_size is without effect in this release of Transformers"
    found = gradient(model, tokens[:, rank * REPLICAS // RANKS])
    if rank == 0:
        worst = (found - expected).abs().nan_to_num(torch.inf).argmax()
        right, wrong = (float(value.flatten()[worst]) for value in (expected, found))
        print(f"{NAME}, element {int(worst)}: expected {right:.6g}, found {wrong:.6g}")
        bad.value = not torch.allclose(found, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = AUTO.from_config(transformers.AutoConfig.for_model(**CONFIG), **MODEL).train()
    with torch.no_grad():  # parameters away from ones and zeros
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    tokens = torch.randint(5, 96, (MICROBATCHES, REPLICAS, 1, 9))
    bad = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        expected = gradient(model, tokens.flatten(1, 2))
        mp.spawn(one_rank, (folder, tokens, expected, bad), RANKS)
    if bad.value:
        sys.exit(f"WRONG: the gradient of {NAME} on {RANKS} ranks ({LAYOUT})")
    print("right")
