/* Chooses the samples of a step, in data of bytes or of tokens, and fills the rows of its batch with them. */
#include "data/text.h"

#include <math.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"

static const double golden_ratio = 0.61803398874989485;

int64_t ad_validation_size(int64_t size, double validation) { return (int64_t)floor((double)size * validation); }

ad_status ad_text_check_numbers(int64_t seq, double validation) {
  if (seq < 1)
    return ad_fail(AD_INVALID,
                   "data.seq must be at least 1, but is %lld; set data.seq to the number of tokens of a sample",
                   (long long)seq);
  if (!(validation >= 0 && validation < 1))
    return ad_fail(AD_INVALID, "data.validation must be at least 0 and below 1, but is %g", validation);
  return AD_OK;
}

int64_t ad_text_data_samples(const ad_text_data *text, ad_data_part of) { return text->parts[of].windows; }

int64_t ad_text_data_bytes(const ad_text_data *text) { return text->byte_count; }

int64_t ad_text_data_tokens(const ad_text_data *text) {
  return text->parts[AD_TRAINING_PART].size + text->parts[AD_VALIDATION_PART].size;
}

void ad_text_data_count_values(const ad_text_data *text, ad_data_part of, int64_t *counts) {
  text->source->count_values(text, &text->parts[of], counts);
}

uint64_t ad_text_data_checksum(const ad_text_data *text) {
  text->source->checksums((ad_text_data *)(uintptr_t)text);
  return text->checksum;
}

uint64_t ad_text_data_mask_checksum(const ad_text_data *text) {
  text->source->checksums((ad_text_data *)(uintptr_t)text);
  return text->mask_checksum;
}

void ad_text_data_close(ad_text_data *text) {
  if (!text) return;
  ad_token_files_close(text);
  ad_release(text->bytes);
  ad_release(text);
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Returns the distance, in windows, between consecutive samples of a fixed set. It is near the golden ratio of
 * `windows` and has no common divisor with it, so that the set reaches all windows. */
static int64_t stride_of(int64_t windows) {
  int64_t stride = (int64_t)ceil(golden_ratio * (double)windows);
  while (common_divisor(stride, windows) != 1) stride++;
  return stride;
}

/* The sample in one row of a step's batch. */
typedef struct sample {
  int64_t place;
  int64_t valid; /* this many tokens, from the beginning of the sample, count as targets */
} sample;

/* Returns how many tokens of a sample count. */
static int64_t valid_of(const ad_batch_options *options, uint64_t index, int64_t seq) {
  if (!options->valid_count) return seq;
  return (int64_t)llround(options->valid[index % options->valid_count] * (double)seq);
}

/* Returns the sample of a row if samples are drawn. The draw depends only on the global index. */
static sample drawn(const ad_text_data *text, const ad_text_part *part, const ad_batch_options *options, uint64_t index,
                    int64_t row) {
  return (sample){text->source->draw(text, part, options->seed, index), valid_of(options, (uint64_t)row, text->seq)};
}

/* Returns the sample of a row if samples are from a fixed set. Rows after the end of the set do not count, unless the
 * set wraps around. */
static sample of_set(const ad_text_data *text, int64_t windows, const ad_batch_options *options, uint64_t index,
                     int64_t stride) {
  uint64_t number = index % (uint64_t)options->set;
  int64_t window = (int64_t)((number * (uint64_t)stride) % (uint64_t)windows);
  int counts = options->wraps || index == number;
  return (sample){text->source->window(text, window), counts ? valid_of(options, number, text->seq) : 0};
}

/* Returns the positions to fill: those in the options, or all. */
static ad_wanted wanted_of(const ad_batch_options *options, const ad_span *all) {
  ad_wanted from = {options->spans, options->span_count, 0};
  if (!options->spans) from = (ad_wanted){all, 1, 0};
  for (size_t i = 0; i < from.count; i++) from.width += from.spans[i].count;
  return from;
}

int64_t ad_wanted_below(const ad_wanted *positions, int64_t valid) {
  int64_t count = 0;
  for (size_t i = 0; i < positions->count; i++) {
    int64_t below = valid - positions->spans[i].first;
    count += below < 0 ? 0 : below > positions->spans[i].count ? positions->spans[i].count : below;
  }
  return count;
}

static void fill_nothing(int64_t n, int32_t *tokens, int32_t *targets) {
  for (int64_t i = 0; i < n; i++) {
    if (tokens) tokens[i] = 0;
    if (targets) targets[i] = -1;
  }
}

/* Fills `rows` of the step's batch with the `positions` of their samples. */
static ad_status fill_rows(const ad_text_data *text, const ad_batch_options *options, int64_t step, ad_span rows,
                           const ad_wanted *positions, int32_t *tokens, int32_t *targets, int64_t *counted) {
  const ad_text_part *part = &text->parts[options->validation != 0];
  int64_t stride = options->set ? stride_of(part->windows) : 0;
  for (int64_t row = 0; row < rows.count; row++) {
    uint64_t index = (uint64_t)step * (uint64_t)options->global_batch + (uint64_t)(rows.first + row);
    sample own = options->set ? of_set(text, part->windows, options, index, stride)
                              : drawn(text, part, options, index, rows.first + row);
    int64_t at = row * positions->width, count = 0;
    AD_TRY(text->source->fill(text, part, own.place, own.valid, positions, tokens ? tokens + at : NULL,
                              targets ? targets + at : NULL, &count));
    *counted += count;
  }
  return AD_OK;
}

ad_status ad_text_data_rows(const ad_text_data *text, const ad_batch_options *given, int64_t step, int64_t first,
                            int64_t count, int32_t *tokens, int32_t *targets, int64_t *counted) {
  ad_batch_options options;
  AD_TRY(ad_options_take(&options, sizeof options, given, "ad_batch_options"));
  *counted = 0;
  ad_span all = {0, text->seq};
  ad_wanted positions = wanted_of(&options, &all);
  if (text->parts[options.validation != 0].windows)
    return fill_rows(text, &options, step, (ad_span){first, count}, &positions, tokens, targets, counted);
  // The data have no validation part: fills rows that do not count.
  if (text->bytes || text->files) fill_nothing(count * positions.width, tokens, targets);
  return AD_OK;
}
