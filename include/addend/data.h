/* Training data: real text as bytes, and pictures of its lines. Which sample stands where depends on the global index
 * alone, so every topology reads the same batch. */
#ifndef ADDEND_DATA_H
#define ADDEND_DATA_H
#include "addend/layout.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_VOCABULARY_BYTES = 256 };

typedef enum ad_data_part { AD_TRAINING_PART, AD_HELD_OUT_PART } ad_data_part; /* of a text */

typedef struct ad_text_data ad_text_data;
/* Reads files, and folders recursively in name order; regular files only; a symbolic link is followed where it is named
 * itself and passed over inside a folder (its target would count twice). AD_IO names the path that is missing, empty or
 * unreadable; AD_INVALID if the text is not longer than seq bytes, naming both numbers. What is
 * trained on is one text, the files' bytes one after another in that order; so is what is held out. */
AD_API AD_CHECKED ad_status ad_text_data_open(const char *const *paths, size_t count, int64_t seq, double held_out,
                                              ad_text_data **out);
AD_API void ad_text_data_close(ad_text_data *text);
AD_API int64_t ad_text_data_bytes(const ad_text_data *text);

/* How global batches are drawn: the samples that all ranks together read in one step.
 *
 * A draw is a function of (seed, stream, index), each of 64 bits: Philox4x32-10 (Salmon et al. 2011) with the key
 * (seed) and the counter (index, stream), low words first; its four words are two 64-bit numbers, low words first.
 * Nothing else is random, and there is no state.
 *
 * Sample i of step s draws with the stream XXH64("data"), of the held-out part XXH64("data held out"), both with hash
 * seed 0, and the index s * global_batch + i. With r the first number and n the bytes of the part, its tokens are the
 * seq bytes from floor(r * (n - seq) / 2^64) on; the target of a token is the byte after it. */
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
 * i32; a target of -1 does not count. *counted: how many of these targets count; of a text that was not read that is
 * all, tokens and targets are left as they are.
 */
AD_API AD_CHECKED ad_status ad_text_data_rows(const ad_text_data *text, const ad_batch_options *options, int64_t step,
                                              int64_t first, int64_t count, int32_t *tokens, int32_t *targets,
                                              int64_t *counted);
/* Samples of seq bytes that lie in the part that is trained on, or the one that is held out, one after another from its
 * first byte on, each with the byte after it: w. A set (ad_batch_options) has number i at window (i * p) mod w, where p
 * is the first number from 0.618 w on that has no divisor in common with w: as many as there are, none twice, and the
 * first few already spread evenly over the part. */
AD_API int64_t ad_text_data_samples(const ad_text_data *text, ad_data_part of);
/* The rows of microbatch m of `microbatches` that a rank holds: the global batch is cut by floor(i*n/g) into
 * microbatches, then by the layout's cuts of dimension 0. */
AD_API ad_span ad_batch_rows(const ad_layout *layout, int64_t rank, int64_t global_batch, int64_t microbatches,
                             int64_t m);

#if defined(__cplusplus)
}
#endif
#endif
