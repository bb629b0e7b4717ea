/* The private part of tensors, for addend's own operations (op_*.c). A record is described in addend/operation.h. The
 * tape (tape.c, backward.c) does the work common to all operations: it checks shapes and types by the rule, allocates
 * memory, decides where gradients go, and skips the arithmetic on backend dry. */
#ifndef TENSOR_OPERATION_H
#define TENSOR_OPERATION_H
#include "tensor/arena.h"
#include "base/error.h"
#include "rows/rows.h"
#include "addend/operation.h"

struct ad_tensor {
  ad_tape *tape;
  ad_tensor *previous;    /* the tensor recorded on the tape before this tensor */
  const ad_operation *op; /* NULL: this is a leaf */
  const char *site;
  ad_tensor **operand;
  int operand_count;
  const void *own; /* the operation's own struct, op->own_size bytes */
  ad_array array;
  ad_array grad; /* the gradient, in the dual layout; valid while has_grad is 1 */
  ad_dtype grad_dtype;
  unsigned char has_grad;
  /* has_value, has_saved: `array` or `saved` has its own block of the shared memory (blocks.c). is_in_reducer:
   * `grad` is summed directly in the reducer's bucket. is_forgotten: the value's memory was given back (ad_forget). */
  unsigned char has_value, has_saved, is_in_reducer, is_forgotten;
  int carries;             /* 1: the tensor has a gradient: it is a parameter or an input, or computed from one */
  unsigned char is_frozen; /* 1: it is a frozen parameter or computed from one */
  unsigned char is_kept;   /* the caller wants the gradient to stay (ad_keep) */
  unsigned char is_lent;   /* another tape or rank reads the value until this tape's reset */
  /* 1: a later call of backward reads the value (is_needed), or `saved` (needs_saved) */
  unsigned char is_needed, needs_saved;
  /* The layer that lets its values go and runs again (recompute.c), or NULL. gives_value, gives_saved: the value or
   * `saved` is let go; runs_again: forward runs again when backward has reached the layer. */
  struct tape_layer *layer;
  unsigned char gives_value, gives_saved, runs_again;
  /* for a parameter: the set of parameters to which it belongs, and its index `param` in that set; NULL if this is not
   * a parameter */
  const ad_parameters *from;
  size_t param;
  /* During one run of backward: `uses` counts the operations and seeds whose share is still missing from the
   * gradient; `takes_shares`: the shares are added to `grad`. The `grad` of a kept tensor belongs to an earlier run
   * until the first share of this run. */
  int uses, takes_shares;
  /* 1: `earlier` is valid */
  int has_earlier;
  /* 1: computed from an input, so that the first of two walks (WALK_INPUTS) computes its gradient; 0: the second
   * does */
  unsigned char reached;
  unsigned char shares_value; /* the value lies in operand 0's memory */
  /* 1: the gradient was passed to the operands that are computed from inputs, but not yet to the other operands */
  unsigned char waits;
  /* Only for a tensor whose gradient is kept (ad_keep): the gradient of earlier runs of backward, while `grad`
   * collects that of this run. While `waits` is 1: the gradient of this run, and `grad` is the sum of both. */
  void *earlier;
  void *saved, *scratch;
};

/* Like ad_operation_apply, for one of addend's own records, which is not checked. On failure returns the tape's dead
 * tensor; an operation on a dead tensor returns it again. */
ad_tensor *ad_tape_apply(ad_tape *tape, const ad_operation *op, ad_tensor *const *operands, int count, const void *own,
                         const char *site);
ad_tensor *ad_tape_missing(const char *site, const char *what); /* sets the error "the tape is NULL"; returns NULL */
int ad_tape_failed(const ad_tape *tape);
/* Checks law 5: AD_TYPE unless the loss is P or I on every axis, AD_INVALID unless it is a scalar. */
ad_status ad_check_loss(const ad_tensor *loss, const char *site);
/* Reports this tape's error to the other ranks, once, because they may wait for this rank in a collective. */
void ad_tape_report_error(ad_tape *tape);
int ad_tape_owns(const ad_tape *tape, const ad_tensor *tensor); /* returns 1 if the tensor is a live one of this tape */
/* returns words that describe a tensor which the tape does not own */
const char *ad_tape_foreigner(const ad_tensor *tensor);
/* Like ad_operation_describe, but with these layouts instead of the operands' own; for fused operations. */
ad_status ad_operation_describe_by(const ad_tape *tape, ad_tensor *out, const ad_layout *const *layouts);

/* Returns the operands whose gradients backward fills, one bit each. */
static inline uint64_t ad_operation_fills(const ad_operation *op) { return op->fills ? op->fills : ~op->indices; }
/* Returns 1 if by its rule the operation is linear in each operand. Then the gradient of an operand depends only on
 * the other operands and on the arriving gradient. */
static inline int ad_operation_is_linear(const ad_operation *op) { return op->dims && op->linearity != AD_NONLINEAR; }
/* Returns the operands that backward does not read while it fills only the gradients of `filled`; one bit each. */
static inline uint64_t ad_operation_unread(const ad_operation *op, uint64_t filled) {
  int is_one = !(filled & (filled - 1));
  if (!ad_operation_is_linear(op)) return op->unread;
  return op->linearity == AD_ADDITIVE ? ~UINT64_C(0) : op->unread | (is_one ? filled : 0);
}

/* Returns 1 if the tensor counts as a constant in the rules of types. What would have a gradient if no parameter were
 * frozen does not: freezing a parameter changes no types. */
static inline int ad_is_constant(const ad_tensor *tensor) { return !tensor->carries && !tensor->is_frozen; }
static inline int ad_is_parameter(const ad_tensor *tensor) { return tensor->from != NULL; }

/* Returns the dtype in which statistics of the value are kept: its wide dtype. */
static inline ad_dtype ad_wide_of(const ad_tensor *tensor) { return ad_dtype_wide(tensor->array.dtype); }

/* ad_numel returns the number of the value's elements on this rank. */
static inline size_t ad_numel(const ad_tensor *tensor) { return (size_t)ad_shape_numel(&tensor->array.local); }
/* Return the size of the last dimension, and the number of rows of that size, on this rank. */
size_t ad_columns(const ad_tensor *tensor);
size_t ad_rows_of(const ad_tensor *tensor);
static inline void *ad_at(const ad_tensor *tensor, const void *data, size_t element) {
  return (char *)(uintptr_t)data + element * ad_dtype_size(tensor->array.dtype);
}

#endif
