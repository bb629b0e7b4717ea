/* Custom operations. An operation is a record with its rule, its forward and its backward; this header also has the
 * functions that forward and backward may call. addend's own operations are the same kind of record.
 *
 * For authors of operations. A record is read by all threads and must not change; its functions run on the thread that
 * uses the tape. */
#ifndef ADDEND_OPERATION_H
#define ADDEND_OPERATION_H
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_OPERANDS_MAX = 64 }; /* a set of operands is a uint64_t, one bit for each */

/* Sets of dtypes, for ad_operation.dtypes: bit 1u << dtype. */
enum { AD_IN_F32_F64 = 1u << AD_F32 | 1u << AD_F64, AD_IN_ANY_FLOAT = AD_IN_F32_F64 | 1u << AD_BF16 };

/* The dtype of a result: operand 0's (AD_LIKE_FIRST), the tape's (AD_LIKE_TAPE), the tape's wide dtype (AD_LIKE_WIDE),
 * or the widest dtype of the operands (AD_LIKE_WIDEST). */
typedef enum ad_result_dtype { AD_LIKE_FIRST, AD_LIKE_TAPE, AD_LIKE_WIDE, AD_LIKE_WIDEST } ad_result_dtype;

/* The place where backward leaves the gradient of one operand. */
typedef struct ad_gradient_slot {
  /* Memory for as many elements as the operand has locally. NULL: this gradient is not wanted now, or never, because
   * the operand is a constant. */
  void *data;
  int adds; /* 1: add to the contents of `data`; 0: overwrite the contents, which are undefined */
  /* dtype of the gradient: the operand's dtype; if the operand is a parameter, the wide one of that dtype */
  ad_dtype dtype;
} ad_gradient_slot;

/* One operation. The record is borrowed until the tape's reset: make it static const. Every member except the first
 * ones has a default, which is zero.
 *
 * Forward's promises. It reads operands, `own` and nothing else that may change. It writes only the result and `saved`.
 * So a later call with the same values makes the same bits.
 *
 * Backward's promises. It changes neither the arriving gradient nor operands, result and saved values. One call writes
 * the gradient of every operand that is in `fills` and has memory in its slot; it touches no other gradient. An operand
 * without memory in its slot is skipped at no cost: the tape may ask for the gradients of some operands now and of the
 * others in a later call (ad_backward_weights). At least one slot has memory. Skipping operands does not change the
 * bits of a gradient. If `dims` and `linearity` say that the operation is linear, a call for one operand reads neither
 * that operand nor the result, and for a sum (AD_ADDITIVE) no value at all: the memory of these values may be gone.
 *
 * ad_check_operation tests a record for all of this. */
typedef struct ad_operation {
  size_t size;      /* sizeof(ad_operation) */
  const char *name; /* name of the operation, for messages */
  /* The dimensions of operands and result as letters: "...k,kn->...n". Equal letters have equal sizes; "..." means
   * any further dimensions in front, the same wherever it occurs. It is the rule for shapes and, together with
   * `linearity` and `full`, the rule for types (law 3). NULL: `describe` gives shape and type. */
  const char *dims;
  ad_linearity linearity;
  /* letters of dimensions that must not be sharded, because each element of the result needs all operand elements along
   * them */
  const char *full;
  /* forward and backward are the arithmetic, on local elements. They fail only on bad values (an index outside its
   * table) and in communication. `slot` has one slot for each operand. */
  ad_status (*forward)(ad_tape *tape, ad_tensor *out);
  ad_status (*backward)(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot);

  /* ---- an operation's record: which gradients it needs and makes ---- */
  /* Bit i: one call of backward fills the gradient of operand i. 0: backward fills all except `indices`. An operand
   * without its bit must be a constant: if it carries a gradient, the operation is refused. */
  uint64_t fills;
  uint64_t indices; /* bit i: operand i is a constant of i32 */
  uint64_t unread;  /* bit i: backward does not read the elements of operand i */
  /* 1: backward is not linear in the arriving gradient, or is not forward's derivative. If the result is R, its
   * gradient is P, an addend on each rank, and the sum over ranks would be wrong; so such a result is refused. */
  int not_linear;
  /* 1: operand 0's gradient equals the arriving gradient. Operand 0's slot may then be the memory of the arriving
   * gradient, and already contain it. In no other case may the arriving gradient change. */
  int passes_gradient_on;
  int passes_on; /* 1: the result is operand 0 or a multiple of it, and its gradient has the dtype of operand 0's */

  /* ---- an operation's record: which dtypes it accepts ---- */
  /* The dtypes of operand 0 for which forward and backward have arithmetic (AD_IN_...); 0: f32 and f64. The operation
   * is refused for others. All operands have operand 0's dtype, except those in `indices`, `wide` and `either`. */
  unsigned dtypes;
  uint64_t wide;   /* bit i: operand i has the tape's wide dtype */
  uint64_t either; /* bit i: operand i has the tape's dtype or its wide dtype, whatever the other operands have */
  /* Bit i: backward can write operand i's gradient in the slot's dtype, whatever it is. Gradients of other operands
   * have the operand's own dtype, so none of them can be a parameter in bf16, whose gradient is f32. */
  uint64_t raw;
  /* dtype of the result */
  ad_result_dtype result;

  /* ---- an operation's record: memory that it saves and works in ---- */
  size_t own_size;                       /* bytes of the operation's own struct, for its numbers and options */
  size_t (*saved)(const ad_tensor *out); /* bytes to keep from forward to backward, if there is one */
  /* bytes of working memory during one call of forward or backward, whatever slots that call has */
  size_t (*scratch)(const ad_tensor *out);
  int (*shares)(const ad_tensor *out); /* 1: the result uses operand 0's memory */
  /* 1: forward allocates the result's memory (ad_tape_take), and may set the local shape only then. `describe` sets the
   * shape for plans. Scratch memory then stays until reset. */
  int makes_memory;
  /* 1: forward does not run again where a layer is recomputed (ad_recompute), and what it made stays: for operations that
   * choose, or that count what they have seen. 0: it may, because a later call with the same values makes the same bits
   * (unless `makes_memory`). */
  int keeps;

  /* ---- an operation's record: result types and checks that `dims` cannot express ---- */
  ad_status (*describe)(ad_tape *tape, ad_tensor *out); /* sets the result's shape, layout and dtype by ad_result_set */
  ad_status (*check)(const ad_tape *tape, const ad_tensor *out); /* may refuse the described result */
  /* 1: forward and backward are called on backend dry, too, because they check more than the rule checks */
  int runs_dry;
} ad_operation;

/* Records one operation on 1 to AD_OPERANDS_MAX operands: checks shapes and types by its rule, allocates memory and
 * runs forward. `own` points to op->own_size bytes, which are copied; NULL if that is 0. For a record with another
 * `size`, see docs/versioning.md on structures: a smaller one gets defaults for the rest; a larger one, or one
 * without a required member, is AD_INVALID. Errors stick to the tape. */
AD_API ad_tensor *ad_operation_apply_at(ad_tape *tape, const ad_operation *operation, ad_tensor *const *operands,
                                        size_t count, const void *own, const char *site);
#define ad_operation_apply(...) ad_operation_apply_at(__VA_ARGS__, AD_HERE)

/* ---- what the functions of a record can read; `out` is the operation's result ---- */
AD_API size_t ad_operand_count(const ad_tensor *out);
/* returns operand i; NULL if there are fewer operands */
AD_API const ad_array *ad_operand(const ad_tensor *out, size_t i);
/* For backward: ad_result_grad returns the arriving gradient, with the result's shape and the dual of its layout.
 * ad_tensor_array returns the result itself. */
AD_API const ad_array *ad_result_grad(const ad_tensor *out);
/* Return the operation's own struct, the bytes that it keeps from forward to backward, and its working memory; see
 * ad_operation. */
AD_API const void *ad_operation_own(const ad_tensor *out);
AD_API void *ad_operation_saved(const ad_tensor *out);
AD_API void *ad_operation_scratch(const ad_tensor *out);
/* Returns the call site where the operation was recorded, for messages. */
AD_API const char *ad_tensor_site(const ad_tensor *out);

/* For `describe`: describe the result by the record's dims, by other dims made for this call (for a dimension that the
 * caller names), or by explicit dtype, shape and layout. */
AD_API AD_CHECKED ad_status ad_operation_describe(const ad_tape *tape, ad_tensor *out);
AD_API AD_CHECKED ad_status ad_operation_describe_as(const ad_tape *tape, ad_tensor *out, const char *dims,
                                                     const char *full);
AD_API void ad_result_set(ad_tensor *out, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout);
/* For forward: ad_tape_take allocates memory that lives until reset; on backend dry the bytes are only counted and *out
 * is NULL. ad_result_set_data makes such memory the result's, for records with makes_memory. */
AD_API AD_CHECKED ad_status ad_tape_take(ad_tape *tape, size_t bytes, void **out);
AD_API void ad_result_set_data(ad_tensor *out, void *data);

/* For backward: write into an operand's gradient, adding or overwriting as the slot says. ad_slot_put writes element i;
 * ad_slot_put_all writes n elements from `first` on, given in any dtype and rounded once. They do nothing if the slot
 * has no memory. */
AD_API void ad_slot_put(const ad_gradient_slot *slot, size_t i, double share);
AD_API void ad_slot_put_all(const ad_gradient_slot *slot, size_t first, const void *shares, ad_dtype dtype, size_t n);

/* ---- testing an operation ---- */
/* The values on which ad_check_operation tests an operation. */
typedef struct ad_operation_trial {
  size_t size; /* sizeof(ad_operation_trial) */
  /* Full shapes of the operands. Each dimension should have a few elements, so that three ranks can shard it. */
  const ad_shape *shapes;
  size_t count;    /* number of operands */
  const void *own; /* the operation's own struct, as ad_operation_apply takes it */
  /* How operands are drawn: as normal numbers or, if these two differ, as numbers from `least` to `most`, for functions
   * that are not defined everywhere (a logarithm). Drawn numbers do not hit a kink of forward. */
  double least, most;
  /* for operand i that consists of indices: they are drawn from 0 to below[i] - 1; ignored for other operands; NULL: no
   * operand consists of indices */
  const int32_t *below;
  uint64_t constants; /* bit i: operand i is a constant; operands for which the operation has no gradient always are */
  uint64_t seed;      /* seed of all draws */
} ad_operation_trial;
/* Tests whether an operation keeps its record's promises, in this process alone, in well under a second; call it in a
 * test of the operation. AD_OK: no promise is broken. Otherwise ad_last_error() names the broken promise, with operand,
 * element and both numbers. It tests, in this order:
 * - what ad_operation promises of forward and backward, for every set of slots (with more than four slots: each alone,
 *   and each left out); a write to a slot that is NULL is found in a child process, which it crashes;
 * - backward against central differences of forward, element by element, in f64 (not if `not_linear`);
 * - f32, and bf16 if the record has it, against f64: within 2e-5 and 3 % of the largest number;
 * - types: operands are laid out on up to six ranks in all ways that the rule accepts (R, I, P, sharded, plain and
 *   zigzag; on two axes a random choice of these); each rank computes its part, and the parts, put together as the rule
 *   says, must make the value and the gradients of one process; layouts with which the operation communicates are left
 *   out;
 * - linear operations: a call for some operands must work without the values that it must not read. */
AD_API AD_CHECKED ad_status ad_check_operation(const ad_operation *operation, const ad_operation_trial *trial);

#if defined(__cplusplus)
}
#endif
#endif
