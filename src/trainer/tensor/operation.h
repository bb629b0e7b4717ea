/* What an operation is: one record with its rule, forward and backward. The tape (tape.c, backward.c) does everything
 * that operations have in common: it checks shapes and types by the rule, gives memory, finds where gradients go, and
 * skips the arithmetic on engine dry. The records stand in op_*.c. */
#ifndef TENSOR_OPERATION_H
#define TENSOR_OPERATION_H
#include "tensor/arena.h"
#include "base/error.h"
#include "rows/rows.h"
#include "addend/tensor.h"

enum { OPERANDS_MAX = 64 }; /* as many as a set of operands has bits */

/* Sets of dtypes of values, for records: bit 1u << dtype. */
enum { IN_F32_F64 = 1u << AD_F32 | 1u << AD_F64, IN_ANY_FLOAT = IN_F32_F64 | 1u << AD_BF16 };

/* The dtype of a result: operand 0's; the tape's; the wide one of that; the wider of its operands'. */
typedef enum result_dtype { LIKE_FIRST, LIKE_TAPE, LIKE_WIDE, LIKE_WIDEST } result_dtype;

/* Where the gradient of one operand goes. */
typedef struct gradient_slot {
  void *data;     /* the operand's local elements; NULL: it carries no gradient */
  int adds;       /* 1: add to what is there; 0: overwrite, there may be anything */
  ad_dtype dtype; /* of the gradient: the operand's, of a parameter the wide one */
} gradient_slot;

/* One element's share of the gradient, for operations that compute them one by one. */
static inline void ad_put_share(const gradient_slot *slot, size_t i, double share) {
  ad_set_element(slot->dtype, slot->data, i, share + (slot->adds ? ad_element(slot->dtype, slot->data, i) : 0));
}

/* n elements of the gradient from `first` on take a share of another dtype or the same, rounded once. */
static inline void ad_put_shares(const gradient_slot *slot, size_t first, const void *share, ad_dtype dtype, size_t n) {
  void *to = (char *)slot->data + first * ad_dtype_size(slot->dtype);
  if (slot->adds)
    ad_accumulate(to, slot->dtype, share, dtype, 1, n);
  else
    ad_cast(to, slot->dtype, share, dtype, n);
}

typedef struct operation {
  const char *name;
  /* Operands and result by dimensions, "...k,kn->...n": equal letters have equal sizes, "..." stands for any further
   * dimensions in front, the same ones wherever it is written. Gives shape rule and type rule. NULL: `describe` does.
   */
  const char *dims;
  ad_linearity linearity;
  const char *whole; /* letters that may not be cut */
  uint64_t indices;  /* bit i: operand i is i32, a constant */
  uint64_t unread;   /* bit i: backward does not read the elements of operand i */
  int hands_over;    /* operand 0's gradient is the result's own: it may take over the memory */
  /* The dtypes for which forward and backward have arithmetic; the operation is refused on values of another one.
   * Where the kernels of one more dtype are written (rows.h, gemm.h, or in the record's own file), its bit is added. */
  unsigned dtypes; /* of operand 0, which is what all operands are, but for: */
  uint64_t wide;   /* bit i: operand i is of the tape's wide dtype */
  uint64_t either; /* bit i: operand i is of the tape's dtype or of the wide one, whatever the others are */
  uint64_t raw;    /* bit i: backward leaves operand i's gradient in the slot's dtype. Others' are of the operand's own,
                      so none of them is a parameter in bf16, whose gradient is f32 */
  result_dtype result;
  int passes_on;   /* the result is operand 0, or a multiple of it, and its gradient is of the dtype that operand 0's is
                    */
  size_t own_size; /* of the record's own struct, for what the operation knows beside its operands; at out->own */
  int runs_dry;    /* on engine dry forward and backward are called too: they check more than the rule does */
  int makes_memory; /* forward gives the result's memory (ad_tape_take) and may say its local shape only then;
                       `describe` gives the shape that a plan counts with. Its scratch memory stays until reset */
  int not_linear; /* backward is not linear in the arriving gradient: where that is an addend (P, of a result that is R)
                     the sum over ranks would be wrong, so such a result is refused */
  /* All optional. `describe` fills out->array where dims cannot; `check` looks at what dims do not say. */
  ad_status (*describe)(ad_tape *tape, ad_tensor *out);
  ad_status (*check)(const ad_tape *tape, const ad_tensor *out);
  size_t (*saved)(const ad_tensor *out);   /* bytes kept from forward to backward, at out->saved */
  size_t (*scratch)(const ad_tensor *out); /* bytes for the time of one forward or backward, at out->scratch */
  int (*shares)(const ad_tensor *out);     /* the result's memory is operand 0's */
  /* Arithmetic. Fails only on bad values (an index outside its table) and in communication. */
  ad_status (*forward)(ad_tape *tape, ad_tensor *out);
  ad_status (*backward)(ad_tape *tape, ad_tensor *out, const gradient_slot *slot); /* a slot for each operand */
} operation;

struct ad_tensor {
  ad_tape *tape;
  ad_tensor *previous; /* the one recorded before */
  const operation *op; /* NULL: a leaf */
  const char *site;
  ad_tensor **operand;
  int operand_count;
  const void *own; /* the operation's own struct, op->own_size bytes */
  ad_array array;
  ad_array grad; /* of dual layout; means something while has_grad */
  ad_dtype grad_dtype;
  int has_grad;
  int carries; /* a gradient: it is a parameter or an input, or made from one */
  int is_kept;
  const ad_parameters *from; /* of a parameter: whose number `param` it is; NULL for everything else */
  size_t param;
  /* During a start of backward: operations and seeds that still have to leave their share of the gradient, and whether
   * `grad` takes them in (not so a kept value's, which is an earlier start's until the first share of this one). */
  int uses, takes_shares;
  int has_earlier;
  void *earlier; /* of a kept value, while `grad` takes in the shares of a start: its gradient of earlier starts */
  void *saved, *scratch;
};

/* Records one operation on 1 to OPERANDS_MAX operands: checks, gives memory, runs forward. `own`: op->own_size bytes,
 * copied. A dead tensor on failure. */
ad_tensor *ad_tape_apply(ad_tape *tape, const operation *op, ad_tensor *const *operands, int count, const void *own,
                         const char *site);
ad_tensor *ad_tape_fail(ad_tape *tape, ad_status status);       /* keeps the first error; returns a dead tensor */
ad_tensor *ad_tape_missing(const char *site, const char *what); /* says that there is no tape; returns NULL */
int ad_tape_failed(const ad_tape *tape);
/* Law 5: AD_TYPE unless the loss is P or I on every axis, AD_INVALID unless it is a scalar. */
ad_status ad_check_loss(const ad_tensor *loss, const char *site);
/* Tells the other ranks of this tape's error, once: they may wait for this one in a collective. */
void ad_tape_tell(ad_tape *tape);
ad_comm *ad_tape_comm(const ad_tape *tape);
int ad_tape_owns(const ad_tape *tape, const ad_tensor *tensor); /* a live tensor of this tape */
const char *ad_tape_foreigner(const ad_tensor *tensor);         /* what it is instead, in words */
/* Describes out->array by the rule in op->dims: shape (AD_INVALID), layout (AD_TYPE), dtype. */
ad_status ad_operation_describe(const ad_tape *tape, ad_tensor *out);
/* The same with layouts that a fused operation states in place of its operands' own. */
ad_status ad_operation_describe_by(const ad_tape *tape, ad_tensor *out, const ad_layout *const *layouts);

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
