/* What all programs that are decoders of text share: modules (one, or one for each stage), batch, phases, count and
 * loss. The object of such a program begins with an ad_text_decoder, so that these functions can take it as `own`. */
#ifndef DECODER_TEXT_DECODER_H
#define DECODER_TEXT_DECODER_H
#include "decoder/decoder.h"
#include "decoder/options.h"
#include "decoder/text_batch.h"

/* The phase of one stage, and the names of the values that the phase receives from other stages and sends to them.
 * Neighbouring stages transfer the residual stream. If the head is tied to the embedding, the first stage transfers the
 * embedding to the last. */
typedef struct ad_text_stage {
  char phase[32], stream[32]; /* phase: the phase's name; stream: the name of the stream that the stage sends */
  const char *needs[3], *gives[3];
} ad_text_stage;

typedef struct ad_text_decoder {
  ad_decoder decoder;
  int64_t global_batch;
  ad_text_batch batch;
  ad_text_stage *stages;
  ad_bridge **bridges; /* one for each value that stages on different ranks transfer */
  size_t bridge_count;
} ad_text_decoder;

/* Adds the decoder's modules, count, loss and phases to the program. Borrows the options and the branch. */
ad_status ad_text_decoder_create(ad_text_decoder *text, const ad_decoder_options *options, const ad_branch *branch,
                                 void *branch_own, double expert_share, ad_program *to) AD_CHECKED;
void ad_text_decoder_release(ad_text_decoder *text);

/* Functions for the ad_program_kind of a text decoder; `own` begins with an ad_text_decoder. */
ad_status ad_text_decoder_open(void *own);
ad_status ad_text_decoder_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted);
int ad_text_decoder_has_validation(const void *own);
int64_t ad_text_decoder_validation_samples(const void *own);
size_t ad_text_decoder_data_bytes(const void *own);
const ad_array *ad_text_decoder_batch_array(const void *own, size_t index, char *name, size_t size);
double ad_text_decoder_flops(const void *own, int64_t samples);
double ad_text_decoder_stage_flops(const void *own, size_t stage, int64_t samples);
const char *ad_text_decoder_content(const void *own, size_t index, char *buffer, size_t size);
const char *ad_text_decoder_companion(const void *own, size_t index);
const char *ad_text_decoder_fact(const void *own, size_t index, char *buffer, size_t size);
/* Functions for an ad_program_kind whose `options` begin with an ad_decoder_options. */
const ad_text_options *ad_text_decoder_text(const void *options, int64_t *vocabulary);
size_t ad_text_decoder_kept_count(const void *own);
ad_tensor *ad_text_decoder_next(void *own, ad_tape *t, const ad_continued *from);
extern const char *const ad_text_decoder_modules[];
/* The members of an ad_program_kind that all text decoders share, initialised with the functions above. A program adds
 * the other members. */
#define AD_TEXT_DECODER_MEMBERS                                                                                       \
  .modules = ad_text_decoder_modules, .open = ad_text_decoder_open, .rules.check_files = ad_text_decoder_check_files, \
  .data.has_validation = ad_text_decoder_has_validation,                                                              \
  .data.validation_samples = ad_text_decoder_validation_samples, .data.bytes = ad_text_decoder_data_bytes,            \
  .data.batch_array = ad_text_decoder_batch_array, .data.content = ad_text_decoder_content,                           \
  .data.companion = ad_text_decoder_companion, .sampling.text = ad_text_decoder_text,                                 \
  .sampling.kept_count = ad_text_decoder_kept_count, .sampling.next = ad_text_decoder_next,                           \
  .account.flops = ad_text_decoder_flops, .account.fact = ad_text_decoder_fact, .has_stages = 1,                      \
  .stage_flops = ad_text_decoder_stage_flops

#endif
