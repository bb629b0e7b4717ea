/* Training data of bytes. Samples begin at random places of the files, drawn from the sample's global index. */
#include "data/text.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "files/file.h"

static ad_status check_part(const char *what, int64_t size, int64_t seq) {
  if (size > seq) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s has %lld bytes, but a sample of data.seq=%lld tokens needs %lld bytes; give more text, or set data.seq "
      "to at most %lld",
      what, (long long)size, (long long)seq, (long long)seq + 1, (long long)(size > 0 ? size - 1 : 0));
}

/* Returns AD_INVALID or AD_IO if the training part or the validation part is too short for a sample. */
static ad_status check_sizes(const ad_file_list *files, int64_t seq, double validation) {
  int64_t train = 0, validation_size = 0;
  for (size_t i = 0; i < files->count; i++) {
    int64_t kept = ad_validation_size(files->entries[i].size, validation);
    validation_size += kept;
    train += files->entries[i].size - kept;
  }
  if (train + validation_size == 0)
    return ad_fail(AD_IO, "%s: the file of text is empty; name a file with text", files->entries[0].path);
  AD_TRY(check_part(validation > 0 ? "the text for training" : "the text", train, seq));
  return validation > 0 ? check_part("the text reserved for validation", validation_size, seq) : AD_OK;
}

/* Lists the files, and checks that each part has enough bytes. */
static ad_status find_files(const char *const *paths, size_t count, int64_t seq, double validation,
                            ad_file_list *files) {
  if (!count) return ad_fail(AD_INVALID, "there is no text; name a file or a folder in data.text");
  AD_TRY(ad_text_check_numbers(seq, validation));
  for (size_t i = 0; i < count; i++) AD_TRY(ad_file_list_add(files, paths[i]));
  return check_sizes(files, seq, validation);
}

static ad_status need_paths(const char *call, const char *const *paths, size_t count) {
  if (count) AD_NEED_OF(call, paths);
  for (size_t i = 0; i < count; i++) AD_NEED_OF(call, paths[i]);
  return AD_OK;
}

ad_status ad_text_data_check(const char *const *paths, size_t count, int64_t seq, double validation) {
  AD_TRY(need_paths(__func__, paths, count));
  ad_file_list files = {0};
  ad_status status = find_files(paths, count, seq, validation, &files);
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

/* Reads a file: its beginning into the training part, its end into the validation part. The sizes are those found when
 * the files were listed. */
static ad_status load_file(const ad_file_entry *file, double validation, uint8_t *train, uint8_t *validation_size,
                           uint64_t *checksum) {
  char *data;
  int64_t size;
  AD_TRY(ad_file_read(file->path, INT64_MAX - 1, &data, &size));
  ad_status status = AD_OK;
  if (size == file->size) {
    int64_t kept = ad_validation_size(size, validation);
    *checksum = ad_checksum(data, (size_t)size, *checksum);
    memcpy(train, data, (size_t)(size - kept));
    memcpy(validation_size, data + size - kept, (size_t)kept);
  } else {
    status = ad_fail(AD_IO,
                     "%s: the file changed while it was read, from %lld to %lld bytes; start again when no program "
                     "writes to the file",
                     file->path, (long long)file->size, (long long)size);
  }
  ad_release(data);
  return status;
}

static ad_text_part part_of_size(int64_t size, int64_t seq, const char *stream) {
  return (ad_text_part){.size = size, .windows = size > seq ? (size - 1) / seq : 0, .stream = ad_random_stream(stream)};
}

static void measure_files(const ad_file_list *files, double validation, ad_text_data *text) {
  int64_t held = 0;
  for (size_t i = 0; i < files->count; i++) {
    text->byte_count += files->entries[i].size;
    held += ad_validation_size(files->entries[i].size, validation);
  }
  text->parts[AD_TRAINING_PART] = part_of_size(text->byte_count - held, text->seq, "data");
  text->parts[AD_VALIDATION_PART] = part_of_size(held, text->seq, "data held out");
}

/* Reads all files into one buffer, their beginnings into the training part and their ends into the validation part. */
static ad_status load_files(const ad_file_list *files, double validation, ad_text_data *text) {
  AD_TRY(ad_new((size_t)text->byte_count, &text->bytes));
  uint8_t *train = text->bytes, *validation_size = text->bytes + text->parts[AD_TRAINING_PART].size;
  text->parts[AD_TRAINING_PART].bytes = train;
  text->parts[AD_VALIDATION_PART].bytes = validation_size;
  for (size_t i = 0; i < files->count; i++) {
    AD_TRY(load_file(&files->entries[i], validation, train, validation_size, &text->checksum));
    int64_t kept = ad_validation_size(files->entries[i].size, validation);
    train += files->entries[i].size - kept;
    validation_size += kept;
  }
  return AD_OK;
}

/* ---- drawing samples ---- */

static int64_t draw_place(const ad_text_data *text, const ad_text_part *part, uint64_t seed, uint64_t index) {
  return ad_random_below(seed, part->stream, index, part->size - text->seq);
}

static int64_t window_at(const ad_text_data *text, int64_t number) { return number * text->seq; }

static void fill_tokens(const uint8_t *window, const ad_wanted *positions, int32_t *tokens) {
  for (size_t i = 0; i < positions->count; i++) {
    ad_span span = positions->spans[i];
    for (int64_t at = span.first; at < span.first + span.count; at++) *tokens++ = window[at];
  }
}

static void fill_targets(const uint8_t *window, int64_t valid, const ad_wanted *positions, int32_t *targets) {
  for (size_t i = 0; i < positions->count; i++) {
    ad_span span = positions->spans[i];
    for (int64_t at = span.first; at < span.first + span.count; at++) *targets++ = at < valid ? window[at + 1] : -1;
  }
}

static ad_status read_window(const ad_text_data *text, const ad_text_part *part, int64_t place, int64_t valid,
                             const ad_wanted *positions, int32_t *tokens, int32_t *targets, int64_t *counted) {
  *counted = ad_wanted_below(positions, valid);
  if (part->bytes && tokens) fill_tokens(part->bytes + place, positions, tokens);
  if (part->bytes && targets) fill_targets(part->bytes + place, valid, positions, targets);
  return AD_OK;
}

static void count_values(const ad_text_data *text, const ad_text_part *part, int64_t *counts) {
  for (int64_t i = 0; part->bytes && i < part->size; i++) counts[part->bytes[i]]++;
}

static void checksums(ad_text_data *text) {} /* checksums were made when the files were read */

static const ad_text_source source = {draw_place, window_at, read_window, count_values, checksums};

/* ---- opening text data ---- */

static ad_status find_text(const char *const *paths, size_t count, double validation, int reads, ad_text_data *text) {
  ad_file_list files = {0};
  ad_status status = find_files(paths, count, text->seq, validation, &files);
  if (!status) measure_files(&files, validation, text);
  if (!status && reads) status = load_files(&files, validation, text);
  ad_file_list_clear(&files);
  return status;
}

static ad_status open_text(const char *call, const char *const *paths, size_t count, int64_t seq, double validation,
                           int reads, ad_text_data **out) {
  AD_NEED_OF(call, out);
  AD_TRY(need_paths(call, paths, count));
  ad_text_data *text;
  AD_TRY(ad_new(1, &text));
  text->source = &source;
  text->seq = seq;
  ad_status status = find_text(paths, count, validation, reads, text);
  if (status) {
    ad_text_data_close(text);
    return status;
  }
  *out = text;
  return AD_OK;
}

ad_status ad_text_data_open(const char *const *paths, size_t count, int64_t seq, double validation,
                            ad_text_data **out) {
  return open_text(__func__, paths, count, seq, validation, 1, out);
}

ad_status ad_text_data_open_unread(const char *const *paths, size_t count, int64_t seq, double validation,
                                   ad_text_data **out) {
  return open_text(__func__, paths, count, seq, validation, 0, out);
}

const uint8_t *ad_text_data_part(const ad_text_data *text, ad_data_part of, int64_t *size) {
  *size = text->parts[of].size;
  return text->parts[of].bytes;
}
