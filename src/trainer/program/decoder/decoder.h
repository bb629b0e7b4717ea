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

/* A stage of a pipeline: a span of blocks; the first has the embedding too, the last the final norm and the head. */
typedef struct ad_decoder_stage {
  ad_span blocks;
  int is_first, is_last;
  double product_elements; /* of all matrices that tokens are multiplied with */
  size_t param_count;
  size_t first_state, state_count; /* among those of all stages */
} ad_decoder_stage;

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
  ad_linear_layer head; /* unless tied */
  ad_layout table;      /* compute layout of the embedding, on its stage's mesh */
  ad_decoder_stage *stages;
  size_t stage_count;
  const ad_decoder_stage *stage; /* that is under way */
  ad_tensor **leaves;            /* of its present microbatch, one for each of its parameters */
  ad_array **states;             /* of all stages, from the first phase of each on; NULL: on other ranks */
};

/* Adds the module `name`, number `module` of the program's meshes, or one for each stage that the program has, from
 * that number on; borrows the options and the branch. */
ad_status ad_decoder_create(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                            void *branch_own, double expert_share, const char *name, size_t module,
                            ad_program *to) AD_CHECKED;
/* The same in one stage, without a module: its parameters go to `to`, and whoever runs it sets decoder->leaves. */
ad_status ad_decoder_declare(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                             void *branch_own, double expert_share, ad_declarations *to) AD_CHECKED;
void ad_decoder_release(ad_decoder *decoder);

/* In a phase of the decoder's module, in this order. Tokens [batch, seq], S0 on dp, S1z or R on cp -> the stream
 * [batch, seq, d_model], on tp I or S1, S1z on cp; through the stage's blocks; -> the logits, cut along the vocabulary
 * over tp. */
void ad_decoder_begin(ad_decoder *decoder, ad_phase_run *at, size_t stage);
ad_tensor *ad_decoder_embed(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
/* The same in two parts, where something takes its place in the whole sequence between them: the stream I on tp, and
 * cut along its sequence there (S1, inside what cp cuts) where it is to be. */
ad_tensor *ad_decoder_embed_whole(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
ad_tensor *ad_decoder_cut(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
ad_tensor *ad_decoder_blocks(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
/* table: the embedding as a value, where the head is tied to it and lies on another stage; else NULL. */
ad_tensor *ad_decoder_head(const ad_decoder *decoder, ad_tape *t, ad_tensor *x, ad_tensor *table);
/* Blocks and head of a decoder in one stage. */
ad_tensor *ad_decoder_logits(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
void ad_decoder_end(const ad_decoder *decoder, ad_phase_run *at);
/* The logits [1, 1, vocabulary] of the token that follows `tokens` [1, rows], which follow those that `kept`, one for
 * each block, has of earlier calls. On one rank, in one stage, with decoder->leaves and ->states set. */
ad_tensor *ad_decoder_continue(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens, ad_kept_keys *const *kept);
/* Whether the head is the embedding of another stage, which gives it as a value. */
int ad_decoder_gives_table(const ad_decoder *decoder);
/* How the stream lies between blocks, on the mesh of a stage. */
ad_layout ad_decoder_stream_layout(const ad_decoder *decoder, const ad_mesh *mesh);
/* Of matrix products, forward and backward, of so many samples of `seq` tokens. */
double ad_decoder_flops(const ad_decoder *decoder, int64_t seq, int64_t samples);
double ad_decoder_stage_flops(const ad_decoder *decoder, size_t stage, int64_t seq, int64_t samples);

#endif
