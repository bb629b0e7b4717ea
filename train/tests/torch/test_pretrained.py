"""Test models in Transformers' format: `model.from` begins with exactly their weights, and `addend export` writes
what AutoModelForCausalLM.from_pretrained loads again, bit for bit if nothing was trained.
"""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file
from says import has, says, says_nothing_of
from skips import skip_file

try:
    import transformers as tf
except ImportError:
    skip_file(__name__, "this python3 has no transformers")

PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
# Nothing is square, heads are wider than hidden_size / heads, and an axis of two ranks cuts everything unevenly.
SIZES = dict(
    vocab_size=257,
    hidden_size=30,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=35,
)
WIDE = dict(SIZES, head_dim=8)
SPARSE = dict(WIDE, num_experts_per_tok=2)
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
MODELS = {
    "llama": tf.LlamaConfig(**WIDE),
    "llama_narrow": tf.LlamaConfig(**dict(SIZES, hidden_size=24, num_attention_heads=4, num_key_value_heads=1)),
    "llama_biased": tf.LlamaConfig(**WIDE, attention_bias=True, mlp_bias=True),
    "llama_scaled": tf.LlamaConfig(**WIDE, tie_word_embeddings=True, rope_parameters=dict(LLAMA3, rope_theta=5e5)),
    "qwen2": tf.Qwen2Config(**dict(SIZES, hidden_size=24)),
    "qwen3": tf.Qwen3Config(**WIDE, tie_word_embeddings=True),
    "qwen3_biased": tf.Qwen3Config(**WIDE, attention_bias=True),
    "mistral": tf.MistralConfig(**WIDE, sliding_window=None),
    "mistral_window": tf.MistralConfig(**WIDE, sliding_window=8),  # as many tokens as a sample has
    "qwen2_window": tf.Qwen2Config(
        **dict(SIZES, hidden_size=24), use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "qwen3_moe_window": tf.Qwen3MoeConfig(
        **SPARSE, num_experts=3, moe_intermediate_size=10, use_sliding_window=True, sliding_window=8
    ),
    "mixtral": tf.MixtralConfig(**SPARSE, num_local_experts=3),
    "qwen3_moe": tf.Qwen3MoeConfig(**SPARSE, num_experts=3, moe_intermediate_size=10, norm_topk_prob=True),
    "qwen3_moe_raw": tf.Qwen3MoeConfig(**SPARSE, num_experts=5, moe_intermediate_size=10, norm_topk_prob=False),
}
RECIPE = """
name: tiny
model: {from: %s}
data: {text: [text], seq: 8}
mesh: "%s"
shard: {zero: %d}
train: {global_batch: 4, steps: 1, lr: 0, clip: 0}
evaluate: {samples: 0}
"""
SMALL = "layers: 2, d_model: 24, heads: 4, kind: "  # keys of a recipe's own model
MESHES = [("dp_shard=1", 0), ("dp_shard=3", 3), ("dp_shard=1 tp=2", 1)]


def new_model(config, dtype=torch.float32):
    torch.manual_seed(1)
    model = tf.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # new norms and biases would all be equal
        torch.nn.init.normal_(parameter, 0.5, 0.3)
    return model.to(dtype)


class Pretrained(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        pathlib.Path("text").write_text("words and more words " * 500)

    def addend(self, *words, status=0):
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stderr + done.stdout)
        return done.stderr + done.stdout

    def train(self, folder, mesh="dp_shard=1", zero=0, *sets):
        pathlib.Path("recipe.yaml").write_text(RECIPE % (folder, mesh, zero))
        return self.addend("train", "recipe.yaml", "--overwrite", *[word for text in sets for word in ("--set", text)])

    def export(self, *words):
        return json.loads(self.addend("export", "runs/tiny", "out", "--overwrite", "--json", *words).splitlines()[-1])

    def same(self, model, folder, dtype="auto"):
        loaded, info = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        self.assertFalse(any(info.values()), info)
        self.assertIs(type(loaded), type(model))
        want, have = model.state_dict(), loaded.state_dict()
        self.assertEqual(want.keys(), have.keys())
        for name, tensor in want.items():
            self.assertEqual(tensor.dtype, have[name].dtype, name)
            self.assertTrue(torch.equal(tensor, have[name]), name)

    def test_every_architecture_comes_back_bit_for_bit(self):
        for name, config in MODELS.items():
            for dtype in (torch.float32, torch.bfloat16):
                model = new_model(config, dtype)
                model.save_pretrained("model")
                for mesh, zero in MESHES if dtype == torch.bfloat16 else MESHES[1:2]:
                    with self.subTest(name=name, dtype=dtype, mesh=mesh):
                        self.train("model", mesh, zero)
                        self.export()
                        self.same(model, "out")
                        for file in ("config.json", "generation_config.json"):
                            self.assertEqual(
                                pathlib.Path("model", file).read_bytes(), pathlib.Path("out", file).read_bytes()
                            )
                shutil.rmtree("model")

    def test_losses_are_those_of_transformers(self):
        """In a text of period 3 every sample is one of three, so the loss of 4 samples is one of their 15 means."""
        pathlib.Path("text").write_text("abc" * 2000)
        for name, config in MODELS.items():
            with self.subTest(name=name):
                model = new_model(config)
                model.save_pretrained("model")
                if hasattr(model, "set_experts_implementation"):
                    # other implementations need widths that fit the processor
                    model.set_experts_implementation("eager")
                self.train("model")
                loss = json.loads(pathlib.Path("runs/tiny/metrics.jsonl").read_text().splitlines()[0])["loss"]
                tokens = torch.tensor([[97 + (start + i) % 3 for i in range(9)] for start in range(3)])
                logits = model(tokens[:, :-1]).logits.log_softmax(-1)
                three = -logits.gather(2, tokens[:, 1:, None]).mean((1, 2))
                means = [sum(three[list(four)]) / 4 for four in itertools.combinations_with_replacement(range(3), 4)]
                self.assertGreater(max(three) - min(three), 1e-3)
                self.assertLess(min(abs(mean.item() - loss) for mean in means), 2e-6)
                shutil.rmtree("model")

    def test_a_narrower_window_is_refused(self):
        for name in MODELS:
            if name.endswith("_window"):
                with self.subTest(name=name):
                    new_model(MODELS[name]).save_pretrained("model")
                    says(self, self.train("model"), "sliding_window", "8")
                    file = pathlib.Path("model/config.json")
                    file.write_text(json.dumps({**json.loads(file.read_text()), "sliding_window": 7}))
                    reported = self.addend("train", "recipe.yaml", "--overwrite", status=2)
                    says(self, reported, "model/config.json", "sliding_window", "7", "data.seq", "8")
                    shutil.rmtree("model")

    def test_what_generation_and_fine_tuners_leave_is_named_and_ignored(self):
        config = tf.LlamaConfig(**WIDE, unsloth_fixed=True, loss_type="ForCausalLM")
        model = new_model(config)
        model.save_pretrained("model")
        file = pathlib.Path("model/config.json")
        kept = json.loads(file.read_text())
        self.assertLessEqual({"unsloth_fixed", "loss_type"}, set(kept))
        file.write_text(json.dumps({**kept, "temperature": 0.6, "top_p": 0.9, "num_beams": 4, "do_sample": False}))
        reported = self.train("model")
        says(self, reported, "unsloth_fixed", "loss_type", "top_p", "num_beams")
        (line,) = (line for line in reported.splitlines() if has(line, "unsloth_fixed"))
        self.assertTrue(has(line, "temperature"), line)
        says_nothing_of(self, reported, "do_sample")
        self.export()
        self.same(model, "out")

    def test_shards_experts_on_ranks_and_half_precision(self):
        model = new_model(MODELS["mixtral"], torch.float16)
        model.save_pretrained("model", max_shard_size="20KB")
        self.assertGreater(len(list(pathlib.Path("model").glob("model-*.safetensors"))), 1)
        self.train("model", "dp_shard=2 tp=2", 3, "views.sparse=ep=2 etp=2")
        self.assertEqual(self.export()["files"], 1)
        self.same(model, "out")

    def test_dtypes_are_converted_as_torch_does(self):
        model = new_model(MODELS["qwen3"])
        model.save_pretrained("model")
        self.train("model")
        self.export("--dtype", "bf16")
        self.assertEqual({t.dtype for t in load_file("out/model.safetensors").values()}, {torch.bfloat16})
        self.same(model.to(torch.bfloat16), "out")

    def test_weights_of_mixed_dtypes_keep_them(self):
        model = new_model(MODELS["llama"], torch.bfloat16)
        model.model.norm.to(torch.float32)
        model.save_pretrained("model")
        self.train("model")
        self.export()
        want, have = load_file("model/model.safetensors"), load_file("out/model.safetensors")
        self.assertEqual(want.keys(), have.keys())
        for name, tensor in want.items():
            self.assertEqual(tensor.dtype, have[name].dtype, name)
            self.assertTrue(torch.equal(tensor, have[name]), name)

    def test_a_checkpoint_alone_is_exported(self):
        model = new_model(MODELS["qwen3_moe"])
        model.save_pretrained("model")
        self.train("model", "dp_shard=3", 3, "checkpoint.every=1")
        os.remove("runs/tiny/weights.safetensors")
        self.export()
        self.same(model, "out")

    def test_models_of_recipes_are_expressed(self):
        experts = "experts: 3, top_k: 2, expert_hidden: 10"
        cases = {
            "LlamaForCausalLM": "gpt, head_dim: 4, kv_heads: 2, bias: mlp, tied: false, rotary_scaling: [8, 1, 4, 32]",
            "Qwen2ForCausalLM": "gpt, bias: qkv, vocabulary: 300",
            "Qwen3ForCausalLM": "gpt, qk_norm: true, norm_epsilon: 1e-4, d_hidden: 36",
            "MixtralForCausalLM": f"moe, {experts}, normalised_scores: true",
            "Qwen3MoeForCausalLM": f"moe, {experts}, qk_norm: true",
        }
        for architecture, keys in cases.items():
            with self.subTest(architecture=architecture):
                pathlib.Path("recipe.yaml").write_text(
                    (RECIPE % ("x", "dp_shard=2", 1)).replace("from: x", SMALL + keys)
                )
                self.addend("train", "recipe.yaml", "--overwrite")
                shutil.copy("runs/tiny/weights.safetensors", "own.safetensors")
                self.assertEqual(self.export()["architecture"], architecture)
                loaded, info = tf.AutoModelForCausalLM.from_pretrained("out", output_loading_info=True)
                self.assertFalse(any(info.values()), info)
                self.assertEqual(type(loaded).__name__, architecture)
                shutil.rmtree("copied", ignore_errors=True)
                shutil.copytree("out", "copied")
                self.train("copied")
                own, again = load_file("own.safetensors"), load_file("runs/tiny/weights.safetensors")
                self.assertEqual(own.keys(), again.keys())
                self.assertTrue(all(torch.equal(own[name], again[name]) for name in own))


if __name__ == "__main__":
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    unittest.main()
