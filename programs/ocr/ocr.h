/* The options and formulas of the program `ocr`. */
#ifndef OCR_OCR_H
#define OCR_OCR_H
#include "addend/data.h"
#include "decoder/options.h"

/* Reads lines of text from pictures: an encoder and a decoder joined by a bridge.
 *
 *   A picture [height, width] is divided into n = width / patch patches, from left to right, of height * patch
 *   pixels each, row by row.
 *   x = patches patch.weight                                        [batch, n, encoder_d_model]
 *   in each block i:  x = x + attention(norm(x; blocks.i.norm.attn))   each patch sees all
 *                     x = x + mlp(norm(x; blocks.i.norm.mlp))
 *   images = norm(x; final.norm.weight) projection.weight              [batch, n, d_model]
 *
 * with the formulas of decoder/options.h, every key head its own, without biases and head norms, the norms with
 * 1e-5, a head d_model / heads wide, and the decoder's rotary_base, not scaled; the width inside the encoder's MLPs is
 * 8/3 encoder_d_model rounded up to a multiple of 16, whatever d_hidden is. The decoder is that of gpt with an MLP of
 * d_hidden. Its sequence is n tokens whose embeddings `images` replace (token 0), the line's characters, and newlines;
 * seq = n + chars. Position n - 1 predicts the first character, each character the next, the last one a newline; what
 * follows does not count. Line i of step s is number s * global_batch + i of those that are drawn (data.h); a byte is
 * its own token, a newline 10.
 *
 * Names are module.name: encoder.patch.weight and model.embedding.weight. encoder.patch.weight and
 * encoder.projection.weight are normal with deviation 1 / sqrt(rows), I on tp, and decay. */
typedef struct ad_ocr_options {
  ad_decoder_options decoder; /* data.seq is computed from other options; other members of `data` are not used */
  int64_t d_hidden;           /* width inside the decoder's MLP; 0: as in gpt */
  int64_t encoder_layers, encoder_d_model, encoder_heads;
  int64_t patch; /* width of a patch in pixels, a divisor of the picture's width */
  int ragged;    /* 1: the bridge accepts parts of the batch that overlap in any way */
  int64_t read;  /* validation lines to read after training */
  ad_line_options lines;
} ad_ocr_options;

/* The program kind "ocr": modules "encoder" and "model" with one phase each. The loss is "cross_entropy" divided by the
 * count "characters", which includes newlines. */
const ad_program_kind *ad_ocr(void);

#endif
