/* Text as training data: bytes of files, cut into samples at random places that depend on the global sample index
 * alone. */
#include "addend/data.h"

#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "addend/random.h"
#include "files/file.h"

/* A run of bytes from which samples are drawn. */
typedef struct part {
  const uint8_t *bytes;
  int64_t size;
  uint64_t stream; /* of random numbers */
} part;

struct ad_text_data {
  uint8_t *bytes; /* first what is trained on, file after file, then what is held out; NULL: not read */
  part train, validation;
  int64_t seq;
  uint64_t checksum;
};

static const part *part_of(const ad_text_data *text, int held_out) {
  return held_out ? &text->validation : &text->train;
}

static int64_t held_out_of(int64_t size, double held_out) { return (int64_t)floor((double)size * held_out); }

static ad_status check_part(const char *what, int64_t size, int64_t seq) {
  if (size > seq) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s holds %lld bytes, but a sample of seq %lld needs %lld: give more text or a seq of at most %lld",
                 what, (long long)size, (long long)seq, (long long)seq + 1, (long long)(size > 0 ? size - 1 : 0));
}

static ad_status check_sizes(const ad_file_list *files, int64_t seq, double held_out) {
  int64_t train = 0, validation = 0;
  for (size_t i = 0; i < files->count; i++) {
    int64_t kept = held_out_of(files->entries[i].size, held_out);
    validation += kept;
    train += files->entries[i].size - kept;
  }
  if (train + validation == 0) return ad_fail(AD_IO, "%s: the text is empty", files->entries[0].path);
  AD_TRY(check_part(held_out > 0 ? "the text for training" : "the text", train, seq));
  return held_out > 0 ? check_part("the text held out for validation", validation, seq) : AD_OK;
}

static ad_status find_files(const char *const *paths, size_t count, int64_t seq, double held_out, ad_file_list *files) {
  if (!count) return ad_fail(AD_INVALID, "no text is named: give a file or a folder");
  if (seq < 1) return ad_fail(AD_INVALID, "seq must be at least 1, is %lld", (long long)seq);
  if (!(held_out >= 0 && held_out < 1))
    return ad_fail(AD_INVALID, "held_out must be at least 0 and below 1, is %g", held_out);
  for (size_t i = 0; i < count; i++) AD_TRY(ad_file_list_add(files, paths[i]));
  return check_sizes(files, seq, held_out);
}

static ad_status need_paths(const char *const *paths, size_t count) {
  if (count) AD_NEED_AS("paths", paths);
  for (size_t i = 0; i < count; i++) AD_NEED_AS("paths[i]", paths[i]);
  return AD_OK;
}

ad_status ad_text_data_check(const char *const *paths, size_t count, int64_t seq, double held_out) {
  AD_TRY(need_paths(paths, count));
  ad_file_list files = {0};
  ad_status status = find_files(paths, count, seq, held_out, &files);
  ad_file_list_clear(&files);
  return status;
}

ad_status ad_text_path_check(const char *path) {
  AD_NEED(path);
  ad_file_list files = {0};
  ad_status status = ad_file_list_add(&files, path);
  ad_file_list_clear(&files);
  return status;
}

/* Appends the front or the back of a file to the text; the sizes were fixed when the files were listed. */
static ad_status load_file(const ad_file_entry *file, double held_out, uint8_t *train, uint8_t *validation,
                           uint64_t *checksum) {
  char *data;
  int64_t size;
  AD_TRY(ad_file_read(file->path, INT64_MAX - 1, &data, &size));
  ad_status status = AD_OK;
  if (size == file->size) {
    int64_t kept = held_out_of(size, held_out);
    *checksum = ad_checksum(data, (size_t)size, *checksum);
    memcpy(train, data, (size_t)(size - kept));
    memcpy(validation, data + size - kept, (size_t)kept);
  } else {
    status = ad_fail(AD_IO, "%s: had %lld bytes, then %lld: it changed while it was read", file->path,
                     (long long)file->size, (long long)size);
  }
  ad_release(data);
  return status;
}

static void measure_files(const ad_file_list *files, double held_out, ad_text_data *text) {
  int64_t all = 0, held = 0;
  for (size_t i = 0; i < files->count; i++) {
    all += files->entries[i].size;
    held += held_out_of(files->entries[i].size, held_out);
  }
  text->train = (part){NULL, all - held, ad_random_stream("data")};
  text->validation = (part){NULL, held, ad_random_stream("data held out")};
}

static ad_status load_files(const ad_file_list *files, double held_out, ad_text_data *text) {
  AD_TRY(ad_new((size_t)ad_text_data_bytes(text), &text->bytes));
  uint8_t *train = text->bytes, *validation = text->bytes + text->train.size;
  text->train.bytes = train;
  text->validation.bytes = validation;
  for (size_t i = 0; i < files->count; i++) {
    AD_TRY(load_file(&files->entries[i], held_out, train, validation, &text->checksum));
    int64_t kept = held_out_of(files->entries[i].size, held_out);
    train += files->entries[i].size - kept;
    validation += kept;
  }
  return AD_OK;
}

static ad_status find_text(const char *const *paths, size_t count, double held_out, int reads, ad_text_data *text) {
  ad_file_list files = {0};
  ad_status status = find_files(paths, count, text->seq, held_out, &files);
  if (!status) measure_files(&files, held_out, text);
  if (!status && reads) status = load_files(&files, held_out, text);
  ad_file_list_clear(&files);
  return status;
}

static ad_status open_text(const char *const *paths, size_t count, int64_t seq, double held_out, int reads,
                           ad_text_data **out) {
  AD_NEED(out);
  AD_TRY(need_paths(paths, count));
  ad_text_data *text;
  AD_TRY(ad_new(1, &text));
  text->seq = seq;
  ad_status status = find_text(paths, count, held_out, reads, text);
  if (status) {
    ad_text_data_close(text);
    return status;
  }
  *out = text;
  return AD_OK;
}

ad_status ad_text_data_open(const char *const *paths, size_t count, int64_t seq, double held_out, ad_text_data **out) {
  return open_text(paths, count, seq, held_out, 1, out);
}

ad_status ad_text_data_open_unread(const char *const *paths, size_t count, int64_t seq, double held_out,
                                   ad_text_data **out) {
  return open_text(paths, count, seq, held_out, 0, out);
}

void ad_text_data_close(ad_text_data *text) {
  if (!text) return;
  ad_release(text->bytes);
  ad_release(text);
}

uint64_t ad_text_data_checksum(const ad_text_data *text) { return text->checksum; }

const uint8_t *ad_text_data_part(const ad_text_data *text, ad_data_part of, int64_t *size) {
  const part *from = part_of(text, of == AD_HELD_OUT_PART);
  *size = from->size;
  return from->bytes;
}

int64_t ad_text_data_bytes(const ad_text_data *text) { return text->train.size + text->validation.size; }

/* ---- which samples ---- */

static const double golden_ratio = 0.61803398874989485;

static int64_t windows_of(const part *from, int64_t seq) { return from->size > seq ? (from->size - 1) / seq : 0; }

int64_t ad_text_data_samples(const ad_text_data *text, ad_data_part of) {
  return windows_of(part_of(text, of == AD_HELD_OUT_PART), text->seq);
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* From one number of a set to the next, in windows. */
static int64_t stride_of(int64_t windows) {
  int64_t stride = (int64_t)ceil(golden_ratio * (double)windows);
  while (common_divisor(stride, windows) != 1) stride++;
  return stride;
}

/* The sample in a row of a step's batch. */
typedef struct sample {
  int64_t first; /* byte of its part */
  int64_t valid; /* tokens that count: the first ones */
} sample;

static int64_t valid_of(const ad_batch_options *options, uint64_t index, int64_t seq) {
  if (!options->valid_count) return seq;
  return (int64_t)llround(options->valid[index % options->valid_count] * (double)seq);
}

static sample drawn(const part *from, const ad_batch_options *options, int64_t seq, uint64_t index, int64_t row) {
  return (sample){ad_random_below(options->seed, from->stream, index, from->size - seq),
                  valid_of(options, (uint64_t)row, seq)};
}

static sample of_set(int64_t windows, const ad_batch_options *options, int64_t seq, uint64_t index, int64_t stride) {
  uint64_t number = index % (uint64_t)options->set;
  int64_t window = (int64_t)((number * (uint64_t)stride) % (uint64_t)windows);
  int counts = options->wraps || index == number;
  return (sample){window * seq, counts ? valid_of(options, number, seq) : 0};
}

/* The wanted positions of one sample. */
typedef struct wanted {
  const ad_span *spans;
  size_t count;
  int64_t width;
} wanted;

static wanted wanted_of(const ad_batch_options *options, const ad_span *all) {
  wanted from = {options->spans, options->span_count, 0};
  if (!options->spans) from = (wanted){all, 1, 0};
  for (size_t i = 0; i < from.count; i++) from.width += from.spans[i].count;
  return from;
}

/* How many of them are below `valid`. */
static int64_t count_below(const wanted *from, int64_t valid) {
  int64_t count = 0;
  for (size_t i = 0; i < from->count; i++) {
    int64_t below = valid - from->spans[i].first;
    count += below < 0 ? 0 : below > from->spans[i].count ? from->spans[i].count : below;
  }
  return count;
}

static void fill_tokens(const uint8_t *window, const wanted *positions, int32_t *tokens) {
  for (size_t i = 0; i < positions->count; i++) {
    ad_span span = positions->spans[i];
    for (int64_t at = span.first; at < span.first + span.count; at++) *tokens++ = window[at];
  }
}

static void fill_targets(const uint8_t *window, int64_t valid, const wanted *positions, int32_t *targets) {
  for (size_t i = 0; i < positions->count; i++) {
    ad_span span = positions->spans[i];
    for (int64_t at = span.first; at < span.first + span.count; at++) *targets++ = at < valid ? window[at + 1] : -1;
  }
}

static void fill_nothing(int64_t n, int32_t *tokens, int32_t *targets) {
  for (int64_t i = 0; i < n; i++) {
    if (tokens) tokens[i] = 0;
    if (targets) targets[i] = -1;
  }
}

ad_status ad_text_data_rows(const ad_text_data *text, const ad_batch_options *given, int64_t step, int64_t first,
                            int64_t count, int32_t *tokens, int32_t *targets, int64_t *counted) {
  ad_batch_options taken, *options = &taken;
  AD_TRY(ad_options_take(&taken, sizeof taken, given, "ad_batch_options"));
  *counted = 0;
  const part *from = part_of(text, options->held_out);
  int64_t seq = text->seq, windows = windows_of(from, seq), stride = options->set ? stride_of(windows) : 0;
  ad_span all = {0, seq};
  wanted positions = wanted_of(options, &all);
  if (!windows) {  // nothing is held out
    if (text->bytes) fill_nothing(count * positions.width, tokens, targets);
    return AD_OK;
  }
  for (int64_t row = 0; row < count; row++) {
    uint64_t index = (uint64_t)step * (uint64_t)options->global_batch + (uint64_t)(first + row);
    sample own =
        options->set ? of_set(windows, options, seq, index, stride) : drawn(from, options, seq, index, first + row);
    *counted += count_below(&positions, own.valid);
    if (!text->bytes) continue;
    int64_t at = row * positions.width;
    if (tokens) fill_tokens(from->bytes + own.first, &positions, tokens + at);
    if (targets) fill_targets(from->bytes + own.first, own.valid, &positions, targets + at);
  }
  return AD_OK;
}

ad_span ad_batch_rows(const ad_layout *layout, int64_t rank, int64_t global_batch, int64_t microbatches, int64_t m) {
  ad_span microbatch = ad_cut(global_batch, m, microbatches);
  ad_span own = {0, 0};
  if (ad_mesh_has_rank(layout->mesh, rank)) ad_layout_spans(layout, 0, microbatch.count, rank, &own, 1);
  return (ad_span){microbatch.first + own.first, own.count};
}
