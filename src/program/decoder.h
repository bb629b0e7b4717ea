/* What programs that are decoders of text share: embedding, blocks of attention and a second branch around a residual
 * stream, norm, head, loss and batch. A program says what the second branch is; its own object begins with an
 * ad_decoder, so that the functions of records here take it as their `own`. */
#ifndef PROGRAM_DECODER_H
#define PROGRAM_DECODER_H
#include "nn/layers.h"
#include "program/decoder_keys.h"
#include "program/text_batch.h"

typedef struct ad_decoder ad_decoder;

/* The second branch of the blocks. */
typedef struct ad_branch {
  void (*declare)(ad_decoder *decoder, ad_declarations *to, int64_t block);
  /* x: the normalised stream; the result lies as it does. */
  ad_tensor *(*forward)(ad_decoder *decoder, ad_tape *t, ad_tensor *const *params, int64_t block, ad_tensor *x);
  /* At the end of a microbatch's forward pass: hands in losses of its own. NULL: it has none. */
  void (*end)(ad_decoder *decoder, ad_phase_run *at);
} ad_branch;

typedef struct ad_decoder_block {
  ad_norm_layer attention_norm, branch_norm;
  ad_attention_layer attention;
} ad_decoder_block;

struct ad_decoder {
  const ad_decoder_options *options;
  const ad_branch *branch;
  double expert_share; /* of matrices [experts, ...], that a token is multiplied with */
  int64_t global_batch;
  ad_parallel parallel;
  double output_factor; /* of branches that add to the residual stream */
  ad_embedding_layer embedding;
  ad_decoder_block *blocks;
  ad_norm_layer final_norm;
  ad_linear_layer head;    /* unless tied */
  double product_elements; /* of all matrices that tokens are multiplied with */
  size_t param_count;
  ad_tensor **leaves; /* of the present microbatch, one for each parameter */
  size_t state_count;
  ad_array **states; /* the module's, from the first phase on */
  ad_text_batch batch;
};

/* Adds module, count, loss and phase to the program; borrows the options. */
ad_status ad_decoder_create(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                            double expert_share, ad_program *to) AD_CHECKED;
void ad_decoder_release(ad_decoder *decoder);

/* Of the record. */
ad_status ad_decoder_open(void *own);
ad_status ad_decoder_read(void *own, int64_t step, int held_out, int64_t *const *counted);
int ad_decoder_has_held_out(const void *own);
size_t ad_decoder_data_bytes(const void *own);
const ad_array *ad_decoder_batch_array(const void *own, size_t index, char *name, size_t size);
double ad_decoder_flops(const void *own, int64_t samples);
void ad_decoder_lengths(const void *own, double *addends, double *operations);
const char *ad_decoder_content(const void *own, size_t index, char *buffer, size_t size);
const char *ad_decoder_fact(const void *own, size_t index, char *buffer, size_t size);
extern const char *const ad_decoder_modules[];

#endif
