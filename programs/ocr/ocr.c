/* The program ocr: an encoder of pictures and a decoder of text, each on a mesh of its own, joined by a bridge. keys.c
 * has its recipe keys. */
#include <math.h>
#include <stdio.h>
#include "ocr/ocr.h"
#include "addend/helpers.h"
#include "addend/data.h"
#include "decoder/encoder.h"
#include "decoder/mlp_branch.h"
#include "ocr/batch.h"
#include "ocr/keys.h"
#include "ocr/reading.h"

enum { ENCODER, MODEL };

typedef struct ocr {
  const ad_ocr_options *options;
  int64_t global_batch;
  ad_encoder encoder;
  ad_decoder decoder;
  ad_mlp_branch mlp;
  ad_bridge *bridge;
  ad_ocr_batch batch;
  const ad_array *logits; /* the logits of the last microbatch's forward pass */
} ocr;

static const char *const images[] = {"images", NULL};

/* ---- running the phases: encoder and decoder ---- */

static ad_status encode(void *own, ad_phase_run *at) {
  ocr *model = own;
  ad_tape *t = ad_phase_tape(at);
  const ad_ocr_microbatch *batch = &model->batch.microbatches[ad_phase_microbatch(at)];
  ad_tensor *patches = ad_constant(t, ad_tape_dtype(t) == AD_F64 ? &batch->wide_patches : &batch->patches);
  ad_phase_give(at, images[0], ad_encoder_forward(&model->encoder, at, ad_to_dtype(t, patches, ad_tape_dtype(t))));
  return AD_OK;
}

/* Returns the decoder's residual stream with the images in their positions. The images are placed in the full sequence,
 * and then the stream is sharded: over cp, so that a rank's part of the images' gradient is an addend, and over tp,
 * where all ranks have the full gradient. */
static ad_tensor *stream(ocr *model, ad_phase_run *at, const ad_ocr_microbatch *batch) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *x = ad_decoder_embed_full(&model->decoder, t, ad_constant(t, &batch->tokens));
  x = ad_place(t, x, ad_phase_need(at, images[0]));
  int has_cp = (ad_mesh_named(batch->tokens.layout.mesh) & AD_AXES(AD_CP)) != 0;
  if (has_cp) x = ad_convert(t, x, "cp", AD_S_ZIGZAG(1));
  return ad_decoder_shard(&model->decoder, t, x);
}

static ad_status read_line(void *own, ad_phase_run *at) {
  ocr *model = own;
  ad_tape *t = ad_phase_tape(at);
  const ad_ocr_microbatch *batch = &model->batch.microbatches[ad_phase_microbatch(at)];
  ad_decoder_begin(&model->decoder, at, 0);
  ad_tensor *logits = ad_decoder_logits(&model->decoder, t, stream(model, at, batch));
  model->logits = ad_tensor_array(logits);
  ad_phase_loss(at, 0, ad_cross_entropy(t, logits, ad_constant(t, &batch->targets)));
  return AD_OK;
}

/* ---- functions of the program's record ---- */

static ad_status join_modules(ocr *model, const ad_program *program) {
  ad_layout from = ad_ocr_images_layout(ad_program_mesh(program, ENCODER));
  ad_layout to = ad_ocr_placed_layout(ad_program_mesh(program, MODEL));
  ad_bridge_options options = {.size = sizeof options, .ragged = model->options->ragged};
  ad_comm *comm = (ad_comm *)(uintptr_t)ad_program_setting_of(program)->comm;
  return ad_bridge_create(comm, &from, &to, &options, &model->bridge);
}

static ad_status add_phases(const ocr *model, ad_program *to) {
  static const ad_phase phases[] = {
      {.size = sizeof(ad_phase), .name = "encoder", .module = ENCODER, .gives = images, .run = encode},
      {.size = sizeof(ad_phase), .name = "model", .module = MODEL, .needs = images, .run = read_line}};
  const ad_ocr_options *options = model->options;
  ad_transfer_spec transfer = {.size = sizeof transfer,
                               .value = images[0],
                               .module = MODEL,
                               .bridge = model->bridge,
                               .shape = {3, {model->global_batch, ad_ocr_patches(options), options->decoder.d_model}}};
  AD_TRY(ad_program_add_phase(to, &phases[0]));
  AD_TRY(ad_program_add_transfer(to, &transfer));
  return ad_program_add_phase(to, &phases[1]);
}

static ad_status create_encoder(ocr *model, ad_program *to) {
  const ad_ocr_options *options = model->options;
  ad_encoder_shape shape = {.name = "encoder",
                            .input = "patch",
                            .output = "projection",
                            .in = ad_ocr_patch_pixels(options),
                            .out = options->decoder.d_model,
                            .layers = options->encoder_layers,
                            .d_model = options->encoder_d_model,
                            .d_hidden = ad_ocr_encoder_hidden(options),
                            .heads = options->encoder_heads,
                            .rotary_base = options->decoder.rotary_base};
  return ad_encoder_create(&model->encoder, &shape, ENCODER, to);
}

static ad_status create_ocr(const void *options, ad_program *to, void **own) {
  const ad_ocr_options *ocr_options = options;
  ocr *model;
  AD_TRY(ad_new(1, &model));
  *own = model;
  model->options = ocr_options;
  model->global_batch = ad_program_setting_of(to)->global_batch;
  model->mlp.d_hidden = ad_ocr_hidden(ocr_options);
  AD_TRY(ad_new((size_t)ocr_options->decoder.layers, &model->mlp.layers));
  AD_TRY(create_encoder(model, to));
  model->decoder.layer_prefix = "model.";
  AD_TRY(ad_decoder_create(&model->decoder, &ocr_options->decoder, &ad_mlp_branch_functions, &model->mlp, 1, "model",
                           MODEL, to));
  AD_TRY(join_modules(model, to));
  AD_TRY(ad_ocr_batch_create(ad_program_setting_of(to), ocr_options, ad_program_mesh(to, ENCODER),
                             ad_program_mesh(to, MODEL), &model->batch));
  ad_count_spec characters = {
      .size = sizeof characters, .name = "characters", .layout = ad_ocr_count_layout(ad_program_mesh(to, MODEL))};
  AD_TRY(ad_program_add_count(to, &characters));
  ad_loss_spec loss = {.size = sizeof loss, .name = "cross_entropy", .uniform = log(AD_VOCABULARY_BYTES)};
  AD_TRY(ad_program_add_loss(to, &loss));
  return add_phases(model, to);
}

static void destroy_ocr(void *own) {
  ocr *model = own;
  ad_ocr_batch_destroy(&model->batch);
  ad_bridge_destroy(model->bridge);
  ad_encoder_release(&model->encoder);
  ad_decoder_release(&model->decoder);
  ad_release(model->mlp.layers);
  ad_release(model);
}

static ad_status open_data(void *own) { return ad_ocr_batch_open(&((ocr *)own)->batch); }

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return ad_ocr_batch_read(&((ocr *)own)->batch, step, validation, counted[0]);
}

static const ad_array *logits_of(void *own) { return ((ocr *)own)->logits; }

static ad_status show(void *own, const ad_forward *forward, char **out) {
  ocr *model = own;
  if (!(model->options->lines.validation > 0) || !model->options->read) return AD_OK;
  ad_ocr_reader reader = {.batch = &model->batch,
                          .logits = logits_of,
                          .own = model,
                          .mesh = model->batch.microbatches[0].tokens.layout.mesh,
                          .forward = forward,
                          .comm = (ad_comm *)(uintptr_t)model->batch.setting.comm};
  return ad_ocr_read_lines(&reader, out);
}

static int has_validation(const void *own) { return ((const ocr *)own)->options->lines.validation > 0; }
static size_t data_bytes(const void *own) { return ad_ocr_batch_bytes(&((const ocr *)own)->batch); }

static const ad_array *batch_array(const void *own, size_t index, char *name, size_t size) {
  return ad_ocr_batch_array(&((const ocr *)own)->batch, index, name, size);
}

// Returns the operations of all matrix products for this many samples. The encoder's attention counts as twice the
// products of a causal sequence of the same length, because each patch attends to all others.
static double flops(const void *own, int64_t samples) {
  const ocr *model = own;
  const ad_ocr_options *options = model->options;
  double patches = (double)ad_ocr_patches(options);
  double seen = 2 * (double)(options->encoder_layers * options->encoder_d_model) * patches;
  return ad_decoder_flops(&model->decoder, options->decoder.data.seq, samples) +
         6.0 * (model->encoder.product_elements + seen) * patches * (double)samples;
}

static const char *fact(const void *own, size_t index, char *buffer, size_t size) {
  const ocr *model = own;
  const ad_line_options *lines = &model->options->lines;
  if (index) return NULL;
  snprintf(buffer, size, "%lld lines of at most %lld characters, pictures of %lld x %lld",
           (long long)model->global_batch, (long long)lines->chars, (long long)lines->width, (long long)lines->height);
  return "batch";
}

static const char *content(const void *own, size_t index, char *buffer, size_t size) {
  return ad_ocr_batch_content(&((const ocr *)own)->batch, index, buffer, size);
}

const ad_program_kind *ad_ocr(void) {
  static const char *const modules[] = {"encoder", "model", NULL};
  static const ad_program_kind kind = {
      .size = sizeof kind,
      .name = "ocr",
      .help = "reads lines of text from pictures: an encoder and a decoder, joined by a bridge",
      .modules = modules,
      .keys = ad_ocr_keys,
      .key_count = AD_OCR_KEY_COUNT,
      .options_size = sizeof(ad_ocr_options),
      .create = create_ocr,
      .destroy = destroy_ocr,
      .open = open_data,
      .read = read_batch,
      .rules = {.complete = ad_ocr_complete, .check = ad_ocr_check, .check_files = ad_ocr_check_files},
      .data = {.has_validation = has_validation, .bytes = data_bytes, .batch_array = batch_array, .content = content},
      .account = {.flops = flops, .show = show, .fact = fact}};
  return &kind;
}
