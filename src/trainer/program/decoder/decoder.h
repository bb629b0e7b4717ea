/* A decoder: embedding, blocks of attention and a second branch around a residual stream, norm and head. A program says
 * what the second branch is, and what its tokens are. */
#ifndef PROGRAM_DECODER_DECODER_H
#define PROGRAM_DECODER_DECODER_H
#include "addend/layers.h"
#include "program/decoder/keys.h"
#include "program/decoder/options.h"

typedef struct ad_decoder ad_decoder;

/* The second branch of the blocks; `own`: the branch's own object. */
typedef struct ad_branch {
  void (*declare)(void *own, const ad_decoder *decoder, ad_declarations *to, int64_t block);
  /* x: the normalised stream; the result lies as it does. */
  ad_tensor *(*forward)(void *own, const ad_decoder *decoder, ad_tape *t, int64_t block, ad_tensor *x);
  /* At the end of a microbatch's forward pass: hands in losses of its own. NULL: it has none. */
  void (*end)(void *own, const ad_decoder *decoder, ad_phase_run *at);
} ad_branch;

typedef struct ad_decoder_block {
  ad_norm_layer attention_norm, branch_norm;
  ad_attention_layer attention;
} ad_decoder_block;

struct ad_decoder {
  const ad_decoder_options *options;
  const ad_branch *branch;
  void *branch_own;
  size_t microbatch;   /* that is under way */
  double expert_share; /* of matrices [experts, ...], that a token is multiplied with */
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
};

/* Adds the module `name`, number `module` of the program's meshes; borrows the options and the branch. */
ad_status ad_decoder_create(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                            void *branch_own, double expert_share, const char *name, size_t module,
                            ad_program *to) AD_CHECKED;
/* The same without a module: its parameters go to `to`, and whoever runs it sets decoder->leaves. */
ad_status ad_decoder_declare(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                             void *branch_own, double expert_share, ad_declarations *to) AD_CHECKED;
void ad_decoder_release(ad_decoder *decoder);

/* In a phase of the decoder's module, in this order. Tokens [batch, seq], S0 on dp, S1z or R on cp -> the stream
 * [batch, seq, d_model], on tp I or S1; and the stream, S1z on cp, -> the loss, P on dp and cp, I on tp. */
void ad_decoder_begin(ad_decoder *decoder, ad_phase_run *at);
ad_tensor *ad_decoder_embed(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
/* The same in two parts, where something takes its place in the whole sequence between them: the stream I on tp, and
 * cut along its sequence there (S1, inside what cp cuts) where it is to be. */
ad_tensor *ad_decoder_embed_whole(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
ad_tensor *ad_decoder_cut(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
ad_tensor *ad_decoder_logits(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
void ad_decoder_end(const ad_decoder *decoder, ad_phase_run *at);
/* Of matrix products, forward and backward, of so many samples of `seq` tokens. */
double ad_decoder_flops(const ad_decoder *decoder, int64_t seq, int64_t samples);

#endif
