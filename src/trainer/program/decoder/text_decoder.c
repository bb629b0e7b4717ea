/* A decoder that is trained on text. */
#include "program/decoder/text_decoder.h"
#include "program/decoder/options.h"

static ad_status forward(void *own, ad_phase_run *at) {
  ad_text_decoder *text = own;
  ad_decoder *d = &text->decoder;
  ad_tape *t = ad_phase_tape(at);
  const ad_text_microbatch *microbatch = &text->batch.microbatches[ad_phase_microbatch(at)];
  ad_decoder_begin(d, at);
  ad_tensor *tokens = ad_constant(t, &microbatch->tokens), *targets = ad_constant(t, &microbatch->targets);
  ad_tensor *logits = ad_decoder_logits(d, t, ad_decoder_embed(d, t, tokens));
  ad_phase_loss(at, 0, ad_cross_entropy(t, logits, targets));  // P on dp and cp, I on tp
  ad_decoder_end(d, at);
  return AD_OK;
}

static ad_status create_batch(ad_text_decoder *text, const ad_program *program) {
  ad_layout layout = ad_text_batch_layout(ad_program_mesh(program, 0));
  return ad_text_batch_create(ad_program_setting_of(program), &layout, &text->decoder.options->data, &text->batch);
}

ad_status ad_text_decoder_create(ad_text_decoder *text, const ad_decoder_options *options, const ad_branch *branch,
                                 void *branch_own, double expert_share, ad_program *to) {
  text->global_batch = ad_program_setting_of(to)->global_batch;
  AD_TRY(ad_decoder_create(&text->decoder, options, branch, branch_own, expert_share, "model", 0, to));
  AD_TRY(create_batch(text, to));
  ad_count_spec tokens = {
      .size = sizeof tokens, .name = "tokens", .layout = ad_text_count_layout(ad_program_mesh(to, 0))};
  AD_TRY(ad_program_add_count(to, &tokens));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "cross_entropy"}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "model", .run = forward});
}

void ad_text_decoder_release(ad_text_decoder *text) {
  ad_text_batch_destroy(&text->batch);
  ad_decoder_release(&text->decoder);
}

ad_status ad_text_decoder_open(void *own) { return ad_text_batch_open(&((ad_text_decoder *)own)->batch); }

ad_status ad_text_decoder_read(void *own, int64_t step, ad_held_out held_out, int64_t *const *counted) {
  return ad_text_batch_read(&((ad_text_decoder *)own)->batch, step, held_out, counted[0]);
}

int ad_text_decoder_has_held_out(const void *own) {
  return ((const ad_text_decoder *)own)->decoder.options->data.held_out > 0;
}

int64_t ad_text_decoder_held_out_samples(const void *own) {
  return ad_text_batch_held_out(&((const ad_text_decoder *)own)->batch);
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

const char *ad_text_decoder_content(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_content(&((const ad_text_decoder *)own)->batch, index, buffer, size);
}

const char *ad_text_decoder_fact(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_fact(&((const ad_text_decoder *)own)->batch, index, buffer, size);
}

const char *const ad_text_decoder_modules[] = {"model", NULL};
