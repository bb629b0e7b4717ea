"""A wrong gradient in Transformers 5.24.0, PyTorch 2.15.0+cu132.

The rows of the vision tower's q and k, which loading permutes for rotary embeddings, are cut before they are permuted,
as if a rank had all heads: the model that is loaded is another one.

Run: python3 mistral_large4_permuted.py   (CPU, 2 processes on gloo; needs torch and transformers only)
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
    "model_type": "mistral_large4",
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 14,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_channels": 3,
        "image_size": 16,
        "patch_size": 4,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "initializer_range": 0.02,
        "head_dim": 8,
        "model_type": "pixtral",
    },
    "text_config": {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 14,
        "moe_intermediate_size": 10,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "output_router_logits": False,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 10,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "qk_nope_head_dim": 8,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-05,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2048.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "attention_factor": 1.0,
        },
        "mlp_layer_types": ["dense", "sparse"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "index_topk": 4,
        "index_head_dim": 8,
        "index_n_heads": 4,
        "head_dim": 8,
        "first_k_dense_replace": 1,
        "layer_types": ["indexed_attention", "indexed_attention"],
        "indexer_types": ["full", "full"],
        "no_rope_layers": [1, 1],
        "kv_source_layers": [0, 1],
        "final_logit_softcapping": 30.0,
        "qk_head_dim": 16,
        "model_type": "mistral_large4_text",
    },
    "image_token_index": 3,
    "vision_start_token_id": 6,
}
LAYOUT = {"fsdp_size": 2}
RANKS, REPLICAS, MICROBATCHES = 2, 2, 1  # a replica has its own rows
NAME = "model.vision_tower.patch_conv.weight"
IMAGE = torch.arange(768.0).sin().view(1, 3, 16, 16)  # each row begins with this image, in four tokens
MODEL = dict(dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
AUTO = transformers.AutoModelForImageTextToText
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def gradient(model, microbatches):
    """The gradient of NAME for the mean over microbatches of the mean loss of the next token."""
    for tokens in microbatches:
        images = dict(pixel_values=IMAGE.expand(len(tokens), -1, -1, -1), image_sizes=[(16, 16)] * len(tokens))
        logits = model(input_ids=tokens, **images).logits
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
    tokens[..., :4] = CONFIG["image_token_index"]
    bad = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        expected = gradient(model, tokens.flatten(1, 2))
        mp.spawn(one_rank, (folder, tokens, expected, bad), RANKS)
    if bad.value:
        sys.exit(f"WRONG: the gradient of {NAME} on {RANKS} ranks ({LAYOUT})")
    print("right")
