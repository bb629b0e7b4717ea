/* A decoder: embedding, blocks of attention and a second branch around a residual stream, norm and head. The program
 * chooses the second branch and the tokens. */
#ifndef DECODER_DECODER_H
#define DECODER_DECODER_H
#include "addend/layers.h"
#include "decoder/keys.h"
#include "decoder/options.h"

typedef struct ad_decoder ad_decoder;

/* The second branch of each block; `own` is the branch's own object. */
typedef struct ad_branch {
  void (*declare)(void *own, const ad_decoder *decoder, ad_declarations *to, int64_t block);
  /* x: the normalised stream; the result has x's shape and layout. */
  ad_tensor *(*forward)(void *own, const ad_decoder *decoder, ad_tape *t, int64_t block, ad_tensor *x);
  /* Submits the branch's own losses, at the end of a microbatch's forward pass. NULL: it has none. */
  void (*end)(void *own, const ad_decoder *decoder, ad_phase_run *at);
} ad_branch;

typedef struct ad_decoder_block {
  ad_norm_layer attention_norm, branch_norm;
  ad_attention_layer attention;
} ad_decoder_block;

/* A stage of a pipeline: consecutive blocks. The first stage also has the embedding; the last has the final norm and
 * the head. */
typedef struct ad_decoder_stage {
  ad_span blocks;
  int is_first, is_last;
  double product_elements; /* elements of all matrices with which a token is multiplied */
  size_t param_count;
  size_t first_state, state_count; /* numbers among the states of all stages */
} ad_decoder_stage;

struct ad_decoder {
  const ad_decoder_options *options;
  const ad_branch *branch;
  void *branch_own;
  size_t microbatch;   /* the microbatch whose phase runs */
  double expert_share; /* the part of matrices [experts, ...] that one token uses */
  ad_parallel parallel;
  double output_factor; /* factor of the initial values of matrices that add to the residual stream */
  ad_embedding_layer embedding;
  ad_decoder_block *blocks;
  ad_norm_layer final_norm;
  ad_linear_layer head; /* not used if the embedding is also the head (tied) */
  ad_layout table;      /* compute layout of the embedding, on its stage's mesh */
  ad_decoder_stage *stages;
  size_t stage_count;
  const ad_decoder_stage *stage; /* the stage whose phase runs */
  ad_tensor **leaves;            /* one for each parameter of the stage, in the present microbatch */
  ad_array **states; /* the states of each stage, set by its first phase; NULL: the stage is on other ranks */
};

/* Adds module `name` on mesh number `module` of the program. If the program has stages, adds one module for each
 * stage, on that mesh and the following ones. Borrows the options and the branch. */
ad_status ad_decoder_create(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                            void *branch_own, double expert_share, const char *name, size_t module,
                            ad_program *to) AD_CHECKED;
/* Declares the decoder in one stage, without a module: adds its parameters to `to`. The caller sets decoder->leaves
 * before it runs the decoder. */
ad_status ad_decoder_declare(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                             void *branch_own, double expert_share, ad_declarations *to) AD_CHECKED;
void ad_decoder_release(ad_decoder *decoder);

/* A phase of the decoder's module calls these in this order. Tokens are [batch, seq]: S0 on dp, S1z or R on cp. The
 * stream is [batch, seq, d_model]: I or S1 on tp, S1z on cp. Logits are sharded along the vocabulary over tp. */
void ad_decoder_begin(ad_decoder *decoder, ad_phase_run *at, size_t stage);
ad_tensor *ad_decoder_embed(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
/* ad_decoder_embed in two parts, for programs that change the full stream in between. First: the stream with its
 * full sequence, I on tp. Second, if the options ask for it: sharded along the sequence (S1, inside cp). */
ad_tensor *ad_decoder_embed_full(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
ad_tensor *ad_decoder_shard(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
ad_tensor *ad_decoder_blocks(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
/* table: the embedding as a value, if it is also the head (tied) and is on another stage; else NULL. */
ad_tensor *ad_decoder_head(const ad_decoder *decoder, ad_tape *t, ad_tensor *x, ad_tensor *table);
/* Runs blocks and head of a decoder in one stage. */
ad_tensor *ad_decoder_logits(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
void ad_decoder_end(const ad_decoder *decoder, ad_phase_run *at);
/* Returns the logits [1, 1, vocabulary] of the token after `tokens` [1, rows]. `kept`, one for each block, has keys
 * and values of earlier calls' tokens. For one rank and one stage, with decoder->leaves and ->states set. */
ad_tensor *ad_decoder_continue(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens, ad_kept_keys *const *kept);
/* Returns 1 if the head is the embedding of another stage, which gives it as a value. */
int ad_decoder_gives_table(const ad_decoder *decoder);
/* The layout of the stream between blocks, on a stage's mesh. */
ad_layout ad_decoder_stream_layout(const ad_decoder *decoder, const ad_mesh *mesh);
/* Operations of matrix products, forward and backward, for `samples` samples of `seq` tokens. */
double ad_decoder_flops(const ad_decoder *decoder, int64_t seq, int64_t samples);
double ad_decoder_stage_flops(const ad_decoder *decoder, size_t stage, int64_t seq, int64_t samples);

#endif
