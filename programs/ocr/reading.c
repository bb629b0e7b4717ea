/* Reads validation lines character by character: each forward pass predicts the next character of every line. */
#include "ocr/reading.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "addend/helpers.h"
#include "addend/data.h"
#include "ocr/ocr.h"
#include "ocr/keys.h"

enum { SAMPLES = 24, NEWLINE = '\n', CHARS_MAX = 1 << 12 };

/* One batch of the validation set's lines. Every rank has all of them. */
typedef struct reading {
  const ad_ocr_reader *reader;
  int64_t lines, chars, pixels;
  int64_t wanted;        /* how many lines of the batch are read, from its first line on */
  int64_t passes, all;   /* forward passes made so far, and those of the complete reading */
  uint8_t *truth, *read; /* [lines, chars] each: the true characters, and the characters that were read */
  int64_t *length;       /* [lines]: the number of characters of each line's true text */
  size_t *font;
  float *pictures; /* [lines, pixels] */
  ad_array logits; /* the logits of one microbatch, gathered in full */
} reading;

/* The edits and the true characters of all lines compared so far. */
typedef struct counters {
  double edits, characters;
} counters;

static double rate_of(counters t) { return t.characters > 0 ? t.edits / t.characters : 0; }

/* ---- counting edits between two texts ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns the Levenshtein distance (1966) of two strings, computed row by row. */
static int64_t edits_between(const uint8_t *a, int64_t n, const uint8_t *b, int64_t m) {
  int64_t row[CHARS_MAX + 1] = {0};
  for (int64_t j = 0; j <= m; j++) row[j] = j;
  for (int64_t i = 1; i <= n; i++) {
    int64_t diagonal = row[0];
    row[0] = i;
    for (int64_t j = 1; j <= m; j++) {
      int64_t kept = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = least(kept, least(row[j], row[j - 1]) + 1);
    }
  }
  return row[m];
}

static int64_t read_length(const reading *r, int64_t line) {
  const uint8_t *end = memchr(r->read + line * r->chars, NEWLINE, (size_t)r->chars);
  return end ? end - (r->read + line * r->chars) : r->chars;
}

static void count_line(const reading *r, int64_t line, counters *to) {
  const uint8_t *truth = r->truth + line * r->chars, *read = r->read + line * r->chars;
  to->edits += (double)edits_between(truth, r->length[line], read, read_length(r, line));
  to->characters += (double)r->length[line];
}

/* ---- reading one batch of lines ---- */

static int64_t largest_microbatch(const ad_ocr_batch *batch) {
  int64_t most = 0;
  for (size_t m = 0; m < batch->count; m++)
    if (batch->microbatches[m].tokens.shape.dim[0] > most) most = batch->microbatches[m].tokens.shape.dim[0];
  return most;
}

static ad_status open_reading(const ad_ocr_reader *reader, reading *r) {
  const ad_ocr_options *options = reader->batch->options;
  *r = (reading){.reader = reader,
                 .lines = reader->batch->setting.global_batch,
                 .chars = options->lines.chars,
                 .pixels = options->lines.height * options->lines.width};
  size_t lines = (size_t)r->lines, chars = (size_t)r->chars;
  AD_TRY(ad_new(lines * chars, &r->truth));
  AD_TRY(ad_new(lines * chars, &r->read));
  AD_TRY(ad_new(lines, &r->length));
  AD_TRY(ad_new(lines, &r->font));
  AD_TRY(ad_new(lines * (size_t)r->pixels, &r->pictures));
  return ad_new((size_t)(largest_microbatch(reader->batch) * options->decoder.data.seq) * AD_VOCABULARY_BYTES,
                (double **)&r->logits.data);
}

static void close_reading(reading *r) {
  ad_release(r->truth);
  ad_release(r->read);
  ad_release(r->length);
  ad_release(r->font);
  ad_release(r->pictures);
  ad_release(r->logits.data);
}

static ad_status draw_lines(reading *r, int64_t step) {
  ad_ocr_batch *batch = r->reader->batch;
  for (int64_t i = 0; i < r->lines; i++) {
    ad_line line;
    AD_TRY(ad_ocr_batch_draw(batch, AD_VALIDATION_SET, step * r->lines + i, &line));
    memcpy(r->truth + i * r->chars, batch->characters, (size_t)r->chars);
    memcpy(r->pictures + i * r->pixels, batch->picture, (size_t)r->pixels * sizeof *r->pictures);
    r->length[i] = line.count;
    r->font[i] = line.font;
  }
  return AD_OK;
}

/* Returns the character with the largest logit; of equal logits, the lowest character. */
static uint8_t best_at(const reading *r, int64_t sample, int64_t position) {
  int64_t seq = r->logits.shape.dim[1];
  size_t first = (size_t)((sample * seq + position) * AD_VOCABULARY_BYTES), best = 0;
  for (size_t i = 1; i < AD_VOCABULARY_BYTES; i++)
    if (ad_array_get(&r->logits, first + i) > ad_array_get(&r->logits, first + best)) best = i;
  return (uint8_t)best;
}

/* Writes the characters that were read at position `at` of the microbatch's lines into the tokens, for the next forward
 * pass. */
static void put_characters(const reading *r, ad_ocr_microbatch *one, int64_t first_line, int64_t at) {
  int64_t seq = one->tokens.shape.dim[1], position = ad_ocr_patches(r->reader->batch->options) + at;
  for (int64_t i = 0; i < one->lines.count; i++)
    ((int32_t *)one->tokens.data)[i * seq + position] = r->read[(one->lines.first + i - first_line) * r->chars + at];
}

/* Returns the index, in the batch, of the first line of microbatch m. */
static int64_t first_line_of(const ad_ocr_batch *batch, size_t m) {
  return ad_cut(batch->setting.global_batch, (int64_t)m, (int64_t)batch->count).first;
}

static ad_status read_character(reading *r, size_t m, int64_t at) {
  const ad_ocr_reader *by = r->reader;
  ad_ocr_microbatch *one = &by->batch->microbatches[m];
  int64_t position = ad_ocr_patches(by->batch->options) + at - 1, first = first_line_of(by->batch, m);
  AD_TRY(by->forward->run(by->forward->context, m));
  AD_TRY(ad_array_full_for(by->comm, &by->forward->everyone, by->mesh, by->logits(by->own), &r->logits));
  for (int64_t i = 0; i < one->tokens.shape.dim[0]; i++) r->read[(first + i) * r->chars + at] = best_at(r, i, position);
  put_characters(r, one, 0, at);
  if (by->forward->report_progress && !ad_comm_rank(by->comm))
    by->forward->report_progress(by->forward->context, "read lines", ++r->passes, r->all);
  return AD_OK;
}

/* Replaces all characters in the tokens of a microbatch by newlines, so that the model does not see the true text. */
static void forget_characters(const reading *r, ad_ocr_microbatch *one) {
  int64_t seq = one->tokens.shape.dim[1], first = ad_ocr_patches(r->reader->batch->options);
  for (int64_t i = 0; i < one->lines.count; i++)
    for (int64_t p = first; p < seq; p++) ((int32_t *)one->tokens.data)[i * seq + p] = NEWLINE;
}

static ad_status read_batch(reading *r) {
  ad_ocr_batch *batch = r->reader->batch;
  for (size_t m = 0; m < batch->count && first_line_of(batch, m) < r->wanted; m++) {
    forget_characters(r, &batch->microbatches[m]);
    for (int64_t at = 0; at < r->chars; at++) AD_TRY(read_character(r, m, at));
  }
  return AD_OK;
}

static void blank_pictures(ad_ocr_batch *batch) {
  for (size_t m = 0; m < batch->count; m++) {
    ad_ocr_microbatch *one = &batch->microbatches[m];
    memset(one->patches.data, 0, ad_array_bytes(&one->patches));
    memset(one->wide_patches.data, 0, ad_array_bytes(&one->wide_patches));
  }
}

/* ---- writing the result's document ---- */

static char *base64_of(const float *picture, int64_t pixels) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char *text = malloc((size_t)((pixels + 2) / 3 * 4 + 1)), *to = text;
  for (int64_t i = 0; text && i < pixels; i += 3) {
    uint32_t bits = 0;
    for (int64_t k = 0; k < 3; k++) {
      float ink = i + k < pixels ? picture[i + k] : 0;
      bits = bits << 8 | (uint32_t)(255 * (ink < 0 ? 0 : ink > 1 ? 1 : ink) + 0.5f);
    }
    for (int k = 0; k < 4; k++) *to++ = i + k > pixels ? '=' : digits[bits >> (18 - 6 * k) & 63];
  }
  if (text) *to = 0;
  return text;
}

static json_t *text_of(const uint8_t *characters, int64_t count) {
  char text[CHARS_MAX + 1];
  for (int64_t i = 0; i < count; i++) text[i] = characters[i] >= ' ' && characters[i] < 127 ? (char)characters[i] : '?';
  return json_stringn(text, (size_t)count);
}

static void add_sample(const reading *r, int64_t line, json_t *samples) {
  const ad_line_options *options = &r->reader->batch->options->lines;
  char *pixels = base64_of(r->pictures + line * r->pixels, r->pixels);
  json_array_append_new(
      samples, json_pack("{s:o, s:o, s:I, s:I, s:s, s:b}", "text", text_of(r->truth + line * r->chars, r->length[line]),
                         "read", text_of(r->read + line * r->chars, read_length(r, line)), "width",
                         (json_int_t)options->width, "height", (json_int_t)options->height, "pixels",
                         pixels ? pixels : "", "validation_font", (int)(r->font[line] >= options->font_count)));
  free(pixels);
}

/* The results of all validation lines that are read. */
typedef struct result {
  counters seen, blank, other_font;
  int64_t lines;
  json_t *samples;
} result;

static void count_batch(const reading *r, int is_blank, result *to) {
  size_t fonts = r->reader->batch->options->lines.font_count;
  for (int64_t i = 0; i < r->wanted; i++) {
    counters *of = is_blank ? &to->blank : r->font[i] >= fonts ? &to->other_font : &to->seen;
    count_line(r, i, of);
    if (is_blank) continue;
    to->lines++;
    if (json_array_size(to->samples) < SAMPLES) add_sample(r, i, to->samples);
  }
}

static int64_t microbatches_of(const ad_ocr_batch *batch, int64_t lines) {
  int64_t count = 0;
  for (size_t m = 0; m < batch->count; m++) count += first_line_of(batch, m) < lines;
  return count;
}

static int64_t passes_for(const reading *r, int64_t lines) {
  const ad_ocr_batch *batch = r->reader->batch;
  int64_t microbatches = lines / r->lines * microbatches_of(batch, r->lines) + microbatches_of(batch, lines % r->lines);
  return 2 * r->chars * microbatches;
}

static ad_status read_step(reading *r, int64_t step, int64_t *counted, result *to) {
  AD_TRY(draw_lines(r, step));
  for (int blank = 0; blank < 2; blank++) {
    AD_TRY(ad_ocr_batch_read(r->reader->batch, step, AD_VALIDATION_SET, counted));
    if (blank) blank_pictures(r->reader->batch);
    AD_TRY(read_batch(r));
    count_batch(r, blank, to);
  }
  return AD_OK;
}

static ad_status read_all(reading *r, result *to) {
  int64_t *counted, lines = r->reader->batch->options->read;
  AD_TRY(ad_new(r->reader->batch->count, &counted));
  ad_status status = AD_OK;
  r->all = passes_for(r, lines);
  for (int64_t step = 0; step * r->lines < lines && !status; step++) {
    r->wanted = least(r->lines, lines - step * r->lines);
    status = read_step(r, step, counted, to);
  }
  ad_release(counted);
  return status;
}

static char *document_of(const result *of) {
  json_t *font = of->other_font.characters > 0 ? json_real(rate_of(of->other_font)) : json_null();
  json_t *document = json_pack("{s:I, s:f, s:f, s:f, s:o, s:O}", "lines", (json_int_t)of->lines, "characters",
                               of->seen.characters, "character_error_rate", rate_of(of->seen), "blank",
                               rate_of(of->blank), "validation_font", font, "samples", of->samples);
  char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
  json_decref(document);
  return text;
}

ad_status ad_ocr_read_lines(const ad_ocr_reader *reader, char **out) {
  reading r;
  result of = {.samples = json_array()};
  ad_status status = of.samples ? open_reading(reader, &r) : AD_MEMORY;
  if (!status) status = read_all(&r, &of);
  if (!status && ad_comm_rank(reader->comm) == 0) {
    *out = document_of(&of);
    if (!*out) status = AD_MEMORY;
  }
  if (of.samples) close_reading(&r);
  json_decref(of.samples);
  return status;
}
