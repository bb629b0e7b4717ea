/* Training data of tokens. Files of token ids are mapped into memory, not copied, and a permutation decides in which
 * order their windows are read. */
#include <stdio.h>
#include <string.h>
#include "base/random.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "base/memory.h"
#include "base/options.h"
#include "data/permutation.h"
#include "data/text.h"

enum { TOKEN_WIDTHS = 2 | 4, MASK_WIDTHS = 1 };

/* ---- checking token files and mask files ---- */

/* A check that reads files from the first element to the last and sometimes logs its progress. */
typedef struct look {
  int64_t vocabulary; /* all tokens must be below it; 0 if the files are masks */
  const char *path;   /* path of the file that is being checked */
  double reported;    /* when progress was last logged */
} look;

/* Logs how much of the file is checked, at most once in a few seconds. */
static void log_progress(look *l, const ad_npy *npy, int64_t done) {
  enum { SECONDS = 5 };
  double now = ad_seconds();
  if (now - l->reported < SECONDS) return;
  l->reported = now;
  ad_log(AD_LOG_INFO, "addend checks every element of %s; %lld of %lld MiB are checked", l->path,
         (long long)(done * npy->width >> 20), (long long)(ad_npy_bytes(npy) >> 20));
}

/* Returns the index of the first element that is `bound` or more, or the number of elements if there is none. Reads
 * every page once. */
static int64_t first_from(look *l, const ad_npy *npy, uint32_t bound) {
  int64_t chunk = (1 << 26) / npy->width;
  ad_npy_read_ahead(npy);
  for (int64_t at = 0; at < npy->count; at += chunk) {
    int64_t count = npy->count - at < chunk ? npy->count - at : chunk;
    int64_t found = ad_npy_first_from(npy, at, count, bound);
    if (found < at + count) return found;
    log_progress(l, npy, found);
  }
  return npy->count;
}

/* Refuses ids of 16 bits if the vocabulary needs more bits. An id that was truncated to 16 bits is inside the
 * vocabulary, so checking the elements could not find it. */
static ad_status check_width(const char *path, const ad_npy *npy, int64_t vocabulary) {
  if (npy->width > 2 || vocabulary <= UINT16_MAX + 1) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the tokens are uint16, at most 65535, but the model's vocabulary is %lld, so larger ids may have "
                 "been cut to 16 bits. Save the ids of the tokenizer as numpy.uint32, or, if no id was ever above "
                 "65535, array.astype(numpy.uint32)",
                 path, (long long)vocabulary);
}

/* Returns the token as a negative number if its unsigned bits may be one from -100 (used in labels) to -1; else 0. */
static int64_t negative_of(const ad_npy *npy, uint32_t token) {
  enum { LEAST = -100 };
  int64_t negative = (int64_t)token - ((int64_t)1 << 8 * npy->width);
  return negative < LEAST ? 0 : negative;
}

/* Refuses a token id outside the vocabulary. The message says if the id may be a negative number; an id of 32 bits
 * certainly is one. */
static ad_status refuse_token(const look *l, const ad_npy *npy, int64_t index) {
  uint32_t token = ad_npy_at(npy, index);
  int64_t negative = negative_of(npy, token);
  char raise[160], sign[200] = "";
  snprintf(raise, sizeof raise, "encode the text with a tokenizer of at most %lld tokens, or raise model.vocabulary",
           (long long)l->vocabulary);
  if (negative)
    snprintf(sign, sizeof sign,
             "this number is %lld in unsigned bits; leave each token its id, and mark tokens that do not count by 0 in "
             "data.mask%s",
             (long long)negative, npy->width == 2 ? "; if the number is an id, " : "");
  return ad_fail(AD_INVALID,
                 "%s: the token at index %lld is %u, but the model's vocabulary is %lld, so tokens are 0 to %lld; %s%s",
                 l->path, (long long)index, token, (long long)l->vocabulary, (long long)l->vocabulary - 1, sign,
                 negative && npy->width > 2 ? "" : raise);
}

static ad_status check_tokens(look *l, const ad_npy *npy) {
  AD_TRY(check_width(l->path, npy, l->vocabulary));
  if (l->vocabulary > UINT32_MAX) return AD_OK;
  int64_t first = first_from(l, npy, (uint32_t)l->vocabulary);
  return first == npy->count ? AD_OK : refuse_token(l, npy, first);
}

static ad_status check_mask(look *l, const ad_npy *npy) {
  int64_t first = first_from(l, npy, 2);
  if (first == npy->count) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the element at index %lld is %u, but every element of a mask must be 1 (the token counts in the "
                 "loss) or 0 (the token does not count)",
                 l->path, (long long)first, ad_npy_at(npy, first));
}

static ad_status check_file(look *l) {
  ad_npy npy = {0};
  AD_NEED_IN(l->vocabulary ? "ad_token_files_check" : "ad_token_masks_check", "paths[i]", l->path);
  AD_TRY(ad_npy_open(l->path, l->vocabulary ? TOKEN_WIDTHS : MASK_WIDTHS, &npy));
  ad_status status = l->vocabulary ? check_tokens(l, &npy) : check_mask(l, &npy);
  ad_npy_close(&npy);
  return status;
}

static ad_status check_files(const char *const *paths, size_t count, int64_t vocabulary, size_t *at) {
  look l = {.vocabulary = vocabulary, .reported = ad_seconds()};
  for (; *at < count; ++*at) {
    l.path = paths[*at];
    AD_TRY(check_file(&l));
  }
  return AD_OK;
}

static ad_status check_vocabulary(int64_t vocabulary) {
  if (vocabulary > 0) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "model.vocabulary must be at least 1, but is %lld; set model.vocabulary to the number of the tokenizer's tokens",
      (long long)vocabulary);
}

ad_status ad_token_files_check(const char *const *paths, size_t count, int64_t vocabulary, size_t *at) {
  AD_NEED(at);
  if (count) AD_NEED(paths);
  AD_TRY(check_vocabulary(vocabulary));
  return check_files(paths, count, vocabulary, at);
}

ad_status ad_token_masks_check(const char *const *paths, size_t count, size_t *at) {
  AD_NEED(at);
  if (count) AD_NEED(paths);
  return check_files(paths, count, 0, at);
}

/* ---- drawing samples ---- */

static int64_t draw_window(const ad_text_data *text, const ad_text_part *part, uint64_t seed, uint64_t index) {
  uint64_t windows = (uint64_t)part->windows;
  uint64_t key = ad_random_bits(seed, part->stream, index / windows);
  return ad_permuted(key, part->windows, (int64_t)(index % windows));
}

static int64_t window_at(const ad_text_data *text, int64_t number) { return number; }

/* Returns the run that has this window: the last run that begins at the window or before it. */
static const ad_token_run *run_of(const ad_text_part *part, int64_t window) {
  size_t low = 0, high = part->run_count;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (part->runs[middle].first_window <= window)
      low = middle;
    else
      high = middle;
  }
  return &part->runs[low];
}

/* Copies the tokens at the wanted positions of the window that begins at token `first`. Returns AD_INVALID if a token
 * is outside the vocabulary. */
static ad_status fill_tokens(const ad_text_data *text, const ad_token_file *file, int64_t first,
                             const ad_wanted *positions, int32_t *tokens) {
  for (size_t i = 0; i < positions->count; i++) {
    ad_span span = positions->spans[i];
    for (int64_t at = first + span.first; at < first + span.first + span.count; at++) {
      uint32_t token = ad_npy_at(&file->tokens, at);
      if (token >= text->vocabulary)
        return ad_fail(AD_INVALID,
                       "%s: the token at index %lld is %u, but the model's vocabulary is %lld; save the file with "
                       "smaller tokens, or raise model.vocabulary",
                       file->path, (long long)at, token, (long long)text->vocabulary);
      *tokens++ = (int32_t)token;
    }
  }
  return AD_OK;
}

static int counts(const ad_token_file *file, int64_t at) { return !file->mask.data || ad_npy_at(&file->mask, at); }

static int64_t count_targets(const ad_token_file *file, int64_t first, int64_t valid, const ad_wanted *positions) {
  int64_t counted = 0;
  if (!file->mask.data) return ad_wanted_below(positions, valid);
  for (size_t i = 0; i < positions->count; i++) {
    ad_span span = positions->spans[i];
    for (int64_t at = span.first; at < span.first + span.count; at++)
      counted += at < valid && counts(file, first + at + 1);
  }
  return counted;
}

/* Fills the targets of a sample. The target of a position is the token after it, which may be in the next window of the
 * file. */
static ad_status fill_targets(const ad_text_data *text, const ad_token_file *file, int64_t first, int64_t valid,
                              const ad_wanted *positions, int32_t *targets) {
  AD_TRY(fill_tokens(text, file, first + 1, positions, targets));
  for (size_t i = 0; i < positions->count; i++) {
    ad_span span = positions->spans[i];
    for (int64_t at = span.first; at < span.first + span.count; at++, targets++)
      if (at >= valid || !counts(file, first + at + 1)) *targets = -1;
  }
  return AD_OK;
}

static ad_status read_window(const ad_text_data *text, const ad_text_part *part, int64_t place, int64_t valid,
                             const ad_wanted *positions, int32_t *tokens, int32_t *targets, int64_t *counted) {
  const ad_token_run *run = run_of(part, place);
  int64_t first = run->first + (place - run->first_window) * text->seq;
  *counted = count_targets(run->file, first, valid, positions);
  if (tokens) AD_TRY(fill_tokens(text, run->file, first, positions, tokens));
  return targets ? fill_targets(text, run->file, first, valid, positions, targets) : AD_OK;
}

/* Counts the tokens of all windows in the part and, for each file, its last target. */
static void count_values(const ad_text_data *text, const ad_text_part *part, int64_t *of_value) {
  for (size_t r = 0; r < part->run_count; r++) {
    const ad_token_run *run = &part->runs[r];
    int64_t end = r + 1 < part->run_count ? run[1].first_window : part->windows;
    int64_t last = run->first + (end - run->first_window) * text->seq;
    for (int64_t at = run->first; at <= last; at++) {
      uint32_t token = ad_npy_at(&run->file->tokens, at);
      if (token < text->vocabulary) of_value[token]++;
    }
  }
}

static void add_to_sum(const ad_npy *npy, uint64_t *sum) {
  if (!npy->data) return;
  *sum = ad_checksum(npy->data, (size_t)ad_npy_bytes(npy), *sum);
  ad_npy_forget(npy);
}

/* Makes the checksums when they are first needed, because this reads every file. A run without checkpoints never needs
 * them. */
static void checksums(ad_text_data *text) {
  for (size_t i = 0; i < text->file_count && !text->is_summed; i++) {
    add_to_sum(&text->files[i].tokens, &text->checksum);
    add_to_sum(&text->files[i].mask, &text->mask_checksum);
  }
  text->is_summed = 1;
}

static const ad_text_source source = {draw_window, window_at, read_window, count_values, checksums};

/* ---- opening token data ---- */

/* Adds to a part the windows of a file. A file that is shorter than a window adds none. */
static void add_run(ad_text_part *part, const ad_token_file *file, ad_span tokens, int64_t seq) {
  part->size += tokens.count;
  if (tokens.count <= seq) return;
  part->runs[part->run_count++] = (ad_token_run){file, tokens.first, part->windows};
  part->windows += (tokens.count - 1) / seq;
}

/* Divides each file between the training part and the validation part, which gets the file's end. */
static ad_status make_parts(ad_text_data *text, double validation) {
  static const char *const streams[] = {"tokens", "tokens held out"};
  for (int of = 0; of < 2; of++) {
    text->parts[of].stream = ad_random_stream(streams[of]);
    AD_TRY(ad_new(text->file_count, &text->parts[of].runs));
  }
  for (size_t i = 0; i < text->file_count; i++) {
    const ad_token_file *file = &text->files[i];
    int64_t kept = ad_validation_size(file->tokens.count, validation), trained_on = file->tokens.count - kept;
    add_run(&text->parts[AD_TRAINING_PART], file, (ad_span){0, trained_on}, text->seq);
    add_run(&text->parts[AD_VALIDATION_PART], file, (ad_span){trained_on, kept}, text->seq);
  }
  return AD_OK;
}

static ad_status check_part(const ad_text_data *text, ad_data_part of, const char *what) {
  if (text->parts[of].windows) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s are too few for one sample, because data.seq %lld needs %lld tokens in a row in one file; give "
                 "more tokens, or set a smaller data.seq",
                 what, (long long)text->seq, (long long)text->seq + 1);
}

static ad_status check_parts(const ad_text_data *text, double validation) {
  AD_TRY(check_part(text, AD_TRAINING_PART, validation > 0 ? "the tokens for training" : "the tokens"));
  return validation > 0 ? check_part(text, AD_VALIDATION_PART, "the tokens reserved for validation") : AD_OK;
}

static ad_status open_mask(const char *path, ad_token_file *file) {
  AD_TRY(ad_copy_string(path, &file->mask_path));
  AD_TRY(ad_npy_open(path, MASK_WIDTHS, &file->mask));
  if (file->mask.count == file->tokens.count) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: the mask has %lld element%s, but %s has %lld token%s; a mask must have one element for each token", path,
      (long long)file->mask.count, ad_plural(file->mask.count), file->path, (long long)file->tokens.count,
      ad_plural(file->tokens.count));
}

/* Maps all files of tokens and their masks, and divides the tokens into parts. */
static ad_status open_files(const ad_token_options *options, ad_text_data *text) {
  AD_TRY(ad_new(options->count, &text->files));
  text->file_count = options->count;
  for (size_t i = 0; i < options->count; i++) {
    ad_token_file *file = &text->files[i];
    AD_TRY(ad_copy_string(options->tokens[i], &file->path));
    AD_TRY(ad_npy_open(file->path, TOKEN_WIDTHS, &file->tokens));
    AD_TRY(check_width(file->path, &file->tokens, options->vocabulary));
    if (options->masks) AD_TRY(open_mask(options->masks[i], file));
    text->byte_count += ad_npy_bytes(&file->tokens);
  }
  AD_TRY(make_parts(text, options->validation));
  return check_parts(text, options->validation);
}

static ad_status take_options(const ad_token_options *given, ad_token_options *out) {
  AD_TRY(ad_options_take(out, sizeof *out, given, "ad_token_options"));
  if (!out->count) return ad_fail(AD_INVALID, "there is no file of tokens; name at least one in data.tokens");
  AD_NEED_IN("ad_text_data_open_tokens", "options->tokens", out->tokens);
  AD_TRY(check_vocabulary(out->vocabulary));
  return ad_text_check_numbers(out->seq, out->validation);
}

ad_status ad_text_data_open_tokens(const ad_token_options *given, ad_text_data **out) {
  AD_NEED(given, out);
  ad_token_options options;
  ad_text_data *text;
  AD_TRY(take_options(given, &options));
  AD_TRY(ad_new(1, &text));
  text->source = &source;
  text->seq = options.seq;
  text->vocabulary = options.vocabulary;
  ad_status status = open_files(&options, text);
  if (status) return ad_text_data_close(text), status;
  *out = text;
  return AD_OK;
}

void ad_token_files_close(ad_text_data *text) {
  for (size_t i = 0; text->files && i < text->file_count; i++) {
    ad_npy_close(&text->files[i].tokens);
    ad_npy_close(&text->files[i].mask);
    ad_release(text->files[i].path);
    ad_release(text->files[i].mask_path);
  }
  for (int of = 0; of < 2; of++) ad_release(text->parts[of].runs);
  ad_release(text->files);
}
