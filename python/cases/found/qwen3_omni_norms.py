"""A wrong gradient in Transformers 5.24.0, PyTorch 2.15.0.

Under tensor parallelism the q_norm and k_norm of Qwen3-Omni's thinker get only the rank's own heads' part of their
gradient: base_model_tp_plan of Qwen3OmniMoeTextConfig (configuration_qwen3_omni_moe.py:135) has no rule for them, those
of the talker's configurations have `replicated_with_grad_allreduce`. The plan of muse_glimmer_assistant lacks them too.

Run: python3 qwen3_omni_norms.py   (CPU, 2 processes on gloo; needs torch and transformers only)
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
    "model_type": "qwen3_omni_moe_thinker",
    "audio_config": {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 28,
        "d_model": 64,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_function": "gelu",
        "activation_dropout": 0.0,
        "scale_embedding": False,
        "initializer_range": 0.02,
        "max_source_positions": 1500,
        "n_window": 50,
        "output_dim": 64,
        "n_window_infer": 800,
        "conv_chunksize": 500,
        "downsample_hidden_size": 64,
        "model_type": "qwen3_omni_moe_audio_encoder",
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 28,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [1],
        "initializer_range": 0.02,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "model_type": "qwen3_omni_moe_vision_encoder",
    },
    "text_config": {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-06,
        "use_cache": False,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default", "mrope_section": [3, 2, 3]},
        "attention_bias": False,
        "sliding_window": None,
        "attention_dropout": 0.0,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 20,
        "num_experts_per_tok": 2,
        "num_experts": 4,
        "norm_topk_prob": True,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "mlp_only_layers": [],
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "model_type": "qwen3_omni_moe_text",
    },
    "audio_start_token_id": 8,
    "user_token_id": 8,
    "audio_token_id": 5,
    "image_token_id": 3,
    "video_token_id": 4,
    "vision_start_token_id": 6,
}
LAYOUT = {"tp_size": 2}
RANKS, REPLICAS, MICROBATCHES = 2, 1, 1  # a replica has its own rows
NAME, STEPS = "model.language_model.layers.0.self_attn.q_norm.weight", 0
MODEL = dict(dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
AUTO = transformers.AutoModelForImageTextToText
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def gradient(model, microbatches):
    """The gradient of NAME, after STEPS steps, for the mean over microbatches of the mean loss of the next token."""
    for step in range(STEPS + 1):
        model.zero_grad()
        for tokens in microbatches:
            logits = model(input_ids=tokens).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            (loss / len(microbatches)).backward()
        if step < STEPS:
            torch.optim.SGD(model.parameters(), lr=0.1).step()
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
    tokens = torch.randint(5, 97, (MICROBATCHES, REPLICAS, 1, 9))
    bad = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        expected = gradient(model, tokens.flatten(1, 2))
        mp.spawn(one_rank, (folder, tokens, expected, bad), RANKS)
    if bad.value:
        sys.exit(f"WRONG: the gradient of {NAME} on {RANKS} ranks ({LAYOUT})")
    print("right")
