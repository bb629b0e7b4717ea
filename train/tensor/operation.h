/* The inside of tensors, for addend's own operations (op_*.c; addend/operation.h says what a record is). The tape
 * (tape.c, backward.c) does everything that operations have in common: it checks shapes and types by the rule, gives
 * memory, decides where gradients go, and skips the arithmetic on backend dry. */
#ifndef TENSOR_OPERATION_H
#define TENSOR_OPERATION_H
#include "tensor/arena.h"
#include "base/error.h"
#include "rows/rows.h"
#include "addend/operation.h"

struct ad_tensor {
  ad_tape *tape;
  ad_tensor *previous;    /* the tensor recorded before this one */
  const ad_operation *op; /* NULL: this is a leaf */
  const char *site;
  ad_tensor **operand;
  int operand_count;
  const void *own; /* the operation's own struct, op->own_size bytes */
  ad_array array;
  ad_array grad; /* has the dual layout; valid while has_grad */
  ad_dtype grad_dtype;
  unsigned char has_grad;
  /* has_value, has_saved: `array`, or `saved`, has its own block of the shared memory (blocks.c). is_in_reducer:
   * `grad` is formed in the reducer's bucket. */
  unsigned char has_value, has_saved, is_in_reducer;
  int carries;           /* whether it has a gradient: it is a parameter or an input, or computed from one */
  unsigned char is_kept; /* the caller wants the gradient to stay (ad_keep) */
  unsigned char is_lent; /* another tape or rank reads the value until this tape's reset */
  unsigned char is_needed, needs_saved; /* calls of backward that are to come read the value; or `saved` */
  const ad_parameters *from; /* for a parameter: the set that it belongs to, as number `param`; NULL: not a parameter */
  size_t param;
  /* During a start of backward: `uses` counts the operations and seeds that still have to add their share to
   * the gradient; `takes_shares`: they add to `grad`. A kept tensor's `grad` belongs to an earlier start until
   * this start's first share. */
  int uses, takes_shares;
  /* 1: `earlier` is valid */
  int has_earlier;
  /* 1: computed from an input, so that its gradient belongs to the pass of inputs; 0: to the pass of weights */
  unsigned char reached;
  unsigned char shares_value; /* the value lies in operand 0's memory */
  unsigned char waits;        /* the gradient went to the operands that inputs reach, and not yet to the others */
  /* Only for a tensor whose gradient is kept (ad_keep): the gradient of earlier starts, while `grad` collects this
   * start's. While `waits` is 1: the gradient of this start, and `grad` is the sum of both. */
  void *earlier;
  void *saved, *scratch;
};

/* ad_operation_apply for one of addend's own records, which is known to be valid. On failure a dead tensor (the tape's,
 * which later operations pass on). */
ad_tensor *ad_tape_apply(ad_tape *tape, const ad_operation *op, ad_tensor *const *operands, int count, const void *own,
                         const char *site);
ad_tensor *ad_tape_missing(const char *site, const char *what); /* sets the error that the tape is NULL; returns NULL */
int ad_tape_failed(const ad_tape *tape);
/* Checks law 5: AD_TYPE unless the loss is P or I on every axis, AD_INVALID unless it is a scalar. */
ad_status ad_check_loss(const ad_tensor *loss, const char *site);
/* Reports this tape's error to the other ranks, once, because they may wait for this rank in a collective. */
void ad_tape_report_error(ad_tape *tape);
int ad_tape_owns(const ad_tape *tape, const ad_tensor *tensor); /* 1: the tensor is a live one of this tape */
const char *ad_tape_foreigner(const ad_tensor *tensor); /* describes, in words, a tensor that the tape does not own */
/* ad_operation_describe with layouts that a fused operation states in place of its operands' own. */
ad_status ad_operation_describe_by(const ad_tape *tape, ad_tensor *out, const ad_layout *const *layouts);

/* The operands whose gradients backward fills, a bit for each. */
static inline uint64_t ad_operation_fills(const ad_operation *op) { return op->fills ? op->fills : ~op->indices; }
/* Whether the operation is linear in each operand by its rule: then an operand's gradient depends on the other operands
 * and on the arriving gradient only. */
static inline int ad_operation_is_linear(const ad_operation *op) { return op->dims && op->linearity != AD_NONLINEAR; }
/* The operands that backward does not read if it fills the gradients of `filled` only. */
static inline uint64_t ad_operation_unread(const ad_operation *op, uint64_t filled) {
  int is_one = !(filled & (filled - 1));
  if (!ad_operation_is_linear(op)) return op->unread;
  return op->linearity == AD_ADDITIVE ? ~UINT64_C(0) : op->unread | (is_one ? filled : 0);
}

static inline int ad_is_parameter(const ad_tensor *tensor) { return tensor->from != NULL; }

/* The dtype in which statistics of the value are kept: the wide one. */
static inline ad_dtype ad_wide_of(const ad_tensor *tensor) { return ad_dtype_wide(tensor->array.dtype); }

/* Local sizes, for op_*.c. */
static inline size_t ad_numel(const ad_tensor *tensor) { return (size_t)ad_shape_numel(&tensor->array.local); }
/* The size of the last dimension, and the number of rows of that size. */
size_t ad_columns(const ad_tensor *tensor);
size_t ad_rows_of(const ad_tensor *tensor);
static inline void *ad_at(const ad_tensor *tensor, const void *data, size_t element) {
  return (char *)(uintptr_t)data + element * ad_dtype_size(tensor->array.dtype);
}

#endif
