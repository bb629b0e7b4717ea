/* The inside of a tape, shared by recording (tape.c) and backward (backward.c). */
#ifndef TENSOR_TAPE_H
#define TENSOR_TAPE_H
#include "tensor/operation.h"

/* Memory that was given back, to be used again. */
typedef struct spare {
  struct spare *next;
  size_t bytes;
  void *data;
} spare;

/* Where tapes take memory: each has its own, and may share another for values and gradients (ad_tape_pool). */
typedef struct tape_memory {
  ad_arena *arena;
  size_t dry_used,
      dry_peak;   /* on engine dry: bytes that values would take; the most of them and the arena's together */
  spare *spares;  /* memory to use again */
  spare *records; /* empty records for `spares` */
  int is_shared;
  size_t tapes; /* where it is shared: those that have something of it */
} tape_memory;

/* Which gradients a walk over the tape leaves: all; of what inputs reach; of the others. */
typedef enum tape_walk { WALK_WHOLE, WALK_INPUTS, WALK_WEIGHTS } tape_walk;

/* Losses of samples, apart. cross_entropy adds to them what this rank has of each sample, a row of its targets' first
 * dimension; summed over all ranks, each sample is there as often as a part of it has copies. */
typedef struct ad_sample_losses {
  double *sums, *counts; /* of all samples */
  size_t size;           /* how many there are */
  size_t batch, first;   /* the first of the present batch, and of its present microbatch */
} ad_sample_losses;

struct ad_tape {
  ad_comm *comm;
  const ad_mesh *mesh;
  ad_tape_options options;
  int dry;             /* records and checks, computes nothing */
  tape_memory own;     /* every byte of a step, but for what is shared */
  tape_memory *values; /* of values, what is saved of them, gradients and scratch: `own`, or a pool's */
  int has_shared;      /* something of `values`, where that is a pool's */
  size_t most_routed;  /* tokens that chose experts at once */
  int64_t position;    /* of the first token of its sequences; see ad_tape_continue */
  ad_tensor *last;
  ad_tensor dead; /* what failed operations return */
  int runs_forward;
  int began_last;                  /* the last start of backward began */
  tape_walk walk;                  /* the last one, or the one under way */
  int owes_weights;                /* the last start was one of inputs: ad_backward_weights is to come */
  int transitions;                 /* recorded so far */
  int told;                        /* the group knows of the error */
  const ad_sample_losses *samples; /* NULL: nobody wants them */
  ad_status status;
  char message[AD_MESSAGE_MAX];
};

/* What passes the seam AD_SEAM_RECORD. */
typedef struct ad_record_passing {
  const char *site;
  ad_move move;
  int ordinal;  /* of the transition on its tape */
  ad_axes axes; /* over which it is recorded */
  int times;    /* 1; 0: it is not */
  int carries;  /* a gradient, of what is moved */
} ad_record_passing;

/* What passes the seams AD_SEAM_OPERANDS, where others may take the operands' place, and AD_SEAM_REFUSED. */
typedef struct ad_operation_passing {
  ad_tape *tape;
  const ad_operation *op;
  ad_tensor *const *operands;
  int count;
  const void *own;
  const char *site;
} ad_operation_passing;

void ad_tape_note_samples(ad_tape *tape, const ad_sample_losses *to);
/* Values of this dtype stand on the tape: its own, or the wide one. */
int ad_tape_has_dtype(const ad_tape *tape, ad_dtype dtype);
/* A point to return to, for scratch memory. */
typedef struct tape_mark {
  size_t arena, dry;
} tape_mark;
tape_mark ad_tape_mark(const ad_tape *tape);
void ad_tape_rewind(ad_tape *tape, tape_mark mark);
/* Scratch memory of an operation at out->scratch; given back by rewinding. */
ad_status ad_tape_take_scratch(ad_tape *tape, ad_tensor *out) AD_CHECKED;

/* ---- blocks.c ---- */

ad_status ad_memory_take(tape_memory *memory, int dry, size_t bytes, void **out) AD_CHECKED;
size_t ad_memory_peak(const tape_memory *memory, int dry);
/* Memory of a gradient, which may have been that of another of the same size; and back. */
ad_status ad_block_take(ad_tape *tape, size_t bytes, void **out) AD_CHECKED;
ad_status ad_block_give(ad_tape *tape, size_t bytes, void *data) AD_CHECKED;
/* Memory of a value and of what forward saves of it: the same where memory is shared, else new. */
ad_status ad_value_take(ad_tape *tape, size_t bytes, void **out) AD_CHECKED;
/* After a pass: where memory is shared, gives back values and what was saved that no call of backward reads which is
 * still to come and nobody else does. A tensor whose value went has an array without data. */
ad_status ad_tape_drop(ad_tape *tape) AD_CHECKED;
void ad_tape_give_all(ad_tape *tape); /* where memory is shared: all that the tape has of it */
/* The operands of `out` whose gradients this walk leaves, one bit each. */
uint64_t ad_walk_fills(tape_walk walk, const ad_tensor *out);
/* Others read this value until the tape's reset. */
void ad_tape_lend(ad_tensor *value);

/* Memory for the values and gradients of tapes that are under way at once: what one gives back another takes. Steps
 * that do the same take the same bytes, on engine dry too. The tapes go before their pool. */
typedef struct ad_tape_pool ad_tape_pool;
ad_status ad_tape_pool_create(int dry, ad_tape_pool **out) AD_CHECKED;
void ad_tape_pool_destroy(ad_tape_pool *pool);
size_t ad_tape_pool_peak_bytes(const ad_tape_pool *pool); /* as ad_tape_peak_bytes */
void ad_tape_share(ad_tape *tape, ad_tape_pool *pool);    /* before anything is recorded */

/* The parameters among the operands of `out` have memory from acquire to release; `unread` names operands that are left
 * out. On failure none is held. */
ad_status ad_tape_acquire(ad_tape *tape, ad_tensor *out, uint64_t unread) AD_CHECKED;
void ad_tape_release(ad_tensor *out, uint64_t unread);
void ad_tape_trace(ad_tape *tape, ad_pass pass, ad_edge edge);

/* ad_input of a value whose gradient is of another dtype of the tape than itself, as a parameter's is. */
ad_tensor *ad_input_with(ad_tape *tape, const ad_array *value, ad_dtype gradient, const char *site);

/* What a value is rounded to on a wire, and its gradient on its way back; 0: not rounded. */
typedef struct wire_rounding {
  ad_dtype value, gradient;
  double gradient_scale; /* a power of two that the gradient carries meanwhile */
  double
      *overflow; /* the largest value that f16 made infinite on its way, and of the gradient at [1]; NULL: not asked */
} wire_rounding;
ad_tensor *ad_wire_at(ad_tape *tape, ad_tensor *x, const wire_rounding *wire, const char *site); /* op_wire.c */

size_t ad_tape_most_routed(const ad_tape *tape); /* the most tokens that chose experts at once (ad_top_k) */

#endif
