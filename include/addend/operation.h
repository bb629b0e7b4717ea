/* Operations of one's own: a record with the rule, forward and backward of one, and what its functions see. addend's
 * own operations are written as the same record. */
#ifndef ADDEND_OPERATION_H
#define ADDEND_OPERATION_H
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_OPERANDS_MAX = 64 }; /* as many as a set of operands has bits */

/* Sets of dtypes, for records: bit 1u << dtype. */
enum { AD_IN_F32_F64 = 1u << AD_F32 | 1u << AD_F64, AD_IN_ANY_FLOAT = AD_IN_F32_F64 | 1u << AD_BF16 };

/* The dtype of a result: operand 0's; the tape's; the wide one of that; the wider of its operands'. */
typedef enum ad_result_dtype { AD_LIKE_FIRST, AD_LIKE_TAPE, AD_LIKE_WIDE, AD_LIKE_WIDEST } ad_result_dtype;

/* Where the gradient of one operand goes. */
typedef struct ad_gradient_slot {
  void *data;     /* the operand's local elements. NULL: not now, or never, for the operand is a constant */
  int adds;       /* 1: add to what is there; 0: overwrite, there may be anything */
  ad_dtype dtype; /* of the gradient: the operand's; of a parameter the wide one of that */
} ad_gradient_slot;

/* One operation. It is borrowed until the tape's reset: make it static const. Every member but the first ones has a
 * default that is zero.
 *
 * What forward promises. It reads operands, `own` and nothing else that may change, and writes the result and `saved`
 * only, so that it may be called again, later, for the same values: it then makes the same bits.
 * What backward promises. It changes neither the gradient that arrived, nor operands, result and what was saved. One
 * call leaves the gradient of every operand that `fills` names and whose slot has memory, and touches no other. An
 * operand whose slot is NULL is left out and costs no arithmetic: the tape may ask for the gradients of some operands
 * now and of others later, in another call (ad_backward_weights). At least one slot has memory. Whatever was left out,
 * a gradient has the same bits.
 * Where `dims` and `linearity` say that it is linear, a call for one operand reads neither that operand nor the result,
 * and of a sum (AD_ADDITIVE) no value at all: they may be gone by then.
 * ad_check_operation holds a record to all of this. */
typedef struct ad_operation {
  size_t size;      /* sizeof(ad_operation) */
  const char *name; /* for messages */
  /* Operands and result by dimensions, "...k,kn->...n": equal letters have equal sizes, "..." stands for any further
   * dimensions in front, the same ones wherever it is written. Gives the shape rule, and with `linearity` and `whole`
   * the type rule (law 3). NULL: `describe` does. */
  const char *dims;
  ad_linearity linearity;
  const char *whole; /* letters that may not be cut: along which the arithmetic of an element needs others */
  /* Arithmetic, on local elements. Fails only on bad values (an index outside its table) and in communication. */
  ad_status (*forward)(ad_tape *tape, ad_tensor *out);
  ad_status (*backward)(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot); /* a slot for each operand */

  /* ---- gradients ---- */
  /* Bit i: one call of backward fills the gradient of operand i. 0: of all but indices. An operand that is not named
   * must be a constant; it is refused where it carries a gradient. */
  uint64_t fills;
  uint64_t indices; /* bit i: operand i is i32, a constant */
  uint64_t unread;  /* bit i: backward does not read the elements of operand i */
  /* Backward is not linear in the arriving gradient, or is not forward's derivative: where the gradient is an addend
   * (P, of a result that is R) the sum over ranks would be wrong, so such a result is refused. */
  int not_linear;
  /* Operand 0's gradient is the result's own: its slot may have the memory of the gradient that arrived, and then has
   * it already. The only way in which that one may be changed. */
  int hands_over;
  int passes_on; /* the result is operand 0, or a multiple of it, and its gradient is of the dtype that operand 0's is
                  */

  /* ---- dtypes ---- */
  /* For which forward and backward have arithmetic (AD_IN_...); 0: f32 and f64. The operation is refused on values of
   * another one. Of operand 0, which is what all operands are, but for: */
  unsigned dtypes;
  uint64_t wide;   /* bit i: operand i is of the tape's wide dtype */
  uint64_t either; /* bit i: operand i is of the tape's dtype or of the wide one, whatever the others are */
  /* Bit i: backward leaves operand i's gradient in the slot's dtype. Others' are of the operand's own, so none of them
   * is a parameter in bf16, whose gradient is f32. */
  uint64_t raw;
  ad_result_dtype result;

  /* ---- memory ---- */
  size_t own_size; /* of the record's own struct, for what the operation knows beside its operands */
  size_t (*saved)(const ad_tensor *out);   /* bytes kept from forward to backward */
  size_t (*scratch)(const ad_tensor *out); /* bytes for the time of one forward or backward, whatever slots it has */
  int (*shares)(const ad_tensor *out);     /* the result's memory is operand 0's */
  /* Forward gives the result's memory (ad_tape_take) and may say its local shape only then; `describe` gives the shape
   * that a plan counts with. Its scratch memory stays until reset. */
  int makes_memory;

  /* ---- what `dims` cannot say ---- */
  ad_status (*describe)(ad_tape *tape, ad_tensor *out);          /* shape, layout and dtype: ad_result_set */
  ad_status (*check)(const ad_tape *tape, const ad_tensor *out); /* refuses what was described */
  int runs_dry; /* on engine dry forward and backward are called too: they check more than the rule does */
} ad_operation;

/* Records one operation on 1 to AD_OPERANDS_MAX operands: checks shapes and types by its rule, gives memory, runs
 * forward. `own`: op->own_size bytes, copied; NULL where that is 0. A record of another size is read as
 * docs/versioning.md says of structures: a smaller one has defaults for the rest, a larger one is AD_INVALID, as is one
 * that lacks what it must have. Errors stick to the tape. */
AD_API ad_tensor *ad_operation_apply_at(ad_tape *tape, const ad_operation *operation, ad_tensor *const *operands,
                                        size_t count, const void *own, const char *site);
#define ad_operation_apply(...) ad_operation_apply_at(__VA_ARGS__, AD_HERE)

/* ---- what the functions of a record see, of its result ---- */
AD_API size_t ad_operand_count(const ad_tensor *out);
AD_API const ad_array *ad_operand(const ad_tensor *out, size_t i); /* NULL where there are fewer */
/* In backward: the gradient that arrived, of the result's shape and of the dual of its layout. The result itself is
 * ad_tensor_array. */
AD_API const ad_array *ad_result_grad(const ad_tensor *out);
AD_API const void *ad_operation_own(const ad_tensor *out);
AD_API void *ad_operation_saved(const ad_tensor *out);
AD_API void *ad_operation_scratch(const ad_tensor *out);
AD_API const char *ad_tensor_site(const ad_tensor *out); /* where it was recorded, for messages */

/* In `describe`: by the record's dims; by others, made for this call (along a dimension that the caller names); and by
 * hand. */
AD_API AD_CHECKED ad_status ad_operation_describe(const ad_tape *tape, ad_tensor *out);
AD_API AD_CHECKED ad_status ad_operation_describe_as(const ad_tape *tape, ad_tensor *out, const char *dims,
                                                     const char *whole);
AD_API void ad_result_set(ad_tensor *out, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout);
/* In forward: memory until reset; on engine dry the bytes are counted and *out is NULL. ad_result_set_data makes it the
 * result's, of makes_memory. */
AD_API AD_CHECKED ad_status ad_tape_take(ad_tape *tape, size_t bytes, void **out);
AD_API void ad_result_set_data(ad_tensor *out, void *data);

/* In backward: element i of an operand's gradient takes this share, or n elements from `first` on do, of another dtype
 * or the same, rounded once. Adds or overwrites, as the slot says; nothing where the slot has no memory. */
AD_API void ad_slot_put(const ad_gradient_slot *slot, size_t i, double share);
AD_API void ad_slot_put_all(const ad_gradient_slot *slot, size_t first, const void *shares, ad_dtype dtype, size_t n);

/* ---- is it right ---- */
/* On what ad_check_operation tries an operation. */
typedef struct ad_operation_trial {
  size_t size; /* sizeof(ad_operation_trial) */
  const ad_shape
      *shapes;     /* whole shapes of the operands: a few elements in each dimension, so that three ranks cut it */
  size_t count;    /* of operands */
  const void *own; /* the operation's own struct, as ad_operation_apply takes it */
  /* What is drawn for operands: normal numbers, or, where these two differ, numbers from least to most: for what has no
   * value everywhere (a logarithm). Where forward has a kink drawn numbers miss it. */
  double least, most;
  const int32_t *below; /* of indices: numbers below below[i], from 0 on; not read for others. NULL: there are none */
  uint64_t constants;   /* bit i: operand i is a constant, beside those for which the operation has no gradient */
  uint64_t seed;        /* of all that is drawn */
} ad_operation_trial;
/* Holds an operation to what its record says, in this process alone, in well under a second; for a test of it. AD_OK:
 * it holds. Otherwise ad_last_error() names the promise that is broken, with operand, element and both numbers. In
 * turn:
 *   - what ad_operation promises of forward and backward, for every set of slots (of more than four each alone, and
 *     each left out); a slot that is NULL and written to all the same is found in a child process, which ends by it;
 *   - backward against central differences of forward, element by element, in f64 (not where `not_linear`);
 *   - f32, and bf16 where the record has it, against f64: within 2e-5 and 3 % of the largest number;
 *   - types: operands are laid out on up to six ranks in all ways that the rule lets through (R, I, P, each cut, plain
 *     and zigzag; on two axes some of them, drawn), each rank computes its part, and what the rule says that the parts
 *     are must make the value and the gradients of one process. Ways in which it communicates are left out;
 *   - of what is linear that calls for some operands do without the values that they are said not to read. */
AD_API AD_CHECKED ad_status ad_check_operation(const ad_operation *operation, const ad_operation_trial *trial);

#if defined(__cplusplus)
}
#endif
#endif
