/* A decoder that is trained on text: its phases, batch, count of tokens and loss. */
#include "decoder/text_decoder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "decoder/options.h"

static const char table_name[] = "embedding";

/* ---- running a phase: one stage of the decoder, for one microbatch ---- */

/* Returns the residual stream at the beginning of the stage: the embedding's output, or the value from the previous
 * stage. */
static ad_tensor *enter(ad_text_decoder *text, ad_phase_run *at, size_t stage) {
  const ad_text_microbatch *microbatch = &text->batch.microbatches[ad_phase_microbatch(at)];
  ad_tape *t = ad_phase_tape(at);
  if (stage) return ad_phase_need(at, text->stages[stage - 1].stream);
  ad_decoder *d = &text->decoder;
  if (ad_decoder_gives_table(d)) ad_phase_give(at, table_name, ad_scale(t, d->leaves[d->embedding.table], 1));
  return ad_decoder_embed(d, t, ad_constant(t, &microbatch->tokens));
}

/* Computes the loss from the residual stream after the last block; the loss is P on dp and cp, I on tp. */
static void submit_loss(ad_text_decoder *text, ad_phase_run *at, ad_tensor *x) {
  const ad_text_microbatch *microbatch = &text->batch.microbatches[ad_phase_microbatch(at)];
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *table = ad_decoder_gives_table(&text->decoder) ? ad_phase_need(at, table_name) : NULL;
  ad_tensor *logits = ad_decoder_head(&text->decoder, t, x, table);
  ad_phase_loss(at, 0, ad_cross_entropy(t, logits, ad_constant(t, &microbatch->targets)));
}

static ad_status forward(void *own, ad_phase_run *at) {
  ad_text_decoder *text = own;
  ad_decoder *d = &text->decoder;
  size_t stage = ad_phase_module(at);
  ad_decoder_begin(d, at, stage);
  ad_tensor *x = ad_decoder_blocks(d, ad_phase_tape(at), enter(text, at, stage));
  if (d->stage->is_last)
    submit_loss(text, at, x);
  else
    ad_phase_give(at, text->stages[stage].stream, x);
  ad_decoder_end(d, at);
  return AD_OK;
}

/* ---- the parts of the program: batch, stages, transferred values, phases ---- */

static ad_status create_batch(ad_text_decoder *text, const ad_program *program) {
  size_t last = text->decoder.stage_count - 1;
  ad_text_layouts layouts = {.rows = ad_text_batch_layout(ad_program_pool(program, 0)),
                             .tokens = ad_text_batch_layout(ad_program_mesh(program, 0)),
                             .targets = ad_text_batch_layout(ad_program_mesh(program, last))};
  const ad_decoder_options *options = text->decoder.options;
  return ad_text_batch_create(ad_program_setting_of(program), &layouts, &options->data, ad_decoder_vocabulary(options),
                              &text->batch);
}

static void name_stages(ad_text_decoder *text) {
  const ad_decoder *d = &text->decoder;
  size_t last = d->stage_count - 1;
  for (size_t s = 0; s <= last; s++) {
    ad_text_stage *stage = &text->stages[s];
    snprintf(stage->phase, sizeof stage->phase, last ? "stage %zu" : "model", s);
    snprintf(stage->stream, sizeof stage->stream, "stream %zu", s);
    if (s < last) stage->gives[0] = stage->stream;
    if (s) stage->needs[0] = text->stages[s - 1].stream;
  }
  if (!ad_decoder_gives_table(d)) return;
  text->stages[0].gives[1] = table_name;
  text->stages[last].needs[1] = table_name;
}

/* Adds the transfer of a value from one stage to another. Adds nothing if the stages are on the same ranks. */
static ad_status add_transfer(ad_text_decoder *text, const ad_transfer_spec *spec, const ad_layout *from,
                              ad_program *to) {
  ad_transfer_spec transfer = *spec;
  const ad_program_setting *setting = ad_program_setting_of(to);
  ad_layout at = *from;
  at.mesh = ad_program_mesh(to, spec->module);
  if (ad_mesh_same_ranks(from->mesh, at.mesh)) return AD_OK;
  ad_bridge_options options = {.size = sizeof options, .identical = 1, .tag = (int64_t)text->bridge_count};
  ad_bridge **bridge = &text->bridges[text->bridge_count];
  AD_TRY(ad_bridge_create((ad_comm *)(uintptr_t)setting->comm, from, &at, &options, bridge));
  text->bridge_count++;
  transfer.bridge = *bridge;
  return ad_program_add_transfer(to, &transfer);
}

static ad_status transfer_stream(ad_text_decoder *text, size_t stage, ad_program *to) {
  const ad_decoder_options *options = text->decoder.options;
  ad_layout from = ad_decoder_stream_layout(&text->decoder, ad_program_mesh(to, stage));
  ad_transfer_spec spec = {.size = sizeof spec,
                           .value = text->stages[stage].stream,
                           .module = stage + 1,
                           .shape = {3, {text->global_batch, options->data.seq, options->d_model}},
                           .is_residual = 1};
  return add_transfer(text, &spec, &from, to);
}

static ad_status transfer_table(ad_text_decoder *text, ad_program *to) {
  const ad_decoder *d = &text->decoder;
  ad_transfer_spec spec = {.size = sizeof spec,
                           .value = table_name,
                           .module = d->stage_count - 1,
                           .shape = {2, {ad_decoder_vocabulary(d->options), d->options->d_model}},
                           .is_parameter = 1};
  return add_transfer(text, &spec, &d->table, to);
}

static ad_status add_phase(ad_text_decoder *text, size_t number, ad_program *to) {
  const ad_text_stage *stage = &text->stages[number];
  ad_phase phase = {.size = sizeof phase,
                    .name = stage->phase,
                    .module = number,
                    .needs = stage->needs,
                    .gives = stage->gives,
                    .run = forward};
  AD_TRY(ad_program_add_phase(to, &phase));
  if (number + 1 < text->decoder.stage_count) AD_TRY(transfer_stream(text, number, to));
  return number || !ad_decoder_gives_table(&text->decoder) ? AD_OK : transfer_table(text, to);
}

static ad_status add_phases(ad_text_decoder *text, ad_program *to) {
  size_t count = text->decoder.stage_count;
  AD_TRY(ad_new(count, &text->stages));
  // One bridge between each two neighbouring stages, and one from the first stage to the last.
  AD_TRY(ad_new(count, &text->bridges));
  name_stages(text);
  for (size_t s = 0; s < count; s++) AD_TRY(add_phase(text, s, to));
  return AD_OK;
}

ad_status ad_text_decoder_create(ad_text_decoder *text, const ad_decoder_options *options, const ad_branch *branch,
                                 void *branch_own, double expert_share, ad_program *to) {
  text->global_batch = ad_program_setting_of(to)->global_batch;
  text->decoder.layer_prefix = "";
  AD_TRY(ad_decoder_create(&text->decoder, options, branch, branch_own, expert_share, "model", 0, to));
  AD_TRY(create_batch(text, to));
  ad_count_spec tokens = {
      .size = sizeof tokens, .name = "tokens", .layout = ad_text_count_layout(ad_program_pool(to, 0))};
  AD_TRY(ad_program_add_count(to, &tokens));
  ad_loss_spec loss = {
      .size = sizeof loss, .name = "cross_entropy", .uniform = log((double)ad_decoder_vocabulary(options))};
  AD_TRY(ad_program_add_loss(to, &loss));
  return add_phases(text, to);
}

void ad_text_decoder_release(ad_text_decoder *text) {
  for (size_t i = 0; i < text->bridge_count; i++) ad_bridge_destroy(text->bridges[i]);
  ad_release(text->bridges);
  ad_release(text->stages);
  ad_text_batch_destroy(&text->batch);
  ad_decoder_release(&text->decoder);
}

/* ---- functions of the program's record ---- */

ad_status ad_text_decoder_open(void *own) { return ad_text_batch_open(&((ad_text_decoder *)own)->batch); }

ad_status ad_text_decoder_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return ad_text_batch_read(&((ad_text_decoder *)own)->batch, step, validation, counted[0]);
}

int ad_text_decoder_has_validation(const void *own) {
  return ((const ad_text_decoder *)own)->decoder.options->data.validation > 0;
}

int64_t ad_text_decoder_validation_samples(const void *own) {
  return ad_text_batch_validation(&((const ad_text_decoder *)own)->batch);
}

size_t ad_text_decoder_data_bytes(const void *own) {
  return ad_text_batch_bytes(&((const ad_text_decoder *)own)->batch);
}

const ad_array *ad_text_decoder_batch_array(const void *own, size_t index, char *name, size_t size) {
  return ad_text_batch_array(&((const ad_text_decoder *)own)->batch, index, name, size);
}

double ad_text_decoder_flops(const void *own, int64_t samples) {
  const ad_decoder *d = &((const ad_text_decoder *)own)->decoder;
  return ad_decoder_flops(d, d->options->data.seq, samples);
}

double ad_text_decoder_stage_flops(const void *own, size_t stage, int64_t samples) {
  const ad_decoder *d = &((const ad_text_decoder *)own)->decoder;
  return ad_decoder_stage_flops(d, stage, d->options->data.seq, samples);
}

const char *ad_text_decoder_content(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_content(&((const ad_text_decoder *)own)->batch, index, buffer, size);
}

const char *ad_text_decoder_companion(const void *own, size_t index) {
  return ad_text_batch_companion(&((const ad_text_decoder *)own)->batch, index);
}

const char *ad_text_decoder_fact(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_fact(&((const ad_text_decoder *)own)->batch, index, buffer, size);
}

const char *const ad_text_decoder_modules[] = {"model", NULL};

const ad_text_options *ad_text_decoder_text(const void *options, int64_t *vocabulary) {
  const ad_decoder_options *decoder = options;
  *vocabulary = ad_decoder_vocabulary(decoder);
  return &decoder->data;
}

size_t ad_text_decoder_kept_count(const void *own) {
  return (size_t)((const ad_text_decoder *)own)->decoder.options->layers;
}

ad_tensor *ad_text_decoder_next(void *own, ad_tape *t, const ad_continued *from) {
  ad_decoder *d = &((ad_text_decoder *)own)->decoder;
  memcpy(d->leaves, from->params, d->stage->param_count * sizeof(ad_tensor *));
  memcpy(d->states, from->states, d->stage->state_count * sizeof(ad_array *));
  return ad_decoder_continue(d, t, from->tokens, from->kept);
}
