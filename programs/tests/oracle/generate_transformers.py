"""Make the fixtures hf-* of programs/tests/oracle anew: small random models of Hugging Face Transformers, trained by its code.

Each case is a folder as `save_pretrained` writes it (f32), a file of tokens with its mask, and the state after 20
steps of AdamW in f64. The model's formulas are those of the package; only the optimizer, its schedule and the samples
are generate.py's. Transformers computes some things in f32 whatever the model's dtype: norms, rotary tables, softmax,
routers. `Lifted` turns every f32 that its code asks for into f64, so that nothing is rounded there; if the package's
own f32 results differ from that by more than f32's error, the generator stops. README.md says how to start it.
"""
import shutil

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from draws import random_bits, xxh64
from generate import FIXTURES, ROOT, STEPS, Gpt, flow, prepare, section, train_case, windows_of
from safetensors.numpy import save_file
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

PADDING = 0  # a token that no target counts
GENERATED = 100  # number of generated tokens
SHAPE = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "vocab_size": 43,
         "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
TRAIN = {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "weight_decay": 0.1, "clip": 0.5, "seed": 41}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 20.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
          # of the wavelengths 6.3, 13, 28, 59 one is kept, one is between, and two are divided
          "original_max_position_embeddings": 16}


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


CASES = {
    # Tied, with biases in all four products of attention, and heads wider than hidden_size / heads.
    "hf-llama": (transformers.LlamaConfig, SHAPE | {"intermediate_size": 17, "head_dim": 6, "attention_bias": True,
                                                    "tie_word_embeddings": True, "rope_parameters": rope(100.0)}),
    "hf-llama-scaled": (transformers.LlamaConfig, SHAPE | {"intermediate_size": 19, "head_dim": 8, "mlp_bias": True,
                                                           "num_attention_heads": 4, "num_key_value_heads": 2,
                                                           "rms_norm_eps": 3e-3, "rope_parameters": LLAMA3}),
    "hf-qwen2": (transformers.Qwen2Config, SHAPE | {"intermediate_size": 21, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
                                                    "num_attention_heads": 6, "num_key_value_heads": 2,
                                                    "rope_parameters": rope(1000.0)}),
    "hf-qwen3": (transformers.Qwen3Config, SHAPE | {"intermediate_size": 14, "head_dim": 10, "rms_norm_eps": 1e-2,
                                                    "rope_parameters": rope(300.0)}),
    "hf-mistral": (transformers.MistralConfig, SHAPE | {"intermediate_size": 23, "sliding_window": None, "head_dim": 4,
                                                        "rope_parameters": rope(10000.0)}),
    "hf-mixtral": (transformers.MixtralConfig, SHAPE | {"intermediate_size": 9, "num_local_experts": 5, "num_experts_per_tok": 2,
                                                        "head_dim": 8, "rope_parameters": rope(50.0)}),
    "hf-qwen3-moe": (transformers.Qwen3MoeConfig, SHAPE | {"moe_intermediate_size": 8, "intermediate_size": 16, "num_experts": 7,
                                                           "num_experts_per_tok": 3, "head_dim": 4, "norm_topk_prob": True,
                                                           "num_attention_heads": 6, "num_key_value_heads": 3,
                                                           "rope_parameters": rope(200.0)}),
    # The chosen experts keep the scores that the softmax over all experts gave.
    "hf-qwen3-moe-raw": (transformers.Qwen3MoeConfig, SHAPE | {"moe_intermediate_size": 7, "intermediate_size": 16,
                                                               "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 6,
                                                               "norm_topk_prob": False, "tie_word_embeddings": True,
                                                               "rope_parameters": rope(60.0)}),
}
SEQ, WINDOWS = 12, 61
LENGTHS = {  # how many tokens of each window are no padding; models that are not listed have no padding
    "hf-llama": [12, 5, 1, 9, 12, 2, 12], "hf-qwen3": [12, 12, 6, 2, 7, 10], "hf-mixtral": [4, 11, 12, 3],
    "hf-qwen3-moe": [1, 12, 7]}


# ---- f64 throughout ----

class Lifted(TorchFunctionMode):
    """Turn every f32 that is asked for into f64."""
    def __torch_function__(self, function, types, args=(), kwargs=None):
        def lift(value):
            return torch.float64 if value is torch.float32 else value
        if function is torch.Tensor.float:
            return args[0].double()
        return function(*map(lift, args), **{key: lift(value) for key, value in (kwargs or {}).items()})


def model_of(config, dtype, mode):
    """Run the model in a dtype. Its own parameters do not matter, since all are given at each call; tables that its
    code makes once are made here.
    """
    torch.set_default_dtype(dtype)
    with mode:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                                                     experts_implementation="eager", dtype=dtype)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def logits_of(model, mode, params, tokens, is_real):
    with mode:
        inputs = {"input_ids": torch.from_numpy(tokens).long(), "attention_mask": torch.from_numpy(is_real).long()}
        return functional_call(model, params, (), inputs | {"use_cache": False}, tie_weights=True).logits


# ---- Transformers' names and addend's ----

PLAIN = {"embedding.weight": "model.embed_tokens.weight", "final.norm.weight": "model.norm.weight"}
VECTORS = {"norm.attn": "input_layernorm.weight", "norm.mlp": "post_attention_layernorm.weight",
           "attn.q_norm": "self_attn.q_norm.weight", "attn.k_norm": "self_attn.k_norm.weight"}
MATRICES = {f"attn.w{name}": f"self_attn.{name}_proj" for name in "qkvo"} | {
    f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")} | {"moe.router": "mlp.gate"}
EXPERTS = {"moe.gate": "mlp.experts.gate_up_proj", "moe.up": "mlp.experts.gate_up_proj", "moe.down": "mlp.experts.down_proj"}


def own_of_layer(theirs, layer, own):
    """Return Transformers' tensors as addend's: a Linear is [out, in] and addend's matrices are [in, out]; Transformers
    has an expert's gate and up in one matrix.
    """
    prefix, to = f"model.layers.{layer}.", f"blocks.{layer}."
    for name, vector in VECTORS.items():
        if prefix + vector in theirs:
            own[to + name] = theirs[prefix + vector]
    for name, linear in MATRICES.items():
        if prefix + linear + ".weight" in theirs:
            own[to + name] = theirs[prefix + linear + ".weight"].T
        if prefix + linear + ".bias" in theirs:
            own[f"{to}{name}_bias"] = theirs[prefix + linear + ".bias"]
    if prefix + EXPERTS["moe.down"] in theirs:
        gate_up = theirs[prefix + EXPERTS["moe.gate"]].transpose(1, 2)
        own[to + "moe.gate"], own[to + "moe.up"] = gate_up.chunk(2, -1)
        own[to + "moe.down"] = theirs[prefix + EXPERTS["moe.down"]].transpose(1, 2)


def own_of(theirs, config):
    own = {name: theirs[there] for name, there in PLAIN.items()}
    for layer in range(config.num_hidden_layers):
        own_of_layer(theirs, layer, own)
    if not config.tie_word_embeddings:
        own["head.weight"] = theirs["lm_head.weight"].T
    return {name: value.detach().double().numpy().copy() for name, value in own.items()}


def theirs_of_layer(own, layer, theirs):
    prefix, block = f"model.layers.{layer}.", f"blocks.{layer}."
    for name, vector in VECTORS.items():
        if block + name in own:
            theirs[prefix + vector] = own[block + name]
    for name, linear in MATRICES.items():
        if block + name in own and own[block + name].ndim == 2:
            theirs[prefix + linear + ".weight"] = own[block + name].T
        if f"{block}{name}_bias" in own:
            theirs[prefix + linear + ".bias"] = own[f"{block}{name}_bias"]
    if block + "moe.down" in own:
        gate_up = torch.cat((own[block + "moe.gate"], own[block + "moe.up"]), -1)
        theirs[prefix + EXPERTS["moe.gate"]] = gate_up.transpose(1, 2)
        theirs[prefix + EXPERTS["moe.down"]] = own[block + "moe.down"].transpose(1, 2)


def theirs_of(own, config):
    theirs = {there: own[name] for name, there in PLAIN.items()}
    for layer in range(config.num_hidden_layers):
        theirs_of_layer(own, layer, theirs)
    if "head.weight" in own:
        theirs["lm_head.weight"] = own["head.weight"].T
    return theirs


# ---- tokens ----

def tokens_of(name):
    """Return windows of real tokens (never PADDING) with padding after them, and which tokens count as targets: the
    real ones, except for the first of a window that follows a padded one.
    """
    lengths = LENGTHS.get(name, [SEQ])
    stream = xxh64(f"oracle tokens {name}".encode())
    tokens = np.array([1 + random_bits(7, stream, i) % (SHAPE["vocab_size"] - 1) for i in range(SEQ * WINDOWS + 1)], np.uint16)
    mask = np.ones_like(tokens, np.uint8)
    for window in range(WINDOWS):
        length = lengths[window % len(lengths)]
        tokens[window * SEQ + length:(window + 1) * SEQ] = PADDING
        mask[window * SEQ + length:(window + 1) * SEQ] = 0
        if length < SEQ:
            mask[(window + 1) * SEQ] = 0
    return tokens, mask


# ---- training ----

class Transformers(Gpt):
    def __init__(self, name):
        make, keys = CASES[name]
        self.name, self.config = name, make(**keys)
        self.data, self.train = section({"data": {"seq": SEQ}}, "data"), section({"train": TRAIN}, "train")
        self.tokens, self.mask = tokens_of(name)
        self.lifted = model_of(self.config, torch.float64, Lifted())
        self.chosen, self.chosen_by = {}, self.watch_routers()

    def watch_routers(self):
        """Note in self.chosen, for each layer, how many tokens of the last batch each expert got; return the number of
        routers.
        """
        def note(layer):
            def count(_, __, output):
                self.chosen[layer] = np.bincount(output[2].flatten().numpy(), minlength=output[0].shape[-1])
            return count
        routers = [block.mlp.gate for block in self.lifted.model.layers if hasattr(block.mlp, "experts")]
        for layer, router in enumerate(routers):
            router.register_forward_hook(note(layer))
        return len(routers)

    def after_step(self):
        """Return what addend measures of a mixture of experts."""
        if not self.chosen:
            return {}
        counts = [self.chosen[layer] for layer in sorted(self.chosen)]
        most = max(count.max() * count.size / count.sum() for count in counts)
        return {"measured.dropped": 0.0, "measured.imbalance": float(most)} | {
            f"measured.blocks.{layer}.moe.tokens": count.astype(np.float64) for layer, count in enumerate(counts)}

    def start(self):
        """Return the package's own initial weights, widened, with every vector changed from its constant start."""
        torch.manual_seed(11)
        model = transformers.AutoModelForCausalLM.from_config(self.config, attn_implementation="eager",
                                                              experts_implementation="eager")
        with torch.no_grad():
            for _, p in model.named_parameters():
                p.mul_(8) if p.ndim > 1 else p.add_(0.3 * torch.randn_like(p))
        return model

    def batch(self, step, validation=False):
        return windows_of(self.tokens, self.mask, self.data["seq"], self.train, step)

    def is_real(self, tokens):
        """Return which tokens take part in attention: padding does not. For a mixture of experts all do, since the
        experts that padding chooses are measured like those of other tokens; it follows all that counts, so no
        counted number depends on it.
        """
        return tokens != PADDING if not self.chosen_by else np.ones_like(tokens, bool)

    def losses(self, w, tokens, targets):
        logits = logits_of(self.lifted, Lifted(), theirs_of(w, self.config), tokens, self.is_real(tokens))
        targets = torch.from_numpy(targets).long()
        return [F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum") / (targets >= 0).sum()]


def check_unpatched(program, model, initial):
    """Compare the package's own logits of the first batch, in f32 and with nothing lifted, with those in f64."""
    batch = program.batch(0)
    is_real = program.is_real(batch["tokens"])
    with torch.no_grad():
        own = {name: torch.from_numpy(value) for name, value in initial.items()}
        wide = logits_of(program.lifted, Lifted(), theirs_of(own, program.config), batch["tokens"], is_real)[is_real]
        inputs = {"input_ids": torch.from_numpy(batch["tokens"]).long(), "attention_mask": torch.from_numpy(is_real).long()}
        narrow = model.eval()(**inputs).logits[is_real]
    error = ((narrow - wide).abs().max() / wide.abs().max()).item()
    assert error < 2e-6 and wide.dtype == torch.float64, (program.name, error)
    return wide.numpy(), error


def generated_by(model, batch):
    """Return the 100 tokens that the package's `generate` adds greedily, in f32, to the first four tokens of a window.
    """
    prompt = torch.from_numpy(batch["tokens"][:1, :4]).long()
    with torch.no_grad():
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=GENERATED,
                                eos_token_id=None, pad_token_id=PADDING)
    assert tokens.shape == (1, 4 + GENERATED)
    return tokens[0].numpy().astype(np.int32)


def write_recipe(program, folder):
    at = folder.relative_to(ROOT).as_posix()
    data = {"tokens": [f"{at}/tokens.npy"], "mask": [f"{at}/mask.npy"], "seq": SEQ}
    lines = ["# Written by programs/tests/oracle/generate_transformers.py; its paths are seen from the root of the tree.",
             f"name: {program.name}", f"model: {flow({'from': f'{at}/model'})}", f"data: {flow(data)}", 'mesh: "dp=1"',
             f"train: {flow(TRAIN)}"]
    (folder / "recipe.yaml").write_text("\n".join(lines) + "\n")


def write_model(program, folder):
    model = program.start()
    model.save_pretrained(folder / "model")
    np.save(folder / "tokens.npy", program.tokens)
    np.save(folder / "mask.npy", program.mask)
    return model


def write_case(name):
    program, folder = Transformers(name), FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model = write_model(program, folder)
    initial = own_of(dict(model.named_parameters()), program.config)
    logits, error = check_unpatched(program, model, initial)
    write_recipe(program, folder)
    versions = {"torch": f"{torch.__version__.split('+')[0]}, Transformers {transformers.__version__}"}
    expected = train_case(program, initial) | {"logits": logits, "generated": generated_by(model, program.batch(0))}
    save_file(expected, folder / "expected.safetensors", versions)
    print(f"{name}: loss {expected['loss'][0]:.6f} to {expected['loss'][-1]:.6f}, counts {min(expected['count'])} to "
          f"{max(expected['count'])}; f32 as it is differs by {error:.1e}")


def main():
    prepare()
    transformers.utils.logging.disable_progress_bar()
    for name in CASES:
        write_case(name)


if __name__ == "__main__":
    main()
