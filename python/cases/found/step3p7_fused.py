"""A wrong gradient in Transformers 5.24.0, PyTorch 2.15.0+cu132.

The experts' gate and up projections, which loading fuses, are each cut as the fused weight is (one block of each of two
halves), before they are fused: a rank's rows of both are not those of its columns of the down projection.

Run: python3 step3p7_fused.py   (CPU, 2 processes on gloo; needs torch and transformers only)
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
    "model_type": "step3p7",
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 186,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_channels": 3,
        "image_size": 16,
        "patch_size": 4,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-05,
        "attention_dropout": 0.0,
        "mlp_ratio": 5.833333333333333,
        "layer_scale_init_value": 0.1,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "max_position_embeddings": 64,
        "model_type": "step3p5_vision",
    },
    "text_config": {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-05,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
        "num_experts_per_tok": 2,
        "n_routed_experts": 4,
        "output_router_logits": False,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
        "mlp_layer_types": ["dense", "sparse"],
        "layer_types": ["full_attention", "full_attention"],
        "moe_intermediate_size": 20,
        "share_expert_dim": 20,
        "sliding_window": 4,
        "num_sliding_attention_heads": 4,
        "attention_bias": False,
        "query_pre_attn_scalar": 8,
        "moe_router_scaling_factor": 1.0,
        "mlp_bias": False,
        "swiglu_limits": None,
        "swiglu_limits_shared": None,
        "mtp_layer_types": None,
        "mtp_mlp_layer_types": None,
        "num_nextn_predict_layers": 0,
        "per_layer_config": {},
        "model_type": "step3p5",
    },
    "image_token_id": 3,
    "vision_start_token_id": 6,
}
LAYOUT = {"tp_size": 2}
RANKS, REPLICAS, MICROBATCHES = 2, 1, 1  # a replica has its own rows
NAME = "model.language_model.embed_tokens.weight"
MODEL = dict(dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
AUTO = transformers.AutoModelForImageTextToText
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
