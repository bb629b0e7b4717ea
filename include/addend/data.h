/* Training data: text as bytes or as tokens, and pictures of its lines. Which sample stands where depends on the global
 * index alone, so every topology reads the same batch. */
#ifndef ADDEND_DATA_H
#define ADDEND_DATA_H
#include "addend/layout.h"
#include "addend/safetensors.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_VOCABULARY_BYTES = 256 };

typedef enum ad_data_part { AD_TRAINING_PART, AD_HELD_OUT_PART } ad_data_part; /* of a text */

/* ---- a text ---- */

/* The text of a recipe: its `data` keys. */
typedef struct ad_text_options {
  char **text; /* files and folders; none: it is trained on tokens */
  size_t text_count;
  char **tokens; /* .npy files of token ids; none: it is trained on text, whose tokens are its bytes */
  size_t token_count;
  char **mask; /* .npy files of uint8 beside them, one for each, or none */
  size_t mask_count;
  int64_t seq;   /* tokens of a sample */
  double *valid; /* fraction f of each sample's tokens that count, the first floor(f * seq + 0.5); cyclic by the
                    sample's index in the step's batch, so that it begins anew with every step; none: all count */
  size_t valid_count;
  double held_out; /* fraction h at the end of every file that is kept for validation: its last floor(h * bytes) */
} ad_text_options;

/* Whether ad_text_data_open would find enough text, without reading it: its errors, and its message. */
AD_API AD_CHECKED ad_status ad_text_data_check(const char *const *paths, size_t count, int64_t seq, double held_out);
/* Whether one path names at least one readable file. AD_IO otherwise. */
AD_API AD_CHECKED ad_status ad_text_path_check(const char *path);

typedef struct ad_text_data ad_text_data;
/* Reads files, and folders recursively in name order; regular files only; a symbolic link is followed where it is named
 * itself and passed over inside a folder (its target would count twice). AD_IO names the path that is missing, empty or
 * unreadable; AD_INVALID if the text is not longer than seq bytes, naming both numbers. What is
 * trained on is one text, the files' bytes one after another in that order; so is what is held out. */
AD_API AD_CHECKED ad_status ad_text_data_open(const char *const *paths, size_t count, int64_t seq, double held_out,
                                              ad_text_data **out);
/* The same without reading any file: the sizes are known, and which tokens count, but not the tokens. For plans. */
AD_API AD_CHECKED ad_status ad_text_data_open_unread(const char *const *paths, size_t count, int64_t seq,
                                                     double held_out, ad_text_data **out);

/* Files of tokens. */
typedef struct ad_token_options {
  size_t size;               /* sizeof(ad_token_options) */
  const char *const *tokens; /* [count] .npy files of uint16 or uint32, of one dimension, little endian */
  const char *const *masks;  /* [count] .npy files of uint8, each as long as its tokens: the token at a place with 0 is
                                no target that counts, with 1 it is one. NULL: all count */
  size_t count;
  int64_t seq;        /* tokens of a sample */
  double held_out;    /* fraction h at the end of every file that is kept for validation: its last floor(h * tokens) */
  int64_t vocabulary; /* tokens are below it */
} ad_token_options;
/* Whether files can be tokens, or masks, with every element in its range: reads each once, from number *at on to the
 * first that cannot, whose number *at then has; `count`: all can. Says how far it is every five seconds (ad_set_log).
 * AD_IO: it cannot be read; AD_INVALID names what is wrong, and for an element its index. */
AD_API AD_CHECKED ad_status ad_token_files_check(const char *const *paths, size_t count, int64_t vocabulary,
                                                 size_t *at);
AD_API AD_CHECKED ad_status ad_token_masks_check(const char *const *paths, size_t count, size_t *at);
/* Maps the files, which must stay as they are; reads nothing but headers. AD_IO and AD_INVALID as the checks have them,
 * but for elements; AD_INVALID also if a mask has another length than its tokens, or no sample lies in the part that is
 * trained on or in the one that is held out. The options are not kept. */
AD_API AD_CHECKED ad_status ad_text_data_open_tokens(const ad_token_options *options, ad_text_data **out);

/* ---- either ---- */

AD_API void ad_text_data_close(ad_text_data *text);
AD_API int64_t ad_text_data_bytes(const ad_text_data *text);  /* of text or tokens, in all files */
AD_API int64_t ad_text_data_tokens(const ad_text_data *text); /* the same in tokens */
/* xxhash64 of all bytes of all files (of tokens: of all elements) and where each file ends, whatever part is held out;
 * 0: not read. Of tokens it is made when it is first asked for, and reads them all. */
AD_API uint64_t ad_text_data_checksum(const ad_text_data *text);
AD_API uint64_t ad_text_data_mask_checksum(const ad_text_data *text); /* the same of masks; 0: there are none */
/* Adds to counts[token] how often each token is in a part; of tokens, in its windows. */
AD_API void ad_text_data_tally(const ad_text_data *text, ad_data_part of, int64_t *counts);
/* The bytes of a part, the text's; NULL: not read, or tokens. */
AD_API const uint8_t *ad_text_data_part(const ad_text_data *text, ad_data_part of, int64_t *size);

/* How global batches are drawn: the samples that all ranks together read in one step.
 *
 * A draw is a function of (seed, stream, index), each of 64 bits: Philox4x32-10 (Salmon et al. 2011) with the key
 * (seed) and the counter (index, stream), low words first; its four words are two 64-bit numbers, low words first.
 * Nothing else is random, and there is no state.
 *
 * Sample i of step s draws with the stream XXH64("data"), of the held-out part XXH64("data held out"), both with hash
 * seed 0, and the index s * global_batch + i. With r the first number and n the bytes of the part, its tokens are the
 * seq bytes from floor(r * (n - seq) / 2^64) on; the target of a token is the byte after it.
 *
 * Tokens are read without repetition. Window w of a part of a file begins at its token w * seq and has seq tokens and
 * the one after them, the last target; no window reaches into another file, nor from what is trained on into what is
 * held out. The windows of all files, one file after another, are numbered 0 to n - 1. With i = s * global_batch + row,
 * sample i is window P(i mod n), where P is the permutation of epoch i / n: every window once in an epoch, whatever
 * the steps. P is a generalised Feistel network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
 * domains", CT-RSA 2002). Its key k is the first number of the draw (seed, XXH64("tokens"), epoch), of the held-out
 * part (seed, XXH64("tokens held out"), epoch). a is the smallest number whose square is n or more, b = ceil(n / a). x
 * is l * b + r; for j = 0, 2, 4, 6: l becomes (l + below(a, j, r)) mod a, then r becomes (r + below(b, j + 1, l)) mod
 * b, where below(m, t, x) is floor(m * d / 2^64) with d the first number of the draw (k, t, x). This is repeated until
 * x is below n. */
typedef struct ad_batch_options {
  size_t size; /* sizeof(ad_batch_options) */
  uint64_t seed;
  int64_t global_batch; /* samples of a step */
  /* The fraction of a sample's tokens that count: valid[i % valid_count] of sample i of the batch. NULL: all count. */
  const double *valid;
  size_t valid_count;
  int held_out; /* 1: from the validation part */
  /* Above 0: sample i of step s is no draw but number s * global_batch + i of a set of so many, at most
   * ad_text_data_samples of the part: the same for every seed and, cut into steps of any size, the same samples.
   * valid[number % valid_count] of it counts. After the last the set begins again, and of these nothing counts unless
   * `wraps`. */
  int64_t set;
  int wraps;
  /* The positions of each sample that are wanted, one run after another (ad_layout_spans). NULL: all. The target of the
   * last one of a run is still the byte after it. */
  const ad_span *spans;
  size_t span_count;
} ad_batch_options;
/* Fills rows [first, first + count) of the global batch of step `step`: tokens and targets [count, wanted positions],
 * i32; a target of -1 does not count. NULL: they are not wanted. *counted: how many of these targets count; of a text
 * that was not read that is all, tokens and targets are left as they are.
 */
AD_API AD_CHECKED ad_status ad_text_data_rows(const ad_text_data *text, const ad_batch_options *options, int64_t step,
                                              int64_t first, int64_t count, int32_t *tokens, int32_t *targets,
                                              int64_t *counted);
/* Samples of seq tokens that lie in the part that is trained on, or the one that is held out, one after another from
 * its first byte on (of tokens: in each file), each with the byte after it: w. A set (ad_batch_options) has number i at
 * window (i * p) mod w, where p is the first number from 0.618 w on that has no divisor in common with w: as many as
 * there are, none twice, and the first few already spread evenly over the part. */
AD_API int64_t ad_text_data_samples(const ad_text_data *text, ad_data_part of);
/* The rows of microbatch m of `microbatches` that a rank holds: the global batch is cut by floor(i*n/g) into
 * microbatches, then by the layout's cuts of dimension 0. */
AD_API ad_span ad_batch_rows(const ad_layout *layout, int64_t rank, int64_t global_batch, int64_t microbatches,
                             int64_t m);

/* ---- pictures of a text's lines ---- */

/* Which lines, and how they are drawn: what the keys `data` of a recipe of `ocr` say. */
typedef struct ad_line_options {
  char **text; /* files and folders, as in ad_text_options */
  size_t text_count;
  double held_out; /* as in ad_text_options */
  char **fonts;    /* files; each line is drawn in one of them */
  size_t font_count;
  char *held_out_font;   /* one more for lines of the held-out part alone; NULL: none */
  int64_t chars;         /* a line has at most as many characters, and at least half of them where they fit */
  int64_t height, width; /* of a picture, in pixels */
  double *sizes;         /* [least, most] pixels of the em */
  size_t size_count;
  double *weights; /* [least, most] ems by which strokes are wider than the font has them, below 0 narrower; none: as
                      the font has them. -0.03 to 0.05 can be read; at 0.1 a bold font's letters close up */
  size_t weight_count;
  double rotation; /* degrees at most, either way; less where a line would leave the picture */
  double noise;    /* standard deviation of what is added to every pixel */
  int blank;       /* 1: the same characters with empty pictures, to see what is known without reading */
} ad_line_options;
typedef struct ad_line_data ad_line_data;

/* Whether ad_line_data_open would take this font with these options: its errors, and its message. */
AD_API AD_CHECKED ad_status ad_line_font_check(const ad_line_options *options, const char *path);
/* Reads the text, as ad_text_data_open does, and every font once. The options are not kept. AD_IO names a file that
 * cannot be read, or that is no font with all printable ASCII characters; AD_INVALID the option that is out of its
 * range, the font whose largest characters leave the picture, a text that is too short, a held-out font that is one of
 * the others. */
AD_API AD_CHECKED ad_status ad_line_data_open(const ad_line_options *options, ad_line_data **out);
AD_API void ad_line_data_close(ad_line_data *lines);
AD_API int64_t ad_line_data_bytes(const ad_line_data *lines); /* of the text's files */
/* xxhash64: as ad_text_data_checksum, and of all fonts in their order, the held-out one last. */
AD_API uint64_t ad_line_data_checksum(const ad_line_data *lines);
AD_API uint64_t ad_line_data_font_checksum(const ad_line_data *lines);
typedef struct ad_line {
  int64_t count; /* of its characters */
  size_t font;   /* in which they are drawn; options.font_count: the held-out one */
} ad_line;
/* Draws line number `index` of the part that is trained on, or of the held-out part: a function of (seed, of,
 * index) alone. characters [chars]: printable ASCII, no space first or last, every run of other bytes one space; zeros
 * after the last. picture [height, width]: 0 is paper, 1 is ink. The line is cut where the picture ends. Lines of the
 * two parts overlap nowhere; where a text repeats itself both may still say the same.
 *
 * The line's own seed is a draw (seed, stream, index) with the stream XXH64("line"), of the held-out part XXH64("line
 * held out"); all else is drawn with that. One thread at a time may draw. Without a held-out part its lines are empty.
 * AD_INVALID: the font has an outline that cannot be drawn. */
AD_API AD_CHECKED ad_status ad_line_data_draw(ad_line_data *lines, uint64_t seed, ad_data_part of, uint64_t index,
                                              ad_line *out, uint8_t *characters, float *picture);

/* Weights as files hold them: one safetensors file, or several shards that an index joins, as Hugging Face writes them
 * (model.safetensors.index.json). Whether they are those of a model: ad_params_check_weights. */
typedef struct ad_weights ad_weights;
/* A path that ends in ".json" is that of an index. The errors of ad_safetensors_open; of an index also AD_INVALID,
 * naming what it says wrongly, tensors that a file lacks and tensors of the files that it does not list. Nothing is
 * read but headers: ad_safetensors_check_values of each file looks at what they hold. *out is unchanged on failure. */
AD_API AD_CHECKED ad_status ad_weights_open(const char *path, ad_weights **out);
AD_API void ad_weights_close(ad_weights *weights);             /* NULL allowed */
AD_API const char *ad_weights_path(const ad_weights *weights); /* as it was given, for messages */
/* File number i, in the order of their names, until close; no two have a tensor of one name. NULL: there are fewer. */
AD_API const ad_safetensors *ad_weights_file(const ad_weights *weights, size_t i);
/* The tensor of that name in whichever file has it; NULL: none has. */
AD_API const ad_safetensor *ad_weights_find(const ad_weights *weights, const char *name);

#if defined(__cplusplus)
}
#endif
#endif
