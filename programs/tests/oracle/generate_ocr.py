"""Make the fixtures ocr-* anew: an encoder of pictures and a decoder whose first tokens are the pictures, in the way
in which generate.py makes those of gpt.

This program is written from the documents alone: programs/ocr/ocr.h (ad_ocr_options: patches, sequence,
targets, names, the encoder's widths, which line is where), data.h (ad_line_options, ad_line_data_draw), and what
generate.py names. The drawing of lines is not compared: addend's library, which is the argument, draws them for both.
"""
import ctypes
import os
import sys

import numpy as np
import torch

from draws import xxh64
from generate import ROOT, STEPS, TEXT, Gpt, blocks_of, cross_entropy_of, embedding_of, hidden_of, initial_weights, mlp, \
    mlp_shapes, prepare, product, section, shapes_of, write_case

FONTS = "/usr/share/fonts/truetype/dejavu"
NEWLINE = 10

CASES = {
    # Every key that has a default keeps it.
    "ocr-plain": {
        "model": {"kind": "ocr", "encoder_layers": 1, "encoder_d_model": 8, "encoder_heads": 4, "patch": 4, "layers": 1,
                  "d_model": 8, "heads": 2},
        "data": {"text": [f"{TEXT}/first.txt"], "fonts": [f"{FONTS}/DejaVuSans.ttf"], "chars": 7, "height": 12, "width": 20,
                 "sizes": [6, 8]},
        "train": {"global_batch": 4, "steps": STEPS, "lr": 1e-2},
    },
    # Encoder and decoder have different widths, microbatches count different numbers of tokens, gradients are clipped.
    "ocr-everything": {
        "model": {"kind": "ocr", "encoder_layers": 2, "encoder_d_model": 16, "encoder_heads": 4, "patch": 3, "layers": 2,
                  "d_model": 12, "heads": 2, "kv_heads": 1, "d_hidden": 17, "tied": False, "bias": True, "qk_norm": True,
                  "rotary_base": 50},
        "data": {"text": [TEXT], "validation": 0.2, "fonts": [f"{FONTS}/DejaVuSans.ttf", f"{FONTS}/DejaVuSansMono.ttf"],
                 "validation_font": f"{FONTS}/DejaVuSans-Bold.ttf", "chars": 5, "height": 12, "width": 21, "sizes": [6, 8],
                 "weights": [-0.02, 0.02], "rotation": 2, "noise": 0.05},
        "train": {"global_batch": 8, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "warmup": 3, "clip": 0.5,
                  "weight_decay": 0.1, "seed": 61},
    },
    # Microbatches of two and three lines, which few meshes divide.
    "ocr-ragged": {
        "model": {"kind": "ocr", "encoder_layers": 1, "encoder_d_model": 12, "encoder_heads": 2, "patch": 4, "layers": 1,
                  "d_model": 8, "heads": 4, "ragged": True},
        "data": {"text": [TEXT], "fonts": [f"{FONTS}/DejaVuSans.ttf"], "chars": 8, "height": 12, "width": 16, "sizes": [6, 8]},
        "train": {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "weight_decay": 0.1, "seed": 52},
    },
}


# ---- lines, drawn by addend: train/include/addend/data.h ----

class LineOptions(ctypes.Structure):
    _fields_ = [("text", ctypes.POINTER(ctypes.c_char_p)), ("text_count", ctypes.c_size_t), ("validation", ctypes.c_double),
                ("fonts", ctypes.POINTER(ctypes.c_char_p)), ("font_count", ctypes.c_size_t),
                ("validation_font", ctypes.c_char_p), ("chars", ctypes.c_int64), ("height", ctypes.c_int64),
                ("width", ctypes.c_int64), ("sizes", ctypes.POINTER(ctypes.c_double)), ("size_count", ctypes.c_size_t),
                ("weights", ctypes.POINTER(ctypes.c_double)), ("weight_count", ctypes.c_size_t),
                ("rotation", ctypes.c_double), ("noise", ctypes.c_double), ("blank", ctypes.c_int)]


class Line(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("font", ctypes.c_size_t)]


def texts(values):
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


class Lines:
    def __init__(self, library, data):
        self.library, self.data, self.handle = library, data, ctypes.c_void_p()
        sizes, weights = ((ctypes.c_double * len(each))(*each) for each in (data["sizes"], data.get("weights", [])))
        font = data["validation_font"].encode() if "validation_font" in data else None
        options = LineOptions(texts(data["text"]), len(data["text"]), data["validation"], texts(data["fonts"]),
                              len(data["fonts"]), font, data["chars"], data["height"], data["width"], sizes, len(sizes),
                              weights, len(weights), data.get("rotation", 0), data.get("noise", 0), 0)
        self.check(library.ad_line_data_open(ctypes.byref(options), ctypes.byref(self.handle)))

    def check(self, status):
        assert status == 0, ctypes.string_at(self.library.ad_last_error()).decode()

    def draw(self, seed, validation, index):
        """Return a line's characters, and its picture [height, width]."""
        line = Line()
        characters = np.zeros(self.data["chars"], np.uint8)
        picture = np.zeros((self.data["height"], self.data["width"]), np.float32)
        self.check(self.library.ad_line_data_draw(self.handle, ctypes.c_uint64(seed), validation, ctypes.c_uint64(index),
                                                  ctypes.byref(line), characters.ctypes.data_as(ctypes.c_void_p),
                                                  picture.ctypes.data_as(ctypes.c_void_p)))
        return characters[:line.count], picture


# ---- the program ----

class Ocr(Gpt):
    mesh = '{encoder: "dp=1", model: "dp=1"}'

    def __init__(self, recipe, library):
        self.model, self.data, self.train = (section(recipe, name) for name in ("model", "data", "train"))
        self.encoder = self.model | {"layers": self.model["encoder_layers"], "d_model": self.model["encoder_d_model"],
                                     "heads": self.model["encoder_heads"], "kv_heads": 0, "d_hidden": 0, "bias": False,
                                     "qk_norm": False}
        self.patches = self.data["width"] // self.model["patch"]
        self.lines = Lines(library, self.data)

    def encoder_shapes(self):
        """Return the encoder's shapes: those of a decoder with other matrices at its ends."""
        d, model = self.encoder["d_model"], self.encoder | {"tied": True}
        shapes = {"patch.weight": (self.data["height"] * self.model["patch"], d)}
        shapes |= shapes_of(model, mlp_shapes("mlp", d, hidden_of(self.encoder)))
        del shapes["embedding.weight"]
        return shapes | {"projection.weight": (d, self.model["d_model"])}

    def initial(self):
        seed = self.train["seed"]
        encoder = initial_weights(self.encoder_shapes(), seed + 1)
        return {f"encoder.{name}": value for name, value in encoder.items()} | {
            f"model.{name}": value for name, value in super().initial().items()}

    def batch(self, step, validation=False):
        """Return a batch: a picture takes the first positions, as token 0; the last of them predicts the first
        character.
        """
        lines, first = self.train["global_batch"], self.patches
        tokens = np.full((lines, first + self.data["chars"]), NEWLINE, np.int32)
        targets, pictures = np.full_like(tokens, -1), []
        for i in range(lines):
            characters, picture = self.lines.draw(self.train["seed"], validation, step * lines + i)
            end = first + len(characters)
            tokens[i, :first], tokens[i, first:end] = 0, characters
            targets[i, first - 1:end - 1], targets[i, end - 1] = characters, NEWLINE
            pictures.append(picture)
        return {"tokens": tokens, "targets": targets, "pictures": np.stack(pictures)}

    def kept(self, batch):
        """Return a checksum in place of each picture: the test draws it again and must get the same bytes."""
        return batch | {"pictures": np.array([xxh64(picture.tobytes()) for picture in batch["pictures"]], np.uint64).view(np.int64)}

    def images(self, w, pictures):
        """Cut pictures into patches: a patch is all rows of some columns, row by row."""
        height, patch = self.data["height"], self.model["patch"]
        x = torch.from_numpy(pictures).double().unflatten(-1, (self.patches, patch)).permute(0, 2, 1, 3)

        def branch(x, i):
            return mlp(x, w, f"blocks.{i}.mlp")
        x = product(x.reshape(-1, self.patches, height * patch), w, "patch.weight")
        return product(blocks_of(self.encoder, w, x, branch, sees_all=True), w, "projection.weight")

    def losses(self, w, tokens, targets, pictures):
        encoder, model = ({name.removeprefix(module): p for name, p in w.items() if name.startswith(module)}
                          for module in ("encoder.", "model."))

        def branch(x, i):
            return mlp(x, model, f"blocks.{i}.mlp")
        x = torch.cat((self.images(encoder, pictures), embedding_of(model, tokens)[:, self.patches:]), 1)
        return [cross_entropy_of(self.model, model, x, targets, branch) / (targets >= 0).sum()]


def main():
    prepare()
    library = ctypes.CDLL(os.path.abspath(sys.argv[1]))
    library.ad_last_error.restype = ctypes.c_void_p
    os.chdir(ROOT)
    for name, recipe in CASES.items():
        write_case(name, recipe, Ocr(recipe, library))


if __name__ == "__main__":
    main()
