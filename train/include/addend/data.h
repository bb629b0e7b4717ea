/* Training data: text as bytes or as tokens, and pictures of text lines. The sample at each place of a batch depends
 * only on the place's global index, so every mesh reads the same batch.
 *
 * For authors of programs. Only one thread at a time may use a text, or draw lines. */
#ifndef ADDEND_DATA_H
#define ADDEND_DATA_H
#include "addend/layout.h"
#include "addend/safetensors.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_VOCABULARY_BYTES = 256 };

typedef enum ad_data_part { AD_TRAINING_PART, AD_VALIDATION_PART } ad_data_part; /* the parts of a text */

/* ---- training text: files of bytes ---- */

/* The text of a recipe: the values of its `data` keys. */
typedef struct ad_text_options {
  char **text; /* files and folders; none: training reads `tokens` */
  size_t text_count;
  char **tokens; /* .npy files of token ids; none: training reads `text`, whose tokens are its bytes */
  size_t token_count;
  char **mask; /* .npy files of uint8 or bool, one for each file of tokens (ad_token_options); or none */
  size_t mask_count;
  int64_t seq; /* number of tokens in a sample */
  /* Fractions of a sample's tokens that count: with fraction f the first floor(f * seq + 0.5) tokens of the sample
   * count. Sample i of a step's batch uses number i modulo valid_count, so the sequence restarts with every step. None:
   * all tokens count. */
  double *valid;
  size_t valid_count;
  double validation; /* fraction h: the last floor(h * bytes) bytes of every file are reserved for validation */
} ad_text_options;

/* Checks, without reading the text, whether ad_text_data_open would find enough text. Returns the same errors and
 * messages as ad_text_data_open. */
AD_API AD_CHECKED ad_status ad_text_data_check(const char *const *paths, size_t count, int64_t seq, double validation);
/* Checks that the path names at least one readable file; AD_IO if not. */
AD_API AD_CHECKED ad_status ad_text_path_check(const char *path);

typedef struct ad_text_data ad_text_data;
/* Reads files, and folders recursively in the order of names. Only regular files are read. A symbolic link is followed
 * if `paths` names it, and skipped inside a folder, because its target could otherwise count twice. The files' bytes,
 * one after another in that order, form one text for training; the validation parts form another. AD_IO names a path
 * that is missing, empty or unreadable; AD_INVALID, naming both numbers, if the text is not longer than seq bytes. */
AD_API AD_CHECKED ad_status ad_text_data_open(const char *const *paths, size_t count, int64_t seq, double validation,
                                              ad_text_data **out);
/* Like ad_text_data_open, for plans: no file is read. The sizes, and which tokens count, are known; the tokens are
 * not. */
AD_API AD_CHECKED ad_status ad_text_data_open_unread(const char *const *paths, size_t count, int64_t seq,
                                                     double validation, ad_text_data **out);

/* Files of tokens, as ad_text_data_open_tokens takes them. */
typedef struct ad_token_options {
  size_t size; /* sizeof(ad_token_options) */
  /* [count] .npy files of uint32 or, if the vocabulary has at most 65536 tokens, of uint16; of one dimension, little
   * endian */
  const char *const *tokens;
  /* [count] .npy files of uint8 or bool, each as long as its file of tokens. A token counts as a target if its element
   * of the mask is 1. NULL: all tokens count */
  const char *const *masks;
  size_t count;
  int64_t seq;        /* number of tokens in a sample */
  double validation;  /* fraction h: the last floor(h * tokens) tokens of every file are reserved for validation */
  int64_t vocabulary; /* every token must be below this number */
} ad_token_options;
/* Check files of tokens, or of masks, including that every element is in its range. Each file is read once, starting
 * with file number *at. *at becomes the number of the first wrong file, or `count` if all are right. Progress is logged
 * every five seconds (ad_set_log). AD_IO: a file cannot be read. AD_INVALID names what is wrong and, for an element,
 * its index. */
AD_API AD_CHECKED ad_status ad_token_files_check(const char *const *paths, size_t count, int64_t vocabulary,
                                                 size_t *at);
AD_API AD_CHECKED ad_status ad_token_masks_check(const char *const *paths, size_t count, size_t *at);
/* Maps the files, which must not change while they are in use; reads only their headers. AD_IO and AD_INVALID as in the
 * checks above, except for elements. AD_INVALID also if a mask and its tokens differ in length, or if the training part
 * or the validation part has no whole sample. The options are not kept. */
AD_API AD_CHECKED ad_status ad_text_data_open_tokens(const ad_token_options *options, ad_text_data **out);

/* ---- training text or token ids: opening, checksums, samples ---- */

AD_API void ad_text_data_close(ad_text_data *text);
AD_API int64_t ad_text_data_bytes(const ad_text_data *text);  /* returns the bytes of text or of tokens in all files */
AD_API int64_t ad_text_data_tokens(const ad_text_data *text); /* returns the number of tokens in all files */
/* Returns the xxhash64 over all bytes of all files (for tokens: over all elements) and over the positions at which
 * files end; the fraction for validation does not change it. 0: the text was not read. For tokens the first call reads
 * all of them. */
AD_API uint64_t ad_text_data_checksum(const ad_text_data *text);
/* Returns the same checksum over the masks; 0: there are none. */
AD_API uint64_t ad_text_data_mask_checksum(const ad_text_data *text);
/* Adds to counts[token] how often each token occurs in a part of the text; in files of tokens, in the part's windows
 * (see ad_batch_options). */
AD_API void ad_text_data_count_values(const ad_text_data *text, ad_data_part of, int64_t *counts);

/* How global batches are drawn. A global batch is the samples that all ranks together read in one step.
 *
 * Draws. A draw is a function of (seed, stream, index), each of 64 bits: Philox4x32-10 (Salmon et al. 2011) with the
 * key (seed) and the counter (index, stream), low words first. Its four words make two 64-bit numbers, low words first.
 * Nothing else is random, and there is no state.
 *
 * Bytes. Sample i of step s uses the draw with index s * global_batch + i and the stream XXH64("data") for training or
 * XXH64("data held out") for the validation part, both with hash seed 0. With r the first number of the draw and n the
 * bytes of the part, the sample's tokens are the seq bytes from floor(r * (n - seq) / 2^64) on. The target of a token
 * is the byte after it.
 *
 * Tokens are read without repetition. Window w of a file's part begins at its token w * seq. It has seq tokens and the
 * one after them, which is the last target. No window reaches into another file, nor from the training part into the
 * validation part. The windows of all files, one file after another, are numbered 0 to n - 1. With i = s * global_batch
 * + row, sample i is window P(i mod n), where P is the permutation of epoch i / n: every window occurs once in an
 * epoch, whatever the steps.
 *
 * P is a generalised Feistel network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains",
 * CT-RSA 2002):
 *   k            its key: the first number of the draw (seed, XXH64("tokens"), epoch), for the validation part of the
 *                draw (seed, XXH64("tokens held out"), epoch)
 *   a, b         a is the smallest number whose square is n or more, b = ceil(n / a)
 *   l, r         x = l * b + r
 *   below(m,t,x) floor(m * d / 2^64) with d the first number of the draw (k, t, x)
 *   a round      for j = 0, 2, 4, 6: l becomes (l + below(a, j, r)) mod a,
 *                then r becomes (r + below(b, j + 1, l)) mod b
 * The rounds are repeated until x is below n. */
typedef struct ad_batch_options {
  size_t size; /* sizeof(ad_batch_options) */
  uint64_t seed;
  int64_t global_batch; /* number of samples in a step */
  /* Fractions of a sample's tokens that count: sample i of the batch uses valid[i % valid_count]. NULL: all tokens
   * count. */
  const double *valid;
  size_t valid_count;
  int validation; /* 1: samples come from the validation part */
  /* Above 0: samples come from a fixed set of this many samples, at most ad_text_data_samples of the part, and are not
   * drawn. Sample i of step s is then number s * global_batch + i of the set. The set is the same for every seed, and
   * steps of any size read the same samples in the same order. Sample number j uses valid[j % valid_count]. After its
   * last sample the set begins again; these repeated samples count only if `wraps` is 1. */
  int64_t set;
  int wraps;
  /* The positions of each sample that this rank wants, as spans one after another (ad_layout_spans). NULL: all
   * positions. The target of a span's last position is the byte after that position, as for all others. */
  const ad_span *spans;
  size_t span_count;
} ad_batch_options;
/* Fills rows [first, first + count) of the global batch of step `step`: tokens and targets are i32 [count, wanted
 * positions], and a target of -1 does not count. tokens or targets may be NULL if they are not wanted. *counted is the
 * number of these targets that count. If the text was not read only *counted is filled. */
AD_API AD_CHECKED ad_status ad_text_data_rows(const ad_text_data *text, const ad_batch_options *options, int64_t step,
                                              int64_t first, int64_t count, int32_t *tokens, int32_t *targets,
                                              int64_t *counted);
/* Returns w, the number of samples of seq tokens, each with the byte after it, that fit one after another into a part
 * from its first byte on (for files of tokens: into each file). Number i of a set (ad_batch_options) is window (i * p)
 * mod w, where p is the first number from 0.618 w on that has no common divisor with w. So a set has up to w samples,
 * none twice, and already its first few are spread evenly over the part. */
AD_API int64_t ad_text_data_samples(const ad_text_data *text, ad_data_part of);

/* ---- pictures of a text's lines ---- */

/* Which lines are drawn, and how: the values of the `data` keys of an `ocr` recipe. */
typedef struct ad_line_options {
  char **text; /* files and folders, as in ad_text_options */
  size_t text_count;
  double validation; /* fraction of the text that is reserved for validation, as in ad_text_options */
  char **fonts;      /* font files; each line is drawn in one of these fonts */
  size_t font_count;
  char *validation_font; /* file of one more font, used only for lines of the validation part; NULL: none */
  /* most characters of a line; a line has at least half as many, unless they do not fit into the picture */
  int64_t chars;
  int64_t height, width; /* size of a picture, in pixels */
  double *sizes;         /* [least, most] font size: pixels of the em (the height of the font) */
  size_t size_count;
  /* [least, most] ems by which strokes are made wider than in the font; below 0: narrower. -0.03 to 0.05 is readable;
   * at 0.1 the holes in a bold font's letters close. None: strokes as in the font. */
  double *weights;
  size_t weight_count;
  double rotation; /* largest rotation in degrees, in either direction; smaller if the line would leave the picture */
  double noise;    /* standard deviation of the noise added to every pixel */
  /* 1: the pictures are empty but the characters are the same, to measure what a model predicts without reading */
  int blank;
} ad_line_options;
typedef struct ad_line_data ad_line_data;

/* Checks whether ad_line_data_open would accept this font with these options. Returns the same errors and messages as
 * ad_line_data_open. */
AD_API AD_CHECKED ad_status ad_line_font_check(const ad_line_options *options, const char *path);
/* Reads the text as ad_text_data_open does, and every font once. The options are not kept. AD_IO names a file that
 * cannot be read, or that is not a font with all printable ASCII characters. AD_INVALID names an option that is out of
 * its range, a font whose largest characters leave the picture, a text that is too short, or a validation font that is
 * also one of the others. */
AD_API AD_CHECKED ad_status ad_line_data_open(const ad_line_options *options, ad_line_data **out);
AD_API void ad_line_data_close(ad_line_data *lines);
AD_API int64_t ad_line_data_bytes(const ad_line_data *lines); /* returns the bytes of the text's files */
/* Return the xxhash64 of the text, as ad_text_data_checksum does, and that of all fonts in their order, the validation
 * font last. */
AD_API uint64_t ad_line_data_checksum(const ad_line_data *lines);
AD_API uint64_t ad_line_data_font_checksum(const ad_line_data *lines);
typedef struct ad_line {
  int64_t count; /* number of characters */
  size_t font;   /* index of the font in which the line is drawn; options.font_count: the validation font */
} ad_line;
/* Draws line number `index` of the training part or of the validation part. The result depends only on (seed, of,
 * index).
 *   characters  [chars]: printable ASCII without a space at either end; every run of other bytes becomes one space;
 *               zeros after the last character
 *   picture     [height, width]: 0 is paper, 1 is ink
 * The line is cut off where the picture ends. Lines of the two parts never overlap in the text; if the text repeats
 * itself, lines of both parts may still say the same.
 *
 * Each line has its own seed: the draw (seed, stream, index) with the stream XXH64("line"), for the validation part
 * XXH64("line held out"). Everything else is drawn with that seed. Only one thread at a time may draw. Lines of an
 * empty validation part are empty. AD_INVALID: the font has an outline that cannot be drawn. */
AD_API AD_CHECKED ad_status ad_line_data_draw(ad_line_data *lines, uint64_t seed, ad_data_part of, uint64_t index,
                                              ad_line *out, uint8_t *characters, float *picture);

/* Weights in files: one safetensors file, or several shards joined by an index, as Hugging Face writes them
 * (model.safetensors.index.json). ad_params_check_weights checks whether they are the weights of a model. */
typedef struct ad_weights ad_weights;
/* Opens weights; a path that ends in ".json" is an index. Has the errors of ad_safetensors_open. AD_INVALID also names
 * what is wrong in an index: wrong entries, tensors missing from a file, and tensors that it does not list. Only
 * headers are read: ad_safetensors_check_values checks the values of each file. *out is unchanged on failure. */
AD_API AD_CHECKED ad_status ad_weights_open(const char *path, ad_weights **out);
AD_API void ad_weights_close(ad_weights *weights); /* NULL allowed */
/* Returns file i, in the order of the files' names; valid until close. No two files have a tensor of the same name.
 * NULL: there are fewer files. */
AD_API const ad_safetensors *ad_weights_file(const ad_weights *weights, size_t i);
/* Returns the tensor with this name, from any of the files; NULL: no file has it. */
AD_API const ad_safetensor *ad_weights_find(const ad_weights *weights, const char *name);

#if defined(__cplusplus)
}
#endif
#endif
