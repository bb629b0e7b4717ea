/* What an operation is: one record with its rule, forward and backward. The tape (tape.c, backward.c) does everything
 * that operations have in common: it checks shapes and types by the rule, gives memory, finds where gradients go, and
 * skips the arithmetic on engine dry. The records stand in op_*.c. */
#ifndef TENSOR_OPERATION_H
#define TENSOR_OPERATION_H
#include "base/arena.h"
#include "base/error.h"
#include "tensor/rows.h"
#include "addend/tensor.h"

enum { OPERANDS_MAX = 3 };

/* Where the gradient of one operand goes. */
typedef struct gradient_slot {
  void *data; /* the operand's local elements; NULL: it carries no gradient */
  int adds;   /* 1: add to what is there; 0: overwrite, there may be anything */
} gradient_slot;

typedef struct operation {
  const char *name;
  /* Operands and result by dimensions, "...k,kn->...n": equal letters have equal sizes, "..." stands for any further
   * dimensions in front, the same ones wherever it is written. Gives shape rule and type rule. NULL: `describe` does.
   */
  const char *dims;
  ad_linearity linearity;
  const char *whole; /* letters that may not be cut */
  unsigned indices;  /* bit i: operand i is i32, a constant */
  unsigned unread;   /* bit i: backward does not read the elements of operand i */
  int hands_over;    /* operand 0's gradient is the result's own: it may take over the memory */
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

/* An operation's parameters that are no tensors. */
typedef struct attributes {
  double number;    /* factor, count, epsilon, base */
  int64_t head_dim; /* elements of one head */
  ad_move move;     /* transitions: over `axes` from type `from` to type `to` */
  ad_axes axes;
  ad_type from, to;
} attributes;

struct ad_tensor {
  ad_tape *tape;
  ad_tensor *previous; /* the one recorded before */
  const operation *op; /* NULL: a leaf */
  const char *site;
  ad_tensor *operand[OPERANDS_MAX];
  int operand_count;
  attributes attributes;
  ad_array array;
  ad_array grad; /* of dual layout; means something while has_grad */
  int has_grad;
  int carries; /* a gradient: it is a parameter or made from one */
  int is_parameter, is_kept;
  size_t param;
  const ad_array *source; /* of a parameter: where its memory is found at each use */
  int uses;               /* during backward: operations that still have to leave their share of the gradient */
  void *saved, *scratch;
};

/* Records one operation: checks, gives memory, runs forward. A dead tensor on failure. */
ad_tensor *ad_tape_apply(ad_tape *tape, const operation *op, ad_tensor *const *operands, int count,
                         const attributes *given, const char *site);
ad_tensor *ad_tape_fail(ad_tape *tape, ad_status status);       /* keeps the first error; returns a dead tensor */
ad_tensor *ad_tape_missing(const char *site, const char *what); /* says that there is no tape; returns NULL */
int ad_tape_failed(const ad_tape *tape);
/* Tells the other ranks of this tape's error, once: they may wait for this one in a collective. */
void ad_tape_tell(ad_tape *tape);
ad_comm *ad_tape_comm(const ad_tape *tape);
int ad_tape_owns(const ad_tape *tape, const ad_tensor *tensor); /* a live tensor of this tape */
const char *ad_tape_foreigner(const ad_tensor *tensor);         /* what it is instead, in words */
/* Describes out->array by the rule in op->dims: shape (AD_INVALID), layout (AD_TYPE), dtype. */
ad_status ad_operation_describe(const ad_tape *tape, ad_tensor *out);

/* Local sizes, for op_*.c. */
static inline size_t ad_numel(const ad_tensor *tensor) { return (size_t)ad_shape_numel(&tensor->array.local); }
/* Size of the last dimension, and the number of rows of that size. */
size_t ad_columns(const ad_tensor *tensor);
size_t ad_rows_of(const ad_tensor *tensor);
static inline void *ad_at(const ad_tensor *tensor, const void *data, size_t element) {
  return (char *)(uintptr_t)data + element * ad_dtype_size(tensor->array.dtype);
}

#endif
