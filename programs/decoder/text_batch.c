/* Reads a rank's share of a step's batch of text or tokens. train/data chooses which sample is in which row. */
#include "decoder/text_batch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "addend/helpers.h"
#include "addend/data.h"
#include "decoder/text_keys.h"

ad_layout ad_text_batch_layout(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, ad_mesh_named(mesh), AD_I);
  ad_layout_set(&layout, AD_AXES(AD_DP_REPLICATE), AD_S(0));
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  ad_layout_set(&layout, ad_mesh_named(mesh) & AD_AXES(AD_CP), AD_S_ZIGZAG(1));
  return layout;
}

ad_layout ad_text_count_layout(const ad_mesh *mesh) {
  ad_layout layout = ad_text_batch_layout(mesh);
  ad_layout_set(&layout, ad_layout_sharded_axes(&layout), AD_P);
  return layout;
}

static ad_text_microbatch describe_microbatch(const ad_program_setting *setting, const ad_text_layouts *layouts,
                                              int64_t seq, int64_t m) {
  ad_shape shape = {2, {ad_cut(setting->global_batch, m, setting->microbatches).count, seq}};
  int64_t rank = ad_comm_rank(setting->comm);
  return (ad_text_microbatch){
      .rows = ad_batch_rows(&layouts->rows, rank, setting->global_batch, setting->microbatches, m),
      .tokens = ad_array_describe(setting->comm, AD_I32, &shape, &layouts->tokens),
      .targets = ad_array_describe(setting->comm, AD_I32, &shape, &layouts->targets)};
}

static void describe_all(const ad_program_setting *setting, const ad_text_layouts *layouts, ad_text_batch *batch) {
  for (size_t m = 0; m < batch->count; m++)
    batch->microbatches[m] = describe_microbatch(setting, layouts, batch->text->seq, (int64_t)m);
}

/* Returns 1 if this rank reads this array (the tokens or the targets). */
static int reads(const ad_text_batch *batch, const ad_array *array) {
  return ad_mesh_has_rank(array->layout.mesh, ad_comm_rank(batch->comm));
}

/* Returns the i-th of the microbatches that this rank runs. */
static ad_text_microbatch *own_microbatch(const ad_text_batch *batch, size_t i) {
  return &batch->microbatches[batch->own[i]];
}

static void place(ad_text_batch *batch) {
  int32_t *next = batch->memory;
  for (size_t i = 0; i < batch->own_count; i++) {
    ad_text_microbatch *microbatch = own_microbatch(batch, i);
    ad_array *arrays[] = {&microbatch->tokens, &microbatch->targets};
    for (int k = 0; k < 2; k++) {
      if (reads(batch, arrays[k])) arrays[k]->data = next;
      next += ad_array_numel(arrays[k]);
    }
  }
}

/* Lists the positions of the sequence that this rank reads. */
static ad_status take_positions(const ad_program_setting *setting, const ad_layout *layout, ad_text_batch *batch) {
  int64_t rank = ad_comm_rank(setting->comm), seq = batch->text->seq;
  int count = ad_layout_spans(layout, 1, seq, rank, NULL, 0);
  // One entry too many, because an empty list may not be NULL, which would mean all positions.
  AD_TRY(ad_new((size_t)count + 1, &batch->positions));
  ad_layout_spans(layout, 1, seq, rank, batch->positions, count);
  batch->options.spans = batch->positions;
  batch->options.span_count = (size_t)count;
  return AD_OK;
}

ad_status ad_text_batch_create(const ad_program_setting *setting, const ad_text_layouts *layouts,
                               const ad_text_options *text, int64_t vocabulary, ad_text_batch *out) {
  ad_text_batch batch = {.comm = setting->comm,
                         .text = text,
                         .vocabulary = vocabulary,
                         .options = {.size = sizeof(ad_batch_options),
                                     .seed = setting->seed,
                                     .global_batch = setting->global_batch,
                                     .valid = text->valid,
                                     .valid_count = text->valid_count},
                         .count = (size_t)setting->microbatches,
                         .own = setting->own,
                         .own_count = setting->own_count,
                         .is_of_leaves = setting->leaves > 0,
                         .evaluated = setting->evaluated};
  ad_status status = take_positions(setting, &layouts->rows, &batch);
  if (!status) status = ad_new(batch.count, &batch.microbatches);
  if (!status) describe_all(setting, layouts, &batch);
  if (status)
    ad_text_batch_destroy(&batch);
  else
    *out = batch;
  return status;
}

void ad_text_batch_destroy(ad_text_batch *batch) {
  ad_text_data_close(batch->data);
  ad_release(batch->microbatches);
  ad_release(batch->positions);
  ad_release(batch->tokenizer);
  ad_release(batch->memory);
  *batch = (ad_text_batch){0};
}

/* Makes the path of "tokenizer.json" in the folder of the first file of tokens; the file need not exist. *out is NULL
 * if there are no files of tokens. Release with ad_release. */
static ad_status name_tokenizer(const ad_text_options *text, char **out) {
  static const char name[] = "tokenizer.json";
  *out = NULL;
  if (!text->token_count) return AD_OK;
  const char *file = text->tokens[0], *slash = strrchr(file, '/');
  size_t folder = slash ? (size_t)(slash - file) + 1 : 0;
  AD_TRY(ad_new(folder + sizeof name, out));
  memcpy(*out, file, folder);
  memcpy(*out + folder, name, sizeof name);
  return AD_OK;
}

static ad_status find_tokenizer(ad_text_batch *batch) {
  AD_TRY(name_tokenizer(batch->text, &batch->tokenizer));
  if (!batch->tokenizer || !access(batch->tokenizer, R_OK)) return AD_OK;
  ad_release(batch->tokenizer);
  batch->tokenizer = NULL;
  return AD_OK;
}

ad_status ad_text_batch_open(ad_text_batch *batch) {
  int is_dry = ad_comm_is_dry(batch->comm);
  size_t numel = 0;
  for (size_t i = 0; i < batch->own_count; i++)
    numel += ad_array_numel(&own_microbatch(batch, i)->tokens) + ad_array_numel(&own_microbatch(batch, i)->targets);
  if (!is_dry) AD_TRY(ad_new(numel, &batch->memory));
  if (!is_dry) place(batch);
  AD_TRY(find_tokenizer(batch));
  return ad_text_open(batch->text, batch->vocabulary, is_dry, &batch->data);
}

int64_t ad_text_batch_validation(const ad_text_batch *batch) {
  return ad_text_data_samples(batch->data, AD_VALIDATION_PART);
}

static int64_t set_of(const ad_text_batch *batch) {
  int64_t all = ad_text_batch_validation(batch);
  return batch->evaluated < all ? batch->evaluated : all;
}

ad_status ad_text_batch_read(ad_text_batch *batch, int64_t step, ad_data_split validation, int64_t *counted) {
  if (validation && !(batch->text->validation > 0))
    return ad_fail(AD_INVALID, "the training data has no validation part; set data.validation above 0");
  batch->options.validation = validation != AD_TRAINED_ON;
  batch->options.set = validation == AD_VALIDATION_SET ? set_of(batch) : 0;
  memset(counted, 0, batch->count * sizeof *counted);
  for (size_t i = 0; i < batch->own_count; i++) {
    ad_text_microbatch *microbatch = own_microbatch(batch, i);
    AD_TRY(ad_text_data_rows(batch->data, &batch->options, step, microbatch->rows.first, microbatch->rows.count,
                             microbatch->tokens.data, microbatch->targets.data, &counted[batch->own[i]]));
  }
  return AD_OK;
}

const ad_array *ad_text_batch_array(const ad_text_batch *batch, size_t index, char *name, size_t size) {
  if (index / 2 >= batch->own_count) return NULL;
  ad_text_microbatch *microbatch = own_microbatch(batch, index / 2);
  if (size)
    snprintf(name, size, "microbatch.%lld.%s", (long long)batch->own[index / 2], index % 2 ? "targets" : "tokens");
  return index % 2 ? &microbatch->targets : &microbatch->tokens;
}

/* Returns the bytes of text and batch on this rank. Mapped files of tokens are not counted: the system can free their
 * pages when it needs memory. */
size_t ad_text_batch_bytes(const ad_text_batch *batch) {
  size_t bytes = batch->text->token_count ? 0 : (size_t)ad_text_data_bytes(batch->data);
  for (size_t i = 0; i < batch->own_count; i++)
    bytes += ad_array_bytes(&own_microbatch(batch, i)->tokens) + ad_array_bytes(&own_microbatch(batch, i)->targets);
  return bytes;
}

const char *ad_text_batch_content(const ad_text_batch *batch, size_t index, char *buffer, size_t size) {
  static const char *const keys[] = {"data.tokens", "data.mask"};
  int has_tokens = batch->text->token_count > 0;
  if (index > (has_tokens && batch->text->mask_count)) return NULL;
  uint64_t sum = index ? ad_text_data_mask_checksum(batch->data) : ad_text_data_checksum(batch->data);
  int64_t bytes = index ? ad_text_data_tokens(batch->data) : ad_text_data_bytes(batch->data);
  snprintf(buffer, size, "%lld bytes, xxh64 %016llx", (long long)bytes, (unsigned long long)sum);
  return has_tokens ? keys[index] : "data.text";
}

static const char *plural(long long count) { return count == 1 ? "" : "s"; }

static void print_data(const ad_text_batch *batch, char *buffer, size_t size) {
  long long tokens = (long long)ad_text_data_tokens(batch->data), files = (long long)batch->text->token_count;
  long long samples = (long long)ad_text_data_samples(batch->data, AD_TRAINING_PART);
  if (files)
    snprintf(buffer, size, "%lld token%s in %lld file%s, %lld sample%s an epoch", tokens, plural(tokens), files,
             plural(files), samples, plural(samples));
  else
    snprintf(buffer, size, "%lld bytes", (long long)ad_text_data_bytes(batch->data));
}

static void print_batch(const ad_text_batch *batch, char *buffer, size_t size) {
  long long samples = (long long)batch->options.global_batch, tokens = (long long)batch->text->seq;
  const char *one = batch->is_of_leaves ? "leaf" : "microbatch",
             *many = batch->is_of_leaves ? "leaves" : "microbatches";
  snprintf(buffer, size, "%lld sample%s of %lld token%s in %zu %s", samples, plural(samples), tokens, plural(tokens),
           batch->count, batch->count == 1 ? one : many);
}

const char *ad_text_batch_fact(const ad_text_batch *batch, size_t index, char *buffer, size_t size) {
  if (index > 1) return NULL;
  if (index)
    print_batch(batch, buffer, size);
  else
    print_data(batch, buffer, size);
  return index ? "batch" : batch->text->token_count ? "tokens" : "text";
}

const char *ad_text_batch_companion(const ad_text_batch *batch, size_t index) {
  return index ? NULL : batch->tokenizer;
}
