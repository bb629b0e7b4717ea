"""Small configurations of Transformers' architectures: every kind of layer and of parameter, a few thousand numbers."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Sequence, Tuple

from addend.torch._matrix._cells import starred

LAYERS = (2, 3, 4, 5, 6, 8, 12)  # numbers of layers that are tried until every kind of layer is there
LARGEST = 3_000_000  # parameters of a small model; more would make a cell take minutes
HEAD = 8  # elements of a head: even, for rotary embeddings


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a layout demands of a small model's sizes."""

    ranks: int = 1  # heads, and columns of linear layers, are cut into so many parts
    experts: int = 1  # experts are cut into so many parts

    @property
    def heads(self) -> int:
        """The number of heads of keys and values; of queries there are twice as many where the full model has more."""
        return max(2, self.ranks)

    @property
    def hidden(self) -> int:
        """The hidden size."""
        return 2 * self.heads * HEAD


Rule = Callable[[Any, Sizes, Mapping[str, Any]], Any]  # (the full value, sizes, all full values) -> the small value


def _heads(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return 1 if value == 1 else 2 * sizes.heads


def _key_heads(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    heads = full.get("num_attention_heads") or full.get("num_heads") or value
    return 1 if value == 1 else 2 * sizes.heads if value == heads else sizes.heads


def _experts(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return value if value <= 1 else 2 * max(2, sizes.experts, sizes.ranks)


def _head_width(value: int, sizes: Sizes, full: Mapping[str, Any]) -> int:
    return value if value == 0 else HEAD


def _columns(odd: int) -> Rule:
    """An odd number of columns for each of the ranks that share them."""
    return lambda value, sizes, full: value if value == 0 else odd * sizes.ranks


def _plain(number: int) -> Rule:
    """A number, but for a value of 0 or less, which switches something off."""
    return lambda value, sizes, full: min(value, number)


# Regular expressions of attributes' names, and what becomes of the value. The first that fits counts; what no
# expression fits stays as it is.
RULES: Tuple[Tuple[str, Rule], ...] = (
    (r"num_layers_per_stack", _plain(2)),
    (r"(n|num)_(group|expert_group|expert_groups)", _plain(2)),
    (r"topk_group|n_limited_groups", _plain(1)),
    (r"(.*_)?num_(key_value|kv)_heads|linear_num_key_heads|multi_query_num_kv_heads|num_kv_heads", _key_heads),
    (r"(.*_)?num_(attention_|sliding_attention_)?heads|n_heads?|.*_n_heads|num_heads|linear_num_value_heads"
     r"|linear_num_heads|num_attention_heads_per_layer", _heads),
    (r"v_head_dim|linear_value_head_dim", _head_width),
    (r"qk_head_dim", lambda value, sizes, full: 2 * HEAD),
    (r"(.*_)?head_dim|.*_head_dim|mamba_d_head|query_pre_attn_scalar|rotary_dim|qk_nope_head_dim|qk_rope_head_dim",
     _head_width),
    (r"hidden_size|d_model|n_embd|(.*_)?embed_dim|embedding_dim|ple_embed_dim|lru_width|embedding_rank",
     lambda value, sizes, full: sizes.hidden),
    (r"hidden_size_per_layer_input", _plain(6)),
    (r"(moe|expert|share|shared)_.*(intermediate_size|ffn_hidden_size)|share_expert_dim|moe_hidden_size"
     r"|shared_experts_intermediate_size|expert_ffn_hidden_size", _columns(7)),
    (r"intermediate_size.*|.*_intermediate_size|ffn_(hidden_size|dim)|n_inner|.*_ffn_dim|mlp_hidden_size",
     _columns(13)),
    (r"(num|n)_(experts|local_experts|routed_experts)|moe_num_experts|zero_expert_num", _experts),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|router_top_k", _plain(2)),
    (r"(.*_)?lora_rank|laurel_rank|loop_gate_rank|gated_norm_rank|hc_lowrank", _plain(10)),
    (r"vocab_size.*|.*_vocab_size|unpadded_vocab_size|ngram_vocab_size_base|codebook_size", _plain(97)),
    (r"max_position_embeddings|n_positions|n_ctx|model_max_length|max_seq_len.*|original_max_position_embeddings",
     _plain(64)),
    (r"sliding_window|sliding_window_size|attention_chunk_size|(.*_)?chunk_size|keep_window_size", _plain(4)),
    (r"index_topk", _plain(4)),
    (r"index_topk_blocks|index_block_size|index_kpool|block_size", _plain(2)),
    (r"mamba_d_state|ssm_state_size|d_state", _plain(6)),
    (r"mamba_n_heads|mamba_num_heads", lambda value, sizes, full: 4 * sizes.heads),
    (r"mamba_d_ssm", lambda value, sizes, full: 2 * sizes.hidden),
    (r"mamba_dt_rank|router_hidden_size|d_rel", _plain(5)),
    (r"block_multiple_of|make_ngram_vocab_size_divisible_by", _plain(1)),
    (r"first_k_dense_replace|num_dense_layers|n_input_layers|n_output_layers|n_recurrent_layers", _plain(1)),
    (r"n_groups|mamba_n_groups", _plain(2)),
    (r"o_groups", _plain(2)),
    (r"num_kv_shared_layers", _plain(1)),
    (r"image_size|crop_size", _plain(8)),
    (r"patch_size", _plain(4)),
)  # fmt: skip


def _token(name: str, value: Any, sizes: Sizes) -> Any:
    """The small model's identifier of a special token: pad 0, bos 1, eos 2, and others behind them."""
    first = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return value if value is None else first.get(name, 3)


_DEPTH = r"num_hidden_layers|n_layers?|num_layers|depth|num_blocks|encoder_layers|decoder_layers|.*_num_layers"


def value_of(name: str, value: Any, sizes: Sizes, layers: int, full: Mapping[str, Any]) -> Any:
    """The small model's value of an attribute."""
    if re.fullmatch(r".*_token_(id|index)|.*_token_index|bo[ai]_token_index|eo[ai]_token_index", name):
        return _token(name, value, sizes)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if re.fullmatch(_DEPTH, name):
        return min(value, layers)
    for pattern, rule in RULES:
        if re.fullmatch(pattern, name):
            return rule(value, sizes, full)
    return value


def _is_config(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def _chosen(lists: Mapping[str, Sequence[Any]], layers: int) -> List[int]:
    """The layers that stand for all: the first ones of each kind, then others, in order."""
    rows = list(zip(*(map(str, values) for values in lists.values())))
    first = [i for i, row in enumerate(rows) if row not in rows[:i]]
    rest = [i for i in range(len(rows)) if i not in first]
    return sorted((first + rest)[:layers])


def smaller(config: Any, sizes: Sizes, layers: int) -> Dict[str, Any]:
    """The arguments that make a small configuration of the same class as `config`."""
    full = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    small: Dict[str, Any] = {}
    depth = next((full[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if isinstance(full.get(n), int)), 0)
    lists = {n: v for n, v in full.items() if isinstance(v, (list, tuple)) and len(v) == depth > 2}
    chosen = _chosen(lists, layers) if lists else []
    for name, value in full.items():
        if _is_config(value):
            small[name] = smaller(value, sizes, layers)
        elif name in lists:
            small[name] = [value_of(name, value[i], sizes, layers, full) for i in chosen]
        else:
            told = value_of(name, value, sizes, layers, full)
            if told != value:
                small[name] = told
    return small


def kinds_of(model: Any) -> FrozenSet[str]:
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
