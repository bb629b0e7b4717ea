/* Arrays: plain buffers with a shape, a dtype, a layout and a scale. The core library keeps no tape of operations on
 * them. An ad_array is a plain struct with public fields, so another framework can wrap its own buffers in one.
 *
 * For users. Only one thread at a time may use an array, and its comm where a call takes one to communicate. */
#ifndef ADDEND_ARRAY_H
#define ADDEND_ARRAY_H
#include "addend/comm.h"
#include "addend/layout.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_array {
  /* f64, f32, bf16, f16, i32 or i64; an array of any other dtype (those are for collectives only) is AD_INVALID */
  ad_dtype dtype;
  int scale;        /* `data` holds the value times 2^-scale */
  ad_shape shape;   /* shape of the full value */
  ad_shape local;   /* shape of this rank's part, which `data` holds: contiguous, row-major */
  ad_layout layout; /* borrows its mesh */
  /* The memory of the local part: borrowed, unless ad_array_create allocated it. NULL on backend dry, and as long as
   * the array has no memory. */
  void *data;
  /* NULL if the array is one value. Otherwise the array is packed: it holds several values, one after another in one
   * flat buffer, and on an S(0) axis each value is sharded by rows. `shape` is then [number of all their elements] and
   * `local` is [number of the elements in this rank's rows]. Borrowed. */
  const ad_segment *segments;
  size_t segment_count;
} ad_array;

/* Returns a description of this rank's part of a value: data is NULL and scale is 0. */
AD_API ad_array ad_array_describe(const ad_comm *comm, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout);
/* Like ad_array_describe, with zeroed memory from ad_comm_alloc (no memory on backend dry). */
AD_API AD_CHECKED ad_status ad_array_create(ad_comm *comm, ad_dtype dtype, const ad_shape *shape,
                                            const ad_layout *layout, ad_array *out);
AD_API void ad_array_destroy(ad_comm *comm, ad_array *array); /* frees the memory that ad_array_create took */
AD_API size_t ad_array_numel(const ad_array *array);          /* number of elements in the local part */
AD_API size_t ad_array_bytes(const ad_array *array);
/* Reads or writes element i of the local part, whatever its dtype, as a double. Writing rounds to nearest even
 * (integers are stored as they are). Meant for few elements: loops over many elements use `data` directly. */
AD_API double ad_array_get(const ad_array *array, size_t i);
AD_API void ad_array_set(const ad_array *array, size_t i, double value);

/* The transitions of law 2 (core/docs/laws.md), on arrays. A transition takes two calls: ad_array_after checks the move
 * and describes the result with data NULL; the caller then sets out->data to memory for the result and calls
 * ad_array_move, which executes the move over `axes`.
 *
 * Moves that sum (all_reduce, reduce_scatter) write the result in out's dtype and scale, which the caller may change
 * from what ad_array_after described (law 8, precision): the sum is accumulated in the dtype `accumulate` and rounded
 * once. All other moves keep dtype and scale. `out->data` may be `in->data` if the local shapes are equal.
 *
 * A declaration keeps the local part: ad_array_after describes a full value in which every rank's part is as large as
 * this rank's. If the parts of a declared V->S(d) are uneven, the caller sets out->shape to the shape of the full value
 * that they form.
 *
 * Each value of a packed array moves as it would in an array of its own. AD_INVALID if one call cannot do that: if S(d)
 * is declared, or if several axes shard a value's rows into other parts than one axis of as many ranks would.
 *
 * `site` names the move in the list of mutants of `addend check --mutate`; a caller may append what is moved, as in
 * AD_HERE ", tokens of the experts". Errors: AD_TYPE, AD_INVALID and those of ad_comm_run. */
#define ad_array_after(...) ad_array_after_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_after_at(const ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes,
                                              ad_type to, ad_array *out, const char *site);
#define ad_array_move(...) ad_array_move_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_move_at(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                                             ad_dtype accumulate, ad_array *out, const char *site);
/* Starts a move and returns; ad_comm_wait waits until the move is complete. Only for moves whose parts are contiguous:
 * all_reduce, and reduce_scatter or all_gather along dimension 0. AD_INVALID for all other moves. */
#define ad_array_post(...) ad_array_post_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_post_at(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                                             ad_dtype accumulate, ad_array *out, ad_request *request, const char *site);
/* all_to_all V->V over `axes` with uneven counts. send_rows[i] is the number of rows (slices along dimension 0) that
 * this rank sends to member i of the group, receive_rows[i] the number that it receives from member i. `in` holds the
 * rows for member 0 first; `out` holds the rows from member 0 first. The caller sets out->data to memory for all
 * received rows, separate from in->data. The call describes the rest of *out as ad_array_after does; on failure *out is
 * unchanged. The backward is the same call with send_rows and receive_rows exchanged. AD_TYPE unless the value is V on
 * all of `axes`; AD_INVALID unless send_rows add up to in's local rows; otherwise the errors of ad_comm_run. */
#define ad_array_exchange(...) ad_array_exchange_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_exchange_at(ad_comm *comm, const ad_array *in, ad_axes axes,
                                                 const size_t *send_rows, const size_t *receive_rows, ad_array *out,
                                                 const char *site);
/* to += from, under law 6 (like adds to like). AD_TYPE unless layouts and scales agree. AD_INVALID unless the shapes
 * agree and either both arrays have data or neither has. The sum is accumulated in f64 if to's dtype is f64, and in f32
 * otherwise. */
#define ad_array_add(...) ad_array_add_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_add_at(ad_array *to, const ad_array *from, const char *site);
/* Builds the full value on every rank: sharded values are gathered, P values are summed, R and I values are taken from
 * the group's first rank. `out->data` must have room for the full shape. Meant for checks and checkpoints; no training
 * step needs it. */
#define ad_array_full(...) ad_array_full_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_full_at(ad_comm *comm, const ad_array *in, ad_array *out, const char *site);
/* The inverse of ad_array_full, for initial values and files: copies this rank's elements of `full` into `to`. `full`
 * has the shape, dtype and scale of `to`, and has all elements on this rank. On axes on which `to` is P, the first rank
 * of a group gets the value and all other ranks get zeros, so that their sum is the value. Local. AD_TYPE if `to` is V
 * on an axis; AD_INVALID if shapes, dtypes or scales differ, or if `full` has only a part of the elements. On failure
 * nothing is written. */
#define ad_array_from_full(...) ad_array_from_full_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_from_full_at(const ad_comm *comm, const ad_array *full, ad_array *to,
                                                  const char *site);
/* Like ad_array_full, but every rank of the group `all` gets the full value. `all` contains all ranks of `mesh`, the
 * array's mesh. Ranks that are not on `mesh` hold no part of the array: they pass NULL or a description without data as
 * `in`. Fills *out with the description of what out->data then holds. */
#define ad_array_full_for(...) ad_array_full_for_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_full_for_at(ad_comm *comm, const ad_group *all, const ad_mesh *mesh,
                                                 const ad_array *in, ad_array *out, const char *site);
/* *out: the sum of the squares of all elements of `count` arrays, in f64, with each distinct element counted once: of
 * replicas (R and I axes) only the first rank's counts, and on sharded axes the sums of all ranks' parts are added.
 * Runs one all-reduce over `group`, preceded by one over each mesh that has fewer ranks. Every rank gets the same bits.
 * AD_TYPE if an array is P on an axis. A rank that is not on an array's mesh counts nothing of that array. AD_INVALID
 * unless the group contains all ranks of each array's mesh or lies on that mesh. */
#define ad_array_square_sum(...) ad_array_square_sum_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_square_sum_at(ad_comm *comm, const ad_group *group, const ad_array *const *arrays,
                                                   size_t count, double *out, const char *site);

#if defined(__cplusplus)
}
#endif
#endif
