/* The inside of a tape, which recording (tape.c) and backward (backward.c) share. */
#ifndef TENSOR_TAPE_H
#define TENSOR_TAPE_H
#include "tensor/operation.h"

/* A block of memory that was given back and may be used again. */
typedef struct spare {
  struct spare *next;
  size_t bytes;
  void *data;
} spare;

/* Memory that tapes take from. Each tape has one, and may share another for values and gradients (ad_tape_pool). */
typedef struct tape_memory {
  ad_arena *arena;
  size_t dry_used,
      dry_peak;   /* on backend dry: bytes that values would take now; the most of these and the arena's together */
  spare *spares;  /* blocks to use again */
  spare *records; /* unused records for `spares` */
  int is_shared;
  size_t tapes; /* if is_shared: number of tapes that hold some of this memory */
} tape_memory;

/* Which gradients a walk of backward computes: all, those that inputs reach, or the remaining ones. */
typedef enum tape_walk { WALK_WHOLE, WALK_INPUTS, WALK_WEIGHTS } tape_walk;

/* Losses of single samples. cross_entropy adds what this rank has of each sample (a row of the targets' first
 * dimension). Summed over all ranks, a sample counts as often as its parts have replicas. */
typedef struct ad_sample_losses {
  double *sums, *counts; /* [size]: for each sample, its summed loss and the positions that count */
  size_t size;           /* number of samples */
  size_t batch, first;   /* index of the first sample of the present batch; within it, of the present microbatch */
} ad_sample_losses;

struct ad_tape {
  ad_comm *comm;
  const ad_mesh *mesh;
  ad_tape_options options;
  int dry;             /* 1: only records and checks, computes nothing */
  tape_memory own;     /* all memory of a step that is not shared */
  tape_memory *values; /* memory of values, what they save, gradients and scratch: &own, or a pool's */
  int has_shared;      /* 1: the tape holds some of the pool's memory */
  size_t most_routed;  /* the most tokens that chose experts at the same time */
  int64_t position;    /* position of the first token of its sequences; see ad_tape_continue */
  /* the tensor recorded last */
  ad_tensor *last;
  ad_tensor dead;                  /* failed operations return it */
  int runs_forward;                /* an operation was recorded since the last start of backward */
  int began_last;                  /* the last start of backward has begun */
  tape_walk walk;                  /* the present or the last walk */
  int defers_weights;              /* the last start was one of inputs, so that ad_backward_weights must follow */
  int transitions;                 /* number of transitions recorded so far */
  int reported;                    /* other ranks know of the error */
  const ad_sample_losses *samples; /* NULL: losses of samples are not wanted */
  ad_status status;
  char message[AD_MESSAGE_MAX];
};

/* Argument of functions at the injection point AD_INJECT_RECORD: a transition that is about to be recorded. A mutation
 * may change it. */
typedef struct ad_record_passing {
  const char *site;
  ad_move move;
  int ordinal;  /* number of the transition on its tape */
  ad_axes axes; /* axes over which it is recorded */
  int times;    /* how often it is recorded: 1; 0: it is left out */
  int carries;  /* 1: what is moved carries a gradient */
} ad_record_passing;

/* Argument of functions at the injection point AD_INJECT_CONSTANT. */
typedef struct ad_constant_passing {
  const char *site;
  const ad_array *value;
} ad_constant_passing;

/* Argument of functions at two injection points: at AD_INJECT_OPERANDS an operation that is about to be recorded, whose
 * operands they may replace; at AD_INJECT_REFUSED an operation that was refused. */
typedef struct ad_operation_passing {
  ad_tape *tape;
  const ad_operation *op;
  ad_tensor *const *operands;
  int count;
  const void *own;
  const char *site;
} ad_operation_passing;

void ad_tape_note_samples(ad_tape *tape, const ad_sample_losses *to);
/* Whether the tape has values of this dtype: its own, or the wide one. */
int ad_tape_has_dtype(const ad_tape *tape, ad_dtype dtype);
/* A point to return to, to free scratch memory. */
typedef struct tape_mark {
  size_t arena, dry;
} tape_mark;
tape_mark ad_tape_mark(const ad_tape *tape);
void ad_tape_rewind(ad_tape *tape, tape_mark mark);
/* Takes an operation's scratch memory, at out->scratch; rewinding gives it back. */
ad_status ad_tape_take_scratch(ad_tape *tape, ad_tensor *out) AD_CHECKED;

/* ---- memory of values and gradients (blocks.c) ---- */

/* Takes memory; on backend dry it is only counted, and *out is NULL. */
ad_status ad_memory_take(tape_memory *memory, int dry, size_t bytes, void **out) AD_CHECKED;
size_t ad_memory_peak(const tape_memory *memory, int dry);
/* Takes the memory of a gradient, which may be that of a consumed gradient of the same size; and gives it back. */
ad_status ad_block_take(ad_tape *tape, size_t bytes, void **out) AD_CHECKED;
ad_status ad_block_give(ad_tape *tape, size_t bytes, void *data) AD_CHECKED;
/* Takes the memory of a value, or of what forward saves: as a block in shared memory, else new. */
ad_status ad_value_take(ad_tape *tape, size_t bytes, void **out) AD_CHECKED;
/* Only for tapes that share a pool: after a pass, gives back the memory of values, and what operations saved, that
 * neither backward nor another tape reads any more. A tensor whose value was given back has an array without data. */
ad_status ad_tape_drop(ad_tape *tape) AD_CHECKED;
void ad_tape_give_all(ad_tape *tape); /* only for tapes that share a pool: gives all back */
/* The operands of `out` whose gradients this walk computes, a bit for each. */
uint64_t ad_walk_fills(tape_walk walk, const ad_tensor *out);
/* Marks a value as read by others until the tape's reset. */
void ad_tape_lend(ad_tensor *value);

/* Memory for values and gradients that tapes which are in flight together share: what one gives back another takes.
 * Steps that do the same take the same bytes, on backend dry too. Destroy the tapes before the pool. */
typedef struct ad_tape_pool ad_tape_pool;
ad_status ad_tape_pool_create(int dry, ad_tape_pool **out) AD_CHECKED;
void ad_tape_pool_destroy(ad_tape_pool *pool);
size_t ad_tape_pool_peak_bytes(const ad_tape_pool *pool); /* as ad_tape_peak_bytes */
void ad_tape_share(ad_tape *tape, ad_tape_pool *pool);    /* call it before anything is recorded */

/* Acquires the memory of the parameters among the operands of `out`, until ad_tape_release. `unread`: bit set of
 * operands that are left out. On failure none is held. */
ad_status ad_tape_acquire(ad_tape *tape, ad_tensor *out, uint64_t unread) AD_CHECKED;
void ad_tape_release(ad_tensor *out, uint64_t unread);
void ad_tape_trace(ad_tape *tape, ad_pass pass, ad_edge edge);

/* ad_input for a value whose gradient has another dtype of the tape, as a parameter's does. */
ad_tensor *ad_input_with(ad_tape *tape, const ad_array *value, ad_dtype gradient, const char *site);

/* What a value, and its gradient on the way back, is rounded to during a transfer; 0: not rounded. */
typedef struct transfer_rounding {
  ad_dtype value, gradient;
  double gradient_scale; /* power of two that the gradient is multiplied by during the transfer */
  double
      *overflow; /* [0]: the largest value that f16 made infinite; [1]: the same for the gradient; NULL: not wanted */
} transfer_rounding;
ad_tensor *ad_comm_round_at(ad_tape *tape, ad_tensor *x, const transfer_rounding *comm_dtype,
                            const char *site); /* op_comm_round.c */

size_t ad_tape_most_routed(const ad_tape *tape); /* the most tokens that chose experts at the same time (ad_top_k) */

#endif
