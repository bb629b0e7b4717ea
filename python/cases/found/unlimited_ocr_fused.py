"""A wrong gradient in Transformers 5.24.0, PyTorch 2.15.0+cu132.

Weights that loading splits into those of q, k and v of the vision encoder are cut before they are split: the model that
is loaded is another one.

Run: python3 unlimited_ocr_fused.py   (CPU, 2 processes on gloo; needs torch and transformers only)
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

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGES = {"image_size": 16, "patch_size": 4}
IMAGE, PLACES = 3, 3  # the token that represents a part of an image, and how many an image has
CONFIG = {
    "model_type": "unlimited_ocr",
    "image_token_id": IMAGE,
    "vision_config": {
        "sam_config": {
            **SIZES,
            **IMAGES,
            "mlp_dim": 14,
            "output_channels": 32,
            "downsample_channels": [32, 32],
            "global_attn_indexes": [1],
        },
        "encoder_config": {**SIZES, **IMAGES, "intermediate_size": 14},
    },
    "text_config": {
        **SIZES,
        "vocab_size": 97,
        "intermediate_size": 14,
        "moe_intermediate_size": 10,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 64,
        "sliding_window": 4,
        "use_cache": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
LAYOUT = {"fsdp_size": 2}
RANKS, REPLICAS, MICROBATCHES = 2, 2, 1  # a replica has its own rows
NAME = "model.multi_modal_projector.weight"
MODEL = dict(dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
AUTO = transformers.AutoModelForImageTextToText
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def gradient(model, tokens, pixels):
    """The gradient of NAME for the mean over microbatches of the mean loss of the next token."""
    for ids, images in zip(tokens, pixels):
        logits = model(input_ids=ids, pixel_values=images).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        (loss / len(tokens)).backward()
    grad = model.get_parameter(NAME).grad
    return grad.full_tensor() if hasattr(grad, "full_tensor") else grad


def one_rank(rank, folder, tokens, pixels, expected, bad):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = AUTO.from_pretrained(folder, distributed_config=DistributedConfig(**LAYOUT), **MODEL).train()
    assert hasattr(model, "unshard"), "fsdp_size is without effect in this release of Transformers"
    replica = rank * REPLICAS // RANKS
    found = gradient(model, tokens[:, replica], pixels[:, replica])
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
            p.copy_(torch.randn_like(p) * 0.3)
    tokens = torch.randint(5, 97, (MICROBATCHES, REPLICAS, 1, 9))
    tokens[..., 1 : 1 + PLACES] = IMAGE
    pixels = torch.randn(MICROBATCHES, REPLICAS, 1, 3, 16, 16)
    bad = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        expected = gradient(model, tokens.flatten(1, 2), pixels.flatten(1, 2))
        mp.spawn(one_rank, (folder, tokens, pixels, expected, bad), RANKS)
    if bad.value:
        sys.exit(f"WRONG: the gradient of {NAME} on {RANKS} ranks ({LAYOUT})")
    print("right")
