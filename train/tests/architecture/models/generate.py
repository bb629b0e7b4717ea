"""Write the folders beside this file: a small random model of each architecture, as Transformers 5 saves it, and one
whose config.json is as version 4 wrote it.   python3 generate.py
"""

import json
import pathlib

import torch
import transformers as tf

HERE = pathlib.Path(__file__).parent
SIZES = dict(
    vocab_size=256,
    hidden_size=6,
    num_hidden_layers=1,
    num_attention_heads=3,
    num_key_value_heads=1,
    intermediate_size=5,
)
WIDE = dict(SIZES, head_dim=4)
SPARSE = dict(WIDE, num_experts_per_tok=2)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=5e5,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
MODELS = {
    "llama": tf.LlamaConfig(**WIDE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama3": tf.LlamaConfig(**WIDE, rope_parameters=LLAMA3, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "qwen2": tf.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": tf.Qwen3Config(**WIDE, tie_word_embeddings=True),
    "mistral": tf.MistralConfig(**WIDE, sliding_window=None, tie_word_embeddings=True),
    "mixtral": tf.MixtralConfig(**SPARSE, num_local_experts=3, tie_word_embeddings=True),
    "qwen3_moe": tf.Qwen3MoeConfig(
        **SPARSE, num_experts=3, moe_intermediate_size=4, norm_topk_prob=True, tie_word_embeddings=False
    ),
}


def save(name, config):
    torch.manual_seed(len(name))
    model = tf.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5, 0.3)
    model.to(torch.bfloat16).save_pretrained(HERE / name)
    (HERE / name / "generation_config.json").unlink()


def save_as_version_4():
    save("llama_v4", MODELS["llama3"])
    path = HERE / "llama_v4" / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.1"
    path.write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    for name, config in MODELS.items():
        save(name, config)
    save_as_version_4()
