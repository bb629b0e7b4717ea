/* Tensors from inside, for the records of addend's own operations (op_*.c; what a record is: addend/operation.h). The
 * tape (tape.c, backward.c) does everything that operations have in common: it checks shapes and types by the rule,
 * gives memory, finds where gradients go, and skips the arithmetic on engine dry. */
#ifndef TENSOR_OPERATION_H
#define TENSOR_OPERATION_H
#include "tensor/arena.h"
#include "base/error.h"
#include "rows/rows.h"
#include "addend/operation.h"

struct ad_tensor {
  ad_tape *tape;
  ad_tensor *previous;    /* the one recorded before */
  const ad_operation *op; /* NULL: a leaf */
  const char *site;
  ad_tensor **operand;
  int operand_count;
  const void *own; /* the operation's own struct, op->own_size bytes */
  ad_array array;
  ad_array grad; /* of dual layout; means something while has_grad */
  ad_dtype grad_dtype;
  unsigned char has_grad;
  /* Of tapes that share memory (blocks.c): blocks that are this tensor's; `grad` formed in the reducer's memory. */
  unsigned char has_value, has_saved, is_in_reducer;
  int carries; /* a gradient: it is a parameter or an input, or made from one */
  unsigned char is_kept;
  unsigned char is_lent;                /* another tape or another rank reads the value until this tape's reset */
  unsigned char is_needed, needs_saved; /* by calls of backward that are still to come */
  const ad_parameters *from;            /* of a parameter: whose number `param` it is; NULL for everything else */
  size_t param;
  /* During a start of backward: operations and seeds that still have to leave their share of the gradient, and whether
   * `grad` takes them in (not so a kept value's, which is an earlier start's until the first share of this one). */
  int uses, takes_shares;
  int has_earlier;
  unsigned char reached;      /* by an input: its gradient belongs to the pass of inputs, else to that of parameters */
  unsigned char shares_value; /* its memory is that of operand 0 */
  unsigned char waits;        /* went back to operands that inputs reach, and not yet to those of parameters */
  /* Of a kept value, while `grad` takes in the shares of a start: its gradient of earlier starts; while it waits the
   * gradient of this start, and `grad` the sum. */
  void *earlier;
  void *saved, *scratch;
};

/* ad_operation_apply of a record of addend's own, which has no size and is right. A dead tensor on failure. */
ad_tensor *ad_tape_apply(ad_tape *tape, const ad_operation *op, ad_tensor *const *operands, int count, const void *own,
                         const char *site);
ad_tensor *ad_tape_missing(const char *site, const char *what); /* says that there is no tape; returns NULL */
int ad_tape_failed(const ad_tape *tape);
/* Law 5: AD_TYPE unless the loss is P or I on every axis, AD_INVALID unless it is a scalar. */
ad_status ad_check_loss(const ad_tensor *loss, const char *site);
/* Tells the other ranks of this tape's error, once: they may wait for this one in a collective. */
void ad_tape_tell(ad_tape *tape);
int ad_tape_owns(const ad_tape *tape, const ad_tensor *tensor); /* a live tensor of this tape */
const char *ad_tape_foreigner(const ad_tensor *tensor);         /* what it is instead, in words */
/* ad_operation_describe with layouts that a fused operation states in place of its operands' own. */
ad_status ad_operation_describe_by(const ad_tape *tape, ad_tensor *out, const ad_layout *const *layouts);

/* The operands whose gradients one call of backward leaves. */
static inline uint64_t ad_operation_fills(const ad_operation *op) { return op->fills ? op->fills : ~op->indices; }
/* Linear in each operand, by its dims: what backward leaves for one is made of the others and of what arrives. */
static inline int ad_operation_is_linear(const ad_operation *op) { return op->dims && op->linearity != AD_NONLINEAR; }
/* The operands that a call of backward does not read which fills the gradients of `filled` alone. */
static inline uint64_t ad_operation_unread(const ad_operation *op, uint64_t filled) {
  int is_one = !(filled & (filled - 1));
  if (!ad_operation_is_linear(op)) return op->unread;
  return op->linearity == AD_ADDITIVE ? ~UINT64_C(0) : op->unread | (is_one ? filled : 0);
}

static inline int ad_is_parameter(const ad_tensor *tensor) { return tensor->from != NULL; }

/* The dtype of the statistics of a value: the wide one of its own. */
static inline ad_dtype ad_wide_of(const ad_tensor *tensor) { return ad_dtype_wide(tensor->array.dtype); }

/* Local sizes, for op_*.c. */
static inline size_t ad_numel(const ad_tensor *tensor) { return (size_t)ad_shape_numel(&tensor->array.local); }
/* Size of the last dimension, and the number of rows of that size. */
size_t ad_columns(const ad_tensor *tensor);
size_t ad_rows_of(const ad_tensor *tensor);
static inline void *ad_at(const ad_tensor *tensor, const void *data, size_t element) {
  return (char *)(uintptr_t)data + element * ad_dtype_size(tensor->array.dtype);
}

#endif
