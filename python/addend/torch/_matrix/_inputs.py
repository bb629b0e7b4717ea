"""The inputs of a model of Transformers: tokens, and images where the model takes them in one of the usual forms."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch

import addend
from addend.torch._matrix._tokens import Batch, Tokens, token_loss

_ROUNDING = 1e-5  # relative; some models compute in f32
_VOCABULARY = 97  # of a model that takes no tokens
_SIDE = 4  # patches along each side of an image
_MARKS = ("token_type_ids", "mm_token_type_ids")  # inputs that are 1 at the tokens of images
Images = Callable[[int, torch.Generator], Batch]  # (their number, a generator) -> the inputs that hold them


def _first(config: Any, names: Sequence[str], otherwise: int) -> int:
    values = (getattr(config, name, None) for name in names)
    value = next((value for value in values if value), otherwise)
    return int(value[0] if isinstance(value, (list, tuple)) else value)


def _drawn(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _forms(vision: Any, names: Mapping[str, Any]) -> Iterator[Images]:
    """The forms in which a vision model may take images, by the names of its inputs."""
    patch = _first(vision, ("patch_size",), 4)
    channels = _first(vision, ("num_channels", "in_channels", "in_chans"), 3)
    times = _first(vision, ("temporal_patch_size", "patch_temporal"), 1)
    side = _first(vision, ("image_size",), _SIDE * patch)
    merge = _first(vision, ("spatial_merge_size", "merge_size", "pooling_kernel_size"), 1)
    edge = max(_SIDE, 2 * merge)
    patches = edge * edge

    def grid(count: int, generator: torch.Generator) -> Batch:
        shape = torch.tensor([[1, edge, edge]] * count)
        flat = _drawn(count * patches, channels * times * patch * patch, generator=generator)
        return {"pixel_values": flat, "image_grid_thw": shape}

    def grid_of_squares(count: int, generator: torch.Generator) -> Batch:
        made = grid(count, generator)
        return {**made, "pixel_values": made["pixel_values"].view(-1, channels, patch, patch)}

    def grid_of_blocks(count: int, generator: torch.Generator) -> Batch:
        blocks = _drawn(count * patches, merge * patch, merge * patch, channels, generator=generator)
        return {**grid(count, generator), "pixel_values": blocks}

    def placed(count: int, generator: torch.Generator) -> Batch:
        at = torch.stack(torch.meshgrid(torch.arange(edge), torch.arange(edge), indexing="xy"), -1).view(-1, 2)
        flat = _drawn(count, patches, channels * patch * patch, generator=generator)
        return {"pixel_values": flat, "image_position_ids": at.expand(count, -1, -1).clone()}

    def whole(count: int, generator: torch.Generator) -> Batch:
        return {"pixel_values": _drawn(count, channels, side, side, generator=generator)}

    def sized(count: int, generator: torch.Generator) -> Batch:
        return {**whole(count, generator), "image_sizes": torch.tensor([[side, side]] * count)}

    def tiled(count: int, generator: torch.Generator) -> Batch:
        tiles = _drawn(count, 2, channels, side, side, generator=generator)
        return {"pixel_values": tiles, "image_sizes": torch.tensor([[side, side]] * count)}

    def rows(count: int, generator: torch.Generator) -> Batch:
        seen = torch.ones(count, 1, dtype=torch.bool)
        return {"pixel_values": whole(count, generator)["pixel_values"][:, None], "pixel_attention_mask": seen}

    if "image_grid_thw" in names:
        yield from (grid, grid_of_squares, grid_of_blocks)
    if "image_position_ids" in names:
        yield placed
    if "image_sizes" in names:
        yield from (sized, tiled)
    if "pixel_attention_mask" in names:
        yield rows
    if "pixel_values" in names:
        yield whole


def _viewer(model: Any) -> Any:
    """The module of a model that makes tokens of images, or None."""
    return next((module for module in model.modules() if hasattr(module, "get_image_features")), None)


def _places(viewer: Any, images: Images) -> int:
    """The number of tokens that represent one image."""
    count = 2
    with torch.no_grad():
        made = viewer.get_image_features(**images(count, torch.Generator().manual_seed(1)))
    features = getattr(made, "pooler_output", made)
    features = features if isinstance(features, (list, tuple)) else [features]
    return int(sum(one.numel() // one.shape[-1] for one in features)) // count


def _with_images(model: Any, plain: Tokens, images: Images, takes: Mapping[str, Any]) -> Tokens:
    config = model.config
    image = getattr(config, "image_token_id", None) or config.image_token_index

    def more(ids: torch.Tensor, generator: torch.Generator) -> Batch:
        marks = {name: (ids == image).long() for name in _MARKS if name in takes}
        return {**plain.more(ids, generator), **marks, **images(len(ids), generator)}

    start = getattr(config, "vision_start_token_id", None) or 1
    return dataclasses.replace(plain, more=more, places=_places(_viewer(model), images), image=image, start=start)


def _loss(model: Any, tokens: Tokens) -> float:
    """The loss of two rows, one of them padded."""
    with torch.no_grad():
        return float(token_loss(model, tokens.rows(torch.Generator().manual_seed(1), 2, tokens.padding))[0])


def _need_apart(model: Any, tokens: Tokens) -> None:
    """Raises an error if the loss of rows together is not the sum of each row's: ranks that have some rows each would
    then rightly differ from one process that has all."""
    generator = torch.Generator().manual_seed(2)
    rows = [tokens.rows(generator, 2, padding) for padding in (tokens.padding, 0)]
    both = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        together = float(token_loss(model, both)[0])
        apart = sum(float(token_loss(model, row)[0]) for row in rows)
    if abs(together - apart) > _ROUNDING * abs(apart):
        raise addend.InvalidError(
            "a row's loss depends on the other rows of a batch, so a check with other rows on each rank cannot match"
        )


def _seeing(model: Any, plain: Tokens, takes: Mapping[str, Any]) -> tuple[Tokens, str]:
    """`plain` with images, or why it has none although the model takes images, or ""."""
    viewer = _viewer(model)
    if viewer is None:
        return plain, ""
    names = inspect.signature(viewer.get_image_features).parameters
    why: Exception | None = None
    for images in _forms(getattr(model.config, "vision_config", model.config), names):
        try:
            tokens = _with_images(model, plain, images, takes)
            _need_apart(model, tokens)
            return tokens, ""
        except Exception as error:  # this model takes images in another form
            why = why or error
    return plain, f"no images: {why}"


def _draft(config: Any, ids: torch.Tensor, generator: torch.Generator) -> Batch:
    """The inputs of a model that drafts tokens from the hidden states of another: embeddings, and as many states."""
    rows, length = ids.shape
    states = _drawn(rows, length, config.hidden_size * len(config.target_layer_ids), generator=generator)
    noise = _drawn(rows, length, config.hidden_size, generator=generator)
    seen = torch.cat([torch.ones_like(ids), (ids != 0).long()], 1)
    return {"noise_embeds": noise, "context_hidden_states": states, "attention_mask": seen}


def _draws(model: Any, tokens: Tokens) -> bool:
    """Whether a forward of the model draws random numbers."""
    before = torch.get_rng_state()
    with contextlib.suppress(Exception):  # the check says it
        _loss(model, tokens)
    return not torch.equal(before, torch.get_rng_state())


def inputs_of(model: Any, axes: Sequence[str], microbatches: int) -> tuple[Tokens, tuple[str, ...]]:
    """The batches that a model takes, and what is not in them: images that the model takes in no known form, and
    padding with which its loss is no number. Batches are tried on the model, without gradients. A model that draws
    random numbers in training, of which each process has its own, is set to evaluation."""
    takes = inspect.signature(model.forward).parameters

    def other(ids: torch.Tensor, generator: torch.Generator) -> Batch:
        if "noise_embeds" in takes:
            return _draft(model.config, ids, generator)
        return {"decoder_input_ids": ids} if "decoder_input_ids" in takes else {}

    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None) or _VOCABULARY
    plain = Tokens(vocabulary, axes, microbatches, other)
    missing = []
    if model.training and _draws(model, plain):
        model.eval()
        missing.append("random numbers of training: it runs in evaluation")
    tokens, blind = _seeing(model, plain, takes)
    missing += [blind] * bool(blind)
    if blind or not tokens.places:
        _need_apart(model, tokens)
    with contextlib.suppress(Exception):  # the check says it
        if not math.isfinite(_loss(model, tokens)):
            tokens = dataclasses.replace(tokens, padding=0)
            missing.append("no padding: the loss with it is not a number")
    return tokens, tuple(missing)
