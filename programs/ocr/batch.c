/* Draws lines of text as patches, tokens and targets. Each rank draws only lines of which it has a part. */
#include "ocr/batch.h"

#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "addend/data.h"
#include "ocr/ocr.h"
#include "ocr/keys.h"

enum { NEWLINE = '\n', IMAGE = 0 };

/* ---- layouts of the batch's arrays ---- */

static ad_layout patches_layout(const ad_mesh *encoder) {
  ad_layout layout = ad_ocr_images_layout(encoder);
  ad_layout_set(&layout, ad_mesh_named(encoder) & AD_AXES(AD_CP), AD_S(1));
  return layout;
}

static ad_layout targets_layout(const ad_mesh *model) {
  ad_layout layout = ad_ocr_placed_layout(model);
  ad_layout_set(&layout, ad_mesh_named(model) & AD_AXES(AD_CP), AD_S_ZIGZAG(1));
  return layout;
}

ad_layout ad_ocr_count_layout(const ad_mesh *model) {
  ad_layout layout = targets_layout(model);
  ad_layout_set(&layout, ad_layout_sharded_axes(&layout), AD_P);
  return layout;
}

/* ---- describing the batch, without memory ---- */

static ad_ocr_microbatch describe_microbatch(const ad_ocr_batch *batch, const ad_layout *patches,
                                             const ad_layout *tokens, const ad_layout *targets, int64_t m) {
  const ad_program_setting *s = &batch->setting;
  int64_t rank = ad_comm_rank(s->comm), samples = ad_cut(s->global_batch, m, s->microbatches).count;
  ad_shape pictures = {3, {samples, ad_ocr_patches(batch->options), ad_ocr_patch_pixels(batch->options)}};
  ad_shape lines = {2, {samples, batch->options->decoder.data.seq}};
  ad_ocr_microbatch one = {.pictures = ad_batch_rows(patches, rank, s->global_batch, s->microbatches, m),
                           .lines = ad_batch_rows(tokens, rank, s->global_batch, s->microbatches, m),
                           .patches = ad_array_describe(s->comm, AD_F32, &pictures, patches),
                           .tokens = ad_array_describe(s->comm, AD_I32, &lines, tokens),
                           .targets = ad_array_describe(s->comm, AD_I32, &lines, targets)};
  one.wide_patches = one.patches;
  one.wide_patches.dtype = AD_F64;
  return one;
}

ad_status ad_ocr_batch_create(const ad_program_setting *setting, const ad_ocr_options *options, const ad_mesh *encoder,
                              const ad_mesh *model, ad_ocr_batch *out) {
  *out = (ad_ocr_batch){.options = options, .setting = *setting, .count = (size_t)setting->microbatches};
  out->setting.meshes = NULL;
  ad_layout patches = patches_layout(encoder), tokens = ad_ocr_placed_layout(model), targets = targets_layout(model);
  AD_TRY(ad_new(out->count, &out->microbatches));
  for (size_t m = 0; m < out->count; m++)
    out->microbatches[m] = describe_microbatch(out, &patches, &tokens, &targets, (int64_t)m);
  return AD_OK;
}

void ad_ocr_batch_destroy(ad_ocr_batch *batch) {
  if (batch->lines) ad_line_data_close(batch->lines);
  ad_release(batch->microbatches);
  ad_release(batch->memory);
  ad_release(batch->characters);
  ad_release(batch->picture);
}

/* ---- memory of the batch ---- */

static const size_t arrays_of_microbatch = 4;

static ad_array *array_of(ad_ocr_microbatch *one, size_t i) {
  ad_array *arrays[] = {&one->patches, &one->tokens, &one->targets, &one->wide_patches};
  return arrays[i];
}

static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; } /* rounded up to whole cache lines */

static size_t memory_of(const ad_ocr_batch *batch) {
  size_t bytes = 0;
  for (size_t i = 0; i < batch->count * arrays_of_microbatch; i++)
    bytes += padded(ad_array_bytes(array_of(&batch->microbatches[i / arrays_of_microbatch], i % arrays_of_microbatch)));
  return bytes;
}

static ad_status take_memory(ad_ocr_batch *batch) {
  char *at;
  AD_TRY(ad_new(memory_of(batch), &at));
  batch->memory = at;
  for (size_t i = 0; i < batch->count * arrays_of_microbatch; i++) {
    ad_array *array = array_of(&batch->microbatches[i / arrays_of_microbatch], i % arrays_of_microbatch);
    array->data = at;
    at += padded(ad_array_bytes(array));
  }
  AD_TRY(ad_new((size_t)batch->options->lines.chars, &batch->characters));
  return ad_new((size_t)(batch->options->lines.height * batch->options->lines.width), &batch->picture);
}

static ad_status measure_text(ad_ocr_batch *batch) {
  const ad_line_options *lines = &batch->options->lines;
  ad_text_data *text;
  AD_TRY(ad_text_data_open_unread((const char *const *)lines->text, lines->text_count, lines->chars, lines->validation,
                                  &text));
  batch->text_bytes = (size_t)ad_text_data_bytes(text);
  ad_text_data_close(text);
  return AD_OK;
}

ad_status ad_ocr_batch_open(ad_ocr_batch *batch) {
  if (ad_comm_is_dry(batch->setting.comm)) return measure_text(batch);
  AD_TRY(take_memory(batch));
  AD_TRY(ad_line_data_open(&batch->options->lines, &batch->lines));
  batch->text_bytes = (size_t)ad_line_data_bytes(batch->lines);
  return AD_OK;
}

/* ---- reading a batch ---- */

/* Writes this rank's patches of the picture that was drawn last into row `row` of this rank's part. */
static void put_patches(const ad_ocr_batch *batch, ad_ocr_microbatch *one, int64_t row) {
  int64_t patch = batch->options->patch, height = batch->options->lines.height, width = batch->options->lines.width;
  int64_t count = one->patches.local.dim[1], pixels = one->patches.local.dim[2];
  ad_span span = {0, 0};
  ad_layout_spans(&one->patches.layout, 1, one->patches.shape.dim[1], ad_comm_rank(batch->setting.comm), &span, 1);
  float *to = (float *)one->patches.data + row * count * pixels;
  double *wide = (double *)one->wide_patches.data + row * count * pixels;
  for (int64_t i = 0; i < count; i++)
    for (int64_t y = 0; y < height; y++)
      for (int64_t x = 0; x < patch; x++) *wide++ = *to++ = batch->picture[y * width + (span.first + i) * patch + x];
}

/* Returns the token at a position of the sequence: 0 where an image's embedding replaces the token's, else a character
 * or a newline. */
static int32_t token_at(const ad_ocr_batch *batch, int64_t position, int64_t characters) {
  int64_t at = position - ad_ocr_patches(batch->options);
  if (at < 0) return IMAGE;
  return at < characters ? batch->characters[at] : NEWLINE;
}

/* Returns the token that the position should predict, or -1 if the position's prediction does not count. */
static int32_t target_at(const ad_ocr_batch *batch, int64_t position, int64_t characters) {
  int64_t next = position + 1 - ad_ocr_patches(batch->options);
  if (next < 0 || next > characters) return -1;
  return next < characters ? batch->characters[next] : NEWLINE;
}

enum { SPANS = 8 };

static int64_t put_line(const ad_ocr_batch *batch, ad_ocr_microbatch *one, int64_t row, int64_t characters,
                        int counts) {
  int64_t seq = one->tokens.shape.dim[1], counted = 0;
  int32_t *tokens = (int32_t *)one->tokens.data + row * seq;
  int32_t *targets = (int32_t *)one->targets.data + row * one->targets.local.dim[1];
  ad_span spans[SPANS];
  int count = ad_layout_spans(&one->targets.layout, 1, seq, ad_comm_rank(batch->setting.comm), spans, SPANS);
  for (int64_t i = 0; i < seq; i++) tokens[i] = token_at(batch, i, characters);
  for (int s = 0; s < count; s++) {
    for (int64_t i = spans[s].first; i < spans[s].first + spans[s].count; i++) {
      *targets = counts ? target_at(batch, i, characters) : -1;
      counted += *targets++ >= 0;
    }
  }
  return counted;
}

static int has_row(ad_span span, int64_t row) { return row >= span.first && row < span.first + span.count; }

/* Draws line `index`. Lines of the validation set do not depend on the run's seed: they are drawn with seed 0. */
ad_status ad_ocr_batch_draw(ad_ocr_batch *batch, ad_data_split validation, int64_t index, ad_line *out) {
  uint64_t seed = validation == AD_VALIDATION_SET ? 0 : batch->setting.seed;
  return ad_line_data_draw(batch->lines, seed, validation != AD_TRAINED_ON ? AD_VALIDATION_PART : AD_TRAINING_PART,
                           (uint64_t)index, out, batch->characters, batch->picture);
}

/* Draws each line of a microbatch once, and fills the rows of both modules from it. */
static ad_status read_microbatch(ad_ocr_batch *batch, ad_ocr_microbatch *one, int64_t step, ad_data_split validation,
                                 int64_t *counted) {
  ad_span lines = one->lines;
  int64_t global_batch = batch->setting.global_batch;
  *counted = 0;
  for (int64_t row = 0; row < global_batch; row++) {
    ad_line line;
    if (!has_row(one->pictures, row) && !has_row(lines, row)) continue;
    int64_t index = step * global_batch + row;
    int counts = validation != AD_VALIDATION_SET || index < batch->setting.evaluated;
    AD_TRY(ad_ocr_batch_draw(batch, validation, index, &line));
    if (has_row(one->pictures, row)) put_patches(batch, one, row - one->pictures.first);
    if (has_row(lines, row)) *counted += put_line(batch, one, row - lines.first, line.count, counts);
  }
  return AD_OK;
}

/* Returns the most tokens that can count in a microbatch. Backend dry uses this number, because it draws no lines. */
static int64_t most_counted(const ad_ocr_batch *batch, const ad_ocr_microbatch *one) {
  return one->lines.count * (batch->options->lines.chars + 1);
}

ad_status ad_ocr_batch_read(ad_ocr_batch *batch, int64_t step, ad_data_split validation, int64_t *counted) {
  for (size_t m = 0; m < batch->count; m++) {
    if (ad_comm_is_dry(batch->setting.comm))
      counted[m] = most_counted(batch, &batch->microbatches[m]);
    else
      AD_TRY(read_microbatch(batch, &batch->microbatches[m], step, validation, &counted[m]));
  }
  return AD_OK;
}

const ad_array *ad_ocr_batch_array(const ad_ocr_batch *batch, size_t index, char *name, size_t size) {
  static const char *const names[] = {"patches", "tokens", "targets"};
  if (index / 3 >= batch->count) return NULL;
  if (size) snprintf(name, size, "microbatch.%zu.%s", index / 3, names[index % 3]);
  return array_of(&batch->microbatches[index / 3], index % 3);
}

size_t ad_ocr_batch_bytes(const ad_ocr_batch *batch) { return memory_of(batch) + batch->text_bytes; }

const char *ad_ocr_batch_content(const ad_ocr_batch *batch, size_t index, char *buffer, size_t size) {
  static const char *const keys[] = {"data.text", "data.fonts"};
  if (index > 1) return NULL;
  uint64_t (*checksum)(const ad_line_data *) = index ? ad_line_data_font_checksum : ad_line_data_checksum;
  snprintf(buffer, size, "xxh64 %016llx", batch->lines ? (unsigned long long)checksum(batch->lines) : 0);
  return keys[index];
}
