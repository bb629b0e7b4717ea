/* The private part of a tape, which recording (tape.c) and backward (backward.c) share. */
#ifndef TENSOR_TAPE_H
#define TENSOR_TAPE_H
#include "tensor/operation.h"

/* A block of memory that was given back and can be used again. */
typedef struct spare {
  struct spare *next;
  size_t bytes;
  void *data;
} spare;

/* Memory for tapes. Each tape has its own, and several tapes may share another one for values and gradients
 * (ad_tape_pool). */
typedef struct tape_memory {
  ad_arena *arena;
  /* used on backend dry. dry_used: bytes that values would take now; dry_peak: the largest sum so far of dry_used and
   * the arena's bytes */
  size_t dry_used, dry_peak;
  spare *spares;  /* blocks that can be used again */
  spare *records; /* unused records for `spares` */
  int is_shared;
  size_t tapes; /* number of tapes that use this memory, if it is shared */
} tape_memory;

/* Which gradients a walk of backward computes: WHOLE all, INPUTS only those of tensors computed from inputs, WEIGHTS
 * the remaining ones. */
typedef enum tape_walk { WALK_WHOLE, WALK_INPUTS, WALK_WEIGHTS } tape_walk;

/* A layer whose values were let go after forward (ad_recompute). */
typedef struct tape_layer {
  ad_tensor **records; /* [count]: its operations, in the order in which they were recorded */
  size_t count;
  int is_kept; /* 1: no pattern names it: its values stay until its last backward */
  int is_over; /* 1: the first of two walks has left it, and what the second reads is there */
} tape_layer;

/* Argument of functions at the injection point AD_INJECT_RERUN. */
typedef struct ad_rerun_passing {
  ad_tape *tape;
  ad_tensor *out; /* an operation of the layer, whether it runs again or is kept */
} ad_rerun_passing;

/* The operation's own struct of `dropout`. */
typedef struct dropout_numbers {
  double probability;
  uint64_t seed;
  const char *name;
  int64_t step, first;
} dropout_numbers;

/* Losses of single samples. cross_entropy adds this rank's part of the loss of each sample (a row of the targets' first
 * dimension). If sums of all ranks are added, each part is counted once for each of its replicas. */
typedef struct ad_sample_losses {
  double *sums, *counts; /* [size]: for each sample, its summed loss and the positions that count */
  size_t size;           /* number of samples */
  size_t batch, first;   /* index of the first sample of the present batch; within it, of the present microbatch */
} ad_sample_losses;

/* A mesh of all ranks, and the mesh of one data-parallel position that replaces it on the tape of a leaf. */
typedef struct ad_leaf_mesh {
  const ad_mesh *full, *own;
} ad_leaf_mesh;

struct ad_tape {
  ad_comm *comm;
  const ad_mesh *mesh;
  /* For a tape that computes one leaf (ad_tape_take_leaf): the meshes on which its parameters may be, borrowed; else
   * NULL */
  const ad_leaf_mesh *leaf_meshes;
  size_t leaf_mesh_count;
  /* 1: what is recorded now sums over a microbatch by definition, so the tape of a leaf may sum over data-parallel axes,
   * which have one rank there */
  int sums_microbatch;
  ad_tape_options options;
  int dry;             /* 1: the tape only records and checks operations, and computes nothing */
  tape_memory own;     /* all memory of a step that is not shared */
  tape_memory *values; /* memory of values, what they save, gradients and scratch: &own, or a pool's */
  int has_shared;      /* 1: the tape uses some of the pool's memory */
  size_t most_routed;  /* the most tokens that chose experts at the same time */
  int64_t position;    /* position of the first token of the tape's sequences; see ad_tape_continue */
  /* the tensor recorded last */
  ad_tensor *last;
  ad_tensor dead;      /* the tensor that failed operations return */
  int runs_forward;    /* 1: an operation was recorded since the last run of backward */
  int began_last;      /* 1: the last run of backward before the next reset has begun */
  tape_walk walk;      /* the present walk, or the last one if none runs */
  int defers_weights;  /* 1: the last run made only the walk WALK_INPUTS, so that ad_backward_weights must follow */
  tape_layer *present; /* the layer that ran again and in which backward is now; NULL: none */
  int transitions;     /* number of transitions recorded so far */
  int reported;        /* 1: the error was reported to the other ranks */
  const ad_sample_losses *samples; /* where losses of single samples go; NULL: they are not wanted */
  ad_status status;
  char message[AD_MESSAGE_MAX];
};

/* Argument of functions at the injection point AD_INJECT_RECORD: a transition about to be recorded, which a mutation
 * may change. */
typedef struct ad_record_passing {
  const char *site;
  ad_move move;
  int ordinal;  /* index of the transition among those of its tape, from 0 */
  ad_axes axes; /* axes over which the transition is recorded */
  int times;    /* how often the transition is recorded: 1; a mutation may set it to 0 (left out) or more */
  int carries;  /* 1: the moved value carries a gradient */
} ad_record_passing;

/* Argument of functions at the injection point AD_INJECT_CONSTANT: a constant that was recorded. */
typedef struct ad_constant_passing {
  const char *site;
  const ad_array *value;
} ad_constant_passing;

/* Argument of functions at two injection points. AD_INJECT_OPERANDS: an operation about to be recorded, whose
 * operands may be replaced. AD_INJECT_REFUSED: an operation that was refused. */
typedef struct ad_operation_passing {
  ad_tape *tape;
  const ad_operation *op;
  ad_tensor *const *operands;
  int count;
  const void *own;
  const char *site;
} ad_operation_passing;

/* Makes the tape compute one leaf of the batch (train.leaves) on the tape's mesh, which has the ranks of one
 * data-parallel position. Parameters and states are on the `full` of one of `meshes`, which has the ranks of all
 * positions. On the tape they are described on the `own` beside it, and gradients leave the tape on `full`; types stay
 * the same. Borrows `meshes`. From now on, moves of bytes over dp_replicate, dp_shard and pp are refused. */
void ad_tape_take_leaf(ad_tape *tape, const ad_leaf_mesh *meshes, size_t count);
void ad_tape_note_samples(ad_tape *tape, const ad_sample_losses *to);
/* Returns 1 if values of this tape may have the dtype: the tape's own, or the wide one. */
int ad_tape_has_dtype(const ad_tape *tape, ad_dtype dtype);
/* A position of the arena: rewinding to it frees the scratch memory taken after it. */
typedef struct tape_mark {
  size_t arena, dry;
} tape_mark;
tape_mark ad_tape_mark(const ad_tape *tape);
void ad_tape_rewind(ad_tape *tape, tape_mark mark);
/* Takes the memory of an operation's result, unless it has it, and runs forward: when it is recorded, and again when its
 * layer is recomputed. */
ad_status ad_tape_run(ad_tape *tape, ad_tensor *out) AD_CHECKED;
/* Before the backward of an operation of `layer` (NULL: of no layer): lets the layer go in which backward was before,
 * and runs this one again if it was let go. */
ad_status ad_layer_turn(ad_tape *tape, tape_layer *layer) AD_CHECKED;
/* Takes an operation's scratch memory, at out->scratch; rewinding gives it back. */
ad_status ad_tape_take_scratch(ad_tape *tape, ad_tensor *out) AD_CHECKED;

/* ---- memory of values and gradients (blocks.c) ---- */

/* Takes memory. On backend dry the bytes are only counted, and *out is NULL. */
ad_status ad_memory_take(tape_memory *memory, int dry, size_t bytes, void **out) AD_CHECKED;
size_t ad_memory_peak(const tape_memory *memory, int dry);
/* Call it before memory is given back by a reset or a rewind: on backend dry the peak includes what is taken now. */
void ad_memory_note_peak(tape_memory *memory, int dry);
/* Takes a gradient's memory, perhaps that of a consumed gradient of the same size; ad_block_give gives it back. */
ad_status ad_block_take(ad_tape *tape, size_t bytes, void **out) AD_CHECKED;
ad_status ad_block_give(ad_tape *tape, size_t bytes, void *data) AD_CHECKED;
/* Takes memory for a value, or for what an operation's forward saves: a block of the shared memory if there is one,
 * otherwise new memory. */
ad_status ad_value_take(ad_tape *tape, size_t bytes, void **out) AD_CHECKED;
/* For tapes that share a pool, after a pass: gives back the values and saved memory that no later pass and no other
 * tape will read. A tensor's array has no data after its value was given back. */
ad_status ad_tape_drop(ad_tape *tape) AD_CHECKED;
/* Give back the memory of a value, or of what forward saved, if it has a block of its own. */
ad_status ad_value_give(ad_tape *tape, ad_tensor *of) AD_CHECKED;
ad_status ad_saved_give(ad_tape *tape, ad_tensor *of) AD_CHECKED;
ad_tensor *ad_value_owner(ad_tensor *value); /* returns the tensor that owns the memory of this value */
/* Marks what the backward of `out` will read in the second walk (WALK_WEIGHTS), if it is called there. */
void ad_need_for_weights(ad_tensor *out);
void ad_tape_give_all(ad_tape *tape); /* for tapes that share a pool: gives all memory back to the pool */
/* Returns the operands of `out` whose gradients this walk computes, one bit each. */
uint64_t ad_walk_fills(tape_walk walk, const ad_tensor *out);
/* Marks a value as read by others until the tape's reset, so that its memory is not given back before. */
void ad_tape_lend(ad_tensor *value);

/* Memory for the values and gradients of several tapes in flight: a block that one tape gives back serves another.
 * Steps that do the same take the same bytes, on backend dry too. Destroy the tapes before the pool. */
typedef struct ad_tape_pool ad_tape_pool;
ad_status ad_tape_pool_create(int dry, ad_tape_pool **out) AD_CHECKED;
void ad_tape_pool_destroy(ad_tape_pool *pool);
/* returns the pool's peak, as ad_tape_peak_bytes returns a tape's */
size_t ad_tape_pool_peak_bytes(const ad_tape_pool *pool);
void ad_tape_share(ad_tape *tape, ad_tape_pool *pool); /* call it before anything is recorded */

/* Acquires the memory of the parameters among the operands of `out`, until ad_tape_release. `unread`: bit set of
 * operands to leave out. On failure nothing stays acquired. */
ad_status ad_tape_acquire(ad_tape *tape, ad_tensor *out, uint64_t unread) AD_CHECKED;
void ad_tape_release(ad_tensor *out, uint64_t unread);
void ad_tape_trace(ad_tape *tape, ad_pass pass, ad_edge edge);

/* Like ad_input, for a value whose gradient has the dtype `gradient`: the value's own or, as a parameter's gradient,
 * the wide one. */
ad_tensor *ad_input_with(ad_tape *tape, const ad_array *value, ad_dtype gradient, const char *site);
/* Like ad_constant, for a value of another tape that was computed from frozen parameters. */
ad_tensor *ad_frozen_input(ad_tape *tape, const ad_array *value, const char *site);

/* The dtypes to which a value, and in backward its gradient, is rounded during a transfer; 0: not rounded. */
typedef struct transfer_rounding {
  ad_dtype value, gradient;
  double gradient_scale; /* power of two that the gradient is multiplied by during the transfer */
  /* [0]: the largest value that became infinite in f16; [1]: the same for the gradient; NULL: not wanted */
  double *overflow;
} transfer_rounding;
/* op_comm_round.c: rounds x, and in backward its gradient, as a transfer would; on this rank only. */
ad_tensor *ad_comm_round_at(ad_tape *tape, ad_tensor *x, const transfer_rounding *comm_dtype, const char *site);

size_t ad_tape_most_routed(const ad_tape *tape); /* the most tokens that chose experts at the same time (ad_top_k) */

/* Makes the tape's sequences continue earlier sequences of `position` tokens, until the next reset: their first token
 * has this position in ad_rotary, and ad_attention takes `position` more keys and values than rows, those of the
 * earlier tokens. */
void ad_tape_continue(ad_tape *tape, int64_t position);
/* Returns `a` times microbatch m's share of the count, ad_count_of(m) / total, or 0 if the total is 0. It is for a loss
 * that is not linear in its sums: such a loss is computed for each microbatch over all ranks, and has the weight of its
 * microbatch. */
ad_tensor *ad_share_at(ad_tape *tape, ad_tensor *a, const ad_count *count, size_t m, const char *site);
#define ad_share(...) ad_share_at(__VA_ARGS__, AD_HERE)

#endif
