/* A decoder: embedding, blocks around a residual stream, norm and head. Each block has attention and a second branch,
 * such as an MLP. A program chooses the second branch and what the tokens are. */
#ifndef DECODER_DECODER_H
#define DECODER_DECODER_H
#include "addend/layers.h"
#include "decoder/keys.h"
#include "decoder/options.h"

typedef struct ad_decoder ad_decoder;

/* Functions for the second branch of each block; `own` is the object that these functions use. */
typedef struct ad_branch {
  void (*declare)(void *own, const ad_decoder *decoder, ad_declarations *to, int64_t block);
  /* Returns the branch's output, in the shape and layout of its input x, the normalised stream. */
  ad_tensor *(*forward)(void *own, const ad_decoder *decoder, ad_tape *t, int64_t block, ad_tensor *x);
  /* Submits losses of the branch at the end of a microbatch's forward pass. NULL if the branch has none. */
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
  double product_elements; /* elements of all matrices that a token is multiplied with */
  size_t param_count;
  size_t first_state, state_count; /* index of the stage's first state among those of all stages; how many it has */
} ad_decoder_stage;

struct ad_decoder {
  const ad_decoder_options *options;
  const ad_branch *branch;
  void *branch_own;
  size_t microbatch;   /* the microbatch that the running phase computes */
  int discards;        /* 1: the phase's results are discarded (ad_phase_discards) */
  double expert_share; /* the fraction of the matrices [experts, ...] that one token uses */
  ad_parallel parallel;
  /* what the names of its blocks begin with, as layers that may run again ("", or "MODULE."), borrowed; set before the
   * decoder is created; NULL: no block may */
  const char *layer_prefix;
  double output_factor; /* factor of the initial values of the matrices whose products are added to the residual
                         * stream */
  ad_embedding_layer embedding;
  ad_decoder_block *blocks;
  ad_norm_layer final_norm;
  ad_linear_layer head; /* not used if the embedding is also the head (tied) */
  ad_layout table;      /* the embedding's compute layout, on the mesh of its stage */
  ad_decoder_stage *stages;
  size_t stage_count;
  const ad_decoder_stage *stage; /* the stage whose phase is running */
  ad_tensor **leaves; /* leaf tensors: one for each parameter of the running stage, in the present microbatch */
  /* the states of all stages; a stage's first phase sets its states, which stay NULL if the stage is on other ranks */
  ad_array **states;
};

/* Adds a module called `name` on the program's mesh with index `module`. If the program has stages, adds one module for
 * each stage, on this mesh and the following ones. Borrows the options and the branch. */
ad_status ad_decoder_create(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                            void *branch_own, double expert_share, const char *name, size_t module,
                            ad_program *to) AD_CHECKED;
/* Declares the decoder in one stage, without a module: adds its parameters to `to`. The caller sets decoder->leaves
 * before it runs the decoder. */
ad_status ad_decoder_declare(ad_decoder *decoder, const ad_decoder_options *options, const ad_branch *branch,
                             void *branch_own, double expert_share, ad_declarations *to) AD_CHECKED;
void ad_decoder_release(ad_decoder *decoder);

/* Phases of the decoder's module call these functions in this order. Tokens are [batch, seq]: S0 on dp, S1z or R on cp.
 * The residual stream is [batch, seq, d_model]: I or S1 on tp, S1z on cp. Logits are sharded along the vocabulary over
 * tp. */
void ad_decoder_begin(ad_decoder *decoder, ad_phase_run *at, size_t stage);
ad_tensor *ad_decoder_embed(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
/* The two halves of ad_decoder_embed, for programs that change the stream in between. ad_decoder_embed_full returns the
 * stream of the full sequence, I on tp. ad_decoder_shard then shards the stream along the sequence over cp and, if the
 * options ask for it, over tp (S1). */
ad_tensor *ad_decoder_embed_full(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens);
ad_tensor *ad_decoder_shard(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
ad_tensor *ad_decoder_blocks(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
/* Returns the logits. `table` is the embedding, if the head is tied to an embedding on another stage; else NULL. */
ad_tensor *ad_decoder_head(const ad_decoder *decoder, ad_tape *t, ad_tensor *x, ad_tensor *table);
/* Runs all blocks and the head of a decoder that has one stage. */
ad_tensor *ad_decoder_logits(const ad_decoder *decoder, ad_tape *t, ad_tensor *x);
void ad_decoder_end(const ad_decoder *decoder, ad_phase_run *at);
/* Returns the logits [1, 1, vocabulary] of the token after `tokens` [1, rows]. kept[i] has block i's keys and values of
 * the tokens in earlier calls. For one rank and one stage; the caller sets decoder->leaves and decoder->states. */
ad_tensor *ad_decoder_continue(const ad_decoder *decoder, ad_tape *t, ad_tensor *tokens, ad_kept_keys *const *kept);
/* Returns 1 if the head is tied to an embedding on another stage. The stage of the embedding must then transfer the
 * table to the stage of the head. */
int ad_decoder_gives_table(const ad_decoder *decoder);
/* Returns the layout of the residual stream between blocks, on a stage's mesh. */
ad_layout ad_decoder_stream_layout(const ad_decoder *decoder, const ad_mesh *mesh);
/* Returns the operations of all matrix products, forward and backward, for `samples` samples of `seq` tokens. */
double ad_decoder_flops(const ad_decoder *decoder, int64_t seq, int64_t samples);
double ad_decoder_stage_flops(const ad_decoder *decoder, size_t stage, int64_t seq, int64_t samples);

#endif
