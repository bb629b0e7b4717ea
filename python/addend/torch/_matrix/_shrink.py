"""Small configurations of Transformers' architectures: every kind of layer and of parameter, a few thousand numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from addend.torch._matrix._cells import starred

ROWS = 97  # of a vocabulary: few ranks divide them
LAYERS = (2, 3, 4, 5, 6, 8, 12)  # numbers of layers that are tried until every kind of layer is there


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a layout and an architecture demand of a small model's sizes."""

    ranks: int = 1  # heads, and columns of linear layers, are sharded into so many parts
    experts: int = 1  # experts are sharded into so many parts
    head: int = 8  # elements of a head: even, for rotary embeddings
    identical: int = 1  # a vocabulary leaves the remainder by this that the full one leaves
    even: int = 1  # a vocabulary divides by this

    @property
    def heads(self) -> int:
        """The number of heads of keys and values; of queries there are twice as many where the full model has more."""
        return max(2, self.ranks)

    @property
    def hidden(self) -> int:
        """The hidden size."""
        return 2 * self.heads * self.head


Rule = Callable[[int, Sizes, Mapping[str, Any]], Any]  # (the full value, sizes, all full values) -> the small value


def _heads(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return 1 if value == 1 else 2 * sizes.heads


def _key_heads(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    heads = full.get("num_attention_heads") or full.get("num_heads") or value
    return sizes.ranks if value == 1 else 2 * sizes.heads if value == heads else sizes.heads


def _mamba_heads(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return int(full.get("mamba_expand") or full.get("expand") or 2) * sizes.hidden // sizes.head


def _experts(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return value and 2 * max(2, sizes.experts, sizes.ranks)


def _head_width(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return value and sizes.head


def _hidden(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return value and sizes.hidden


def _columns(odd: int) -> Rule:
    """Twice an odd number of columns for each of the ranks that share them: no full model has an odd number, and
    `fully_shard` over two ranks cuts it in halves."""
    return lambda value, sizes, full: value and 2 * odd * sizes.ranks


def _vocabulary(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    small = min(value, ROWS + (value - ROWS) % sizes.identical)
    return small - small % sizes.even or small


def _plain(number: int) -> Rule:
    """A number, but for a value of 0 or less, which switches something off."""
    return lambda value, sizes, full: min(value, number)


_VOCABULARY = r"vocab_size.*|.*_vocab_size|unpadded_vocab_size|ngram_vocab_size_base"

# Regular expressions of attributes' names, and what becomes of the value. The first that fits counts; what no
# expression fits stays as it is.
RULES: tuple[tuple[str, Rule], ...] = (
    (r"num_layers_per_stack", _plain(2)),
    (r"(n|num)_(group|expert_group|expert_groups)", _plain(2)),
    (r"topk_group|n_limited_groups", _plain(1)),
    (r"mamba_n_heads|mamba_num_heads", _mamba_heads),
    (r"mamba_d_ssm", lambda value, sizes, full: 2 * sizes.hidden),
    (r"indexer_kv_heads", _plain(2)),  # no layout shares them
    (r"(.*_)?num_(key_value|kv)_heads|linear_num_key_heads|multi_query_num_kv_heads|.*_kv_heads", _key_heads),
    (r"(.*_)?num_(attention_|sliding_attention_)?heads|n_heads?|.*_n_heads|num_heads|linear_num_value_heads"
     r"|linear_num_heads|num_attention_heads_per_layer|(.*_)?attention_heads", _heads),
    (r"qk_head_dim", lambda value, sizes, full: 2 * sizes.head),
    (r"(.*_)?head_dim|mamba_d_head|query_pre_attn_scalar|rotary_dim", _head_width),
    (r"merged_hidden_size", lambda value, sizes, full: 4 * sizes.hidden),
    (r"hidden_sizes?|d_model|n_embd|(.*_)?embed_dim|embedding_(dim|size)|ple_embed_dim|lru_width|embedding_rank"
     r"|(.*_)?(out|text|encoder|decoder|cross_attention|thinker|downsample|projector)_hidden_size"
     r"|(.*_)?(in|out|input|output)_dim|projection_(hidden_)?dim|decoder_dim|adapter_input_size"
     r"|output_channels|codebook_dim|downsample_channels", _hidden),
    (r"hidden_size_per_layer_input", _plain(6)),
    (r"(moe|expert|share|shared)_.*(intermediate_size|ffn_hidden_size)|share_expert_dim|moe_hidden_size"
     r"|shared_experts_intermediate_size|expert_ffn_hidden_size", _columns(5)),
    (r"intermediate_size.*|.*_intermediate_size|ffn_(hidden_size|dim)|n_inner|.*_ffn_dim|mlp_hidden_size|mlp_dim",
     _columns(7)),
    (r"(num|n)_(experts|local_experts|routed_experts)|moe_num_experts|zero_expert_num", _experts),
    (r"moe_topk", lambda value, sizes, full: 2),
    (r"num_experts_per_tok(en)?|moe_k|top_k_experts|router_top_k", _plain(2)),
    (r"(.*_)?lora_rank|laurel_rank|loop_gate_rank|gated_norm_rank|hc_lowrank", _plain(10)),
    (_VOCABULARY, _vocabulary),
    (r"codebook_size", _plain(16)),
    (r"image_token_offset", _plain(40)),
    (r"audio_token_offset", _plain(56)),
    (r"(mm_tokens|num_image_tokens)_per_image|image_seq_length|vision_soft_tokens_per_image", _plain(4)),
    (r"(max|min)_image_size", _plain(64)),
    (r"max_position_embeddings|n_positions|n_ctx|model_max_length|max_seq_len.*|original_max_position_embeddings"
     r"|position_embedding_size|rel_extent", _plain(64)),
    (r"sliding_window|sliding_window_size|attention_chunk_size|(.*_)?chunk_size|keep_window_size", _plain(4)),
    (r"index_topk|indexer_budget", _plain(4)),
    (r"index_topk_blocks|index_block_size|index_kpool|block_size|indexer_compress_ratio", _plain(2)),
    (r"mamba_d_state|ssm_state_size|d_state", _plain(6)),
    (r"mamba_dt_rank|router_hidden_size|d_rel", _plain(5)),
    (r"block_multiple_of|make_ngram_vocab_size_divisible_by", _plain(1)),
    (r"first_k_dense_replace|num_dense_layers|n_input_layers|n_output_layers|n_recurrent_layers", _plain(1)),
    (r"(base|latent)_channels|.*_out_channels?|decoder_attention_num_groups", _plain(32)),
    (r"num_filters", _plain(4)),  # each further block doubles them
    (r"n_groups|mamba_n_groups", _plain(2)),
    (r"o_groups", _plain(2)),
    (r"num_kv_shared_layers", _plain(1)),
    (r"image_size|crop_size|num_position_embeddings|num_patches", _plain(16)),
    (r"patch_size|pos_emb_(height|width)|posemb_grid_size", _plain(4)),
)  # fmt: skip


# The small model's identifiers of special tokens: those of which a batch consists begin after them.
TOKENS = {"pad": 0, "bos": 1, "eos": 2, "image": 3, "video": 4, "audio": 5, "vision_start": 6, "vision_end": 7}
_OTHER = 8
FIRST = 9
_TOKEN = r"(.*_token_(?:id|index)|bo[ai]_token_index|eo[ai]_token_index)"
_DEPTH = r"num_hidden_layers|n_layers?|num_layers|depth|num_blocks|encoder_layers|decoder_layers|.*_num_layers"
_RANDOM = (
    r".*dropout.*|.*_pdrop|.*drop_(rate|path.*|prob.*)|.*layer_?drop.*|.*jitter_noise"  # each process draws its own
)
_PLACES = r".*(layers|_idxs|_indices|_indexes|_layer_ids)"  # names of lists of the numbers of layers
_MROPE = "mrope_section"

# What the layers of an architecture need although its configuration leaves it out, in terms of other attributes.
NEEDED: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("head_dim", lambda full: full["hidden_size"] // full["num_attention_heads"]),
    ("num_key_value_heads", lambda full: full["num_attention_heads"]),
    ("num_experts", lambda full: 64 if "top_k_experts" in full else None),
    ("top_k_experts", lambda full: 2),
    ("moe_intermediate_size", lambda full: full["intermediate_size"]),
    ("n_routed_experts", lambda full: 64),
    ("n_shared_experts", lambda full: 1),
    ("mlp_layer_types", lambda full: ["dense", *["sparse"] * (full["num_hidden_layers"] - 1)]),
    ("deepstack_layer_map", lambda full: [[-2, 0], [-1, 1]]),
    ("downsample_rate", lambda full: "1/2"),
    ("sliding_window", lambda full: 64 if "num_sliding_attention_heads" in full else None),
    ("vocabulary_map", lambda full: {"<image>": TOKENS["image"], "<|extra_200|>": _OTHER}),
    ("num_experts_per_tok", lambda full: 2),
    ("indexer_n_heads", lambda full: full["num_attention_heads"]),
    ("indexer_kv_heads", lambda full: 1),
    ("indexer_head_dim", lambda full: full["head_dim"]),
    ("indexer_budget", lambda full: 64),
    ("indexer_compress_ratio", lambda full: 4),
)


def parts_of(config: Any) -> Iterator[Any]:
    """A configuration and all that it contains, these first."""
    for value in list(vars(config).values()):
        if _is_config(value):
            yield from parts_of(value)
    yield config


def vocabularies(config: Any) -> list[int]:
    """The numbers of rows of a configuration's vocabularies, in order."""
    found = {
        value
        for part in parts_of(config)
        for name, value in vars(part).items()
        if re.fullmatch(_VOCABULARY, name) and type(value) is int and value > 0
    }
    return sorted(found)


def complete(config: Any, is_default: bool) -> None:
    """Adds to a configuration what its layers need and it leaves out. `is_default`: it is the architecture's default;
    else a user's, in which a feature that is off stays off."""
    for part in parts_of(config):
        full = vars(part)
        if (full.get("image_token_id") or full.get("image_token_index")) and not hasattr(part, "vision_start_token_id"):
            part.vision_start_token_id = TOKENS["vision_start"]
        if not is_default:
            continue
        for name, made in NEEDED:
            if name in full and full[name] is None:
                setattr(part, name, made(full))
        for name, kind in (getattr(part, "sub_configs", None) or {}).items():
            if full.get(name, 0) is None and getattr(kind, "model_type", None) and name in _TOWERS:
                setattr(part, name, kind())
        if full.get("enable_moe_block") is False:
            part.enable_moe_block = True
        if full.get("layer_types", 0) is None and "conv_L_cache" in full:
            part.layer_types = ["full_attention" if i % 4 == 2 else "conv" for i in range(part.num_hidden_layers)]
        if full.get("rope_parameters", 0) == {} and full.get("layer_types"):
            part.rope_parameters = {kind: dict(_ROPE) for kind in part.layer_types}


_TOWERS = ("vision_config",)  # parts that an architecture has although its configuration leaves them out
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def value_of(name: str, value: Any, sizes: Sizes, layers: int, full: Mapping[str, Any]) -> Any:
    """The small model's value of an attribute."""
    if re.fullmatch(_TOKEN, name):
        return value if value is None else TOKENS.get(name.split("_token_")[0], _OTHER)
    if name == "use_cache":
        return False
    if re.fullmatch(_RANDOM, name) and type(value) in (int, float):
        return 0.0
    if isinstance(value, dict):
        return _rope(value, sizes, layers, full)
    if isinstance(value, (list, tuple)) and all(type(one) is int for one in value):
        return [value_of(name, one, sizes, layers, full) for one in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if value <= 0:  # it switches something off
        return value
    if re.fullmatch(_DEPTH, name):
        return min(value, layers)
    for pattern, rule in RULES:
        if re.fullmatch(pattern, name):
            return rule(value, sizes, full)
    return value


def _rope(value: Mapping[Any, Any], sizes: Sizes, layers: int, full: Mapping[str, Any]) -> Any:
    """The parameters of rotary embeddings, or any other dictionary: the parts of the head that times, rows and columns
    rotate stay in proportion."""
    if value and all(
        type(one) is int for one in (*value, *value.values())
    ):  # numbers of patches, and of the tokens that represent them
        return {16: 4}
    small = {name: value_of(str(name), one, sizes, layers, full) for name, one in value.items()}
    if isinstance(value.get(_MROPE), (list, tuple)):
        small[_MROPE] = _shared(value[_MROPE], int(sizes.head * value.get("partial_rotary_factor", 1.0)) // 2)
    return small


def _shared(parts: Sequence[int], total: int) -> list[int]:
    """`total` cut into as many parts, each at least 1, in about the same proportion."""
    small = [max(1, part * total // sum(parts)) for part in parts]
    small[-1] += total - sum(small)
    return small


def _is_config(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def _chosen(rows: Sequence[Any], layers: int) -> list[int]:
    """The layers that represent all: the first ones of each kind, then others, in order."""
    first = [i for i, row in enumerate(rows) if row not in rows[:i]]
    rest = [i for i in range(len(rows)) if i not in first]
    return sorted((first + rest)[:layers])


def _listed(full: Mapping[str, Any], sizes: Sizes, layers: int) -> dict[str, Any]:
    """The small values of lists that have an element for each layer, or that have layers' numbers as elements."""
    depths = [full[name] for name in full if re.fullmatch(_DEPTH, name) and isinstance(full[name], int)]
    depth = max(depths, default=0)
    lists = {name: list(value) for name, value in full.items() if isinstance(value, (list, tuple)) and value}
    each = {name: value for name, value in lists.items() if len(value) == depth > 2}
    places = {
        name: value
        for name, value in lists.items()
        if name not in each and re.fullmatch(_PLACES, name) and all(type(i) is int and 0 <= i < depth for i in value)
    }
    rows = [(*(str(v[i]) for v in each.values()), *(i in v for v in places.values())) for i in range(depth)]
    chosen = _chosen(rows, layers) if each or places else []
    small: dict[str, Any] = {
        name: [value_of(name, value[i], sizes, layers, full) for i in chosen] for name, value in each.items()
    }
    small.update({name: [at for at, i in enumerate(chosen) if i in value] for name, value in places.items()})
    return small


def smaller(config: Any, sizes: Sizes, layers: int) -> Any:
    """A small configuration of the same class as `config`."""
    full = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    usual = vars(type(config)())
    names = {getattr(config, "attribute_map", {}).get(field.name, field.name) for field in dataclasses.fields(config)}
    full = {name: value for name, value in full.items() if name in {*names, "vision_start_token_id"}}  # others follow
    small = _listed(full, sizes, layers)
    for name, value in full.items():
        if _is_config(value):
            small[name] = smaller(value, sizes, layers)
        elif name not in small:
            reported = value_of(name, value, sizes, layers, full)
            if reported != (list(value) if isinstance(value, tuple) else value) or value != usual.get(name):
                small[name] = reported
    return type(config)(**small)


def sections_of(model: Any) -> None:
    """Writes into a model's configuration how its rotary embeddings are divided where only the modules say it, or, if
    these leave it open, that they are divided in four."""
    for module in model.modules():
        sections = getattr(module, _MROPE, ())
        rope: Any = getattr(getattr(module, "config", None), "rope_parameters", None)
        for kind, section in sections.items() if isinstance(sections, dict) else [("", sections)]:
            if rope and (section or section is None):
                (rope[kind] if kind else rope).setdefault(_MROPE, list(section or [1, 1, 1, 1]))


def head_of(config: Any) -> int:
    """The elements of a small model's head: more where a part of it is rotated, or several parts are."""
    text = str(config.to_dict())
    partial = [float(part) for part in re.findall(r"partial_rotary_factor': ([0-9.]+)", text)]
    return 16 if _MROPE in text or min(partial, default=1.0) < 0.5 else 8


def kinds_of(model: Any) -> frozenset[str]:
    """The kinds of modules and parameters of a model, with layers' numbers starred: what a small one must have too."""
    found = set()
    for path, module in model.named_modules():
        star = starred(path)
        kind = next(
            (str(v) for a in ("layer_type", "attention_type") if isinstance(v := getattr(module, a, None), str)), ""
        )
        found.add(f"{star}: {type(module).__name__} {kind}".rstrip())
        found.update(f"{star}.{name}" for name, _ in module.named_parameters(recurse=False))
    return frozenset(found)
