"""A wrong gradient in Transformers 5.24.0, PyTorch 2.15.0+cu132.

The weights of the shared experts' gate and up projection, which loading fuses, are cut before they are fused: the model
that is loaded is another one.

Run: python3 minimax_m3_vl_fused.py   (CPU, 2 processes on gloo; needs torch and transformers only)
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
    "model_type": "minimax_m3_vl",
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 14,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_channels": 3,
        "image_size": 16,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-05,
        "attention_dropout": 0.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "initializer_range": 0.02,
        "model_type": "minimax_m3_vl_vision",
    },
    "text_config": {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 14,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-06,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "rope_parameters": {"rope_theta": 5000000.0, "rope_type": "default"},
        "dense_intermediate_size": 14,
        "shared_intermediate_size": 10,
        "routed_scaling_factor": 2.0,
        "rotary_dim": 8,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "mlp_layer_types": ["sparse", "sparse"],
        "index_n_heads": 4,
        "index_head_dim": 8,
        "index_block_size": 2,
        "index_topk_blocks": 2,
        "index_local_blocks": 1,
        "layer_types": ["full_attention", "full_attention"],
        "model_type": "minimax_m3_vl_text",
    },
    "image_token_index": 3,
    "video_token_index": 4,
    "projector_hidden_size": 32,
    "vision_start_token_id": 6,
    "merged_hidden_size": 128,
}
LAYOUT = {"fsdp_size": 2}
RANKS, REPLICAS, MICROBATCHES = 2, 2, 1  # a replica has its own rows
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
