/* Arrays: plain buffers with shape, dtype, layout and scale. What the lower half of the library works on; it knows of
 * no tape. A value with public fields: another framework wraps its own buffers in it. */
#ifndef ADDEND_ARRAY_H
#define ADDEND_ARRAY_H
#include "addend/comm.h"
#include "addend/layout.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_array {
  ad_dtype dtype;   /* f64, f32, bf16, f16, i32 or i64; the others are for collectives alone, AD_INVALID here */
  int scale;        /* k: `data` is the value times 2^-k */
  ad_shape shape;   /* of the whole value */
  ad_shape local;   /* of this rank's part: what `data` holds, contiguous, row-major */
  ad_layout layout; /* borrows its mesh */
  void *data; /* borrowed, unless ad_array_create made it; NULL where nothing is held (engine dry, or not yet given) */
  /* Borrowed; NULL: one value. Otherwise the array is packed: several values one after another in one flat buffer, each
   * cut by rows where the layout is S(0); `shape` is [all their elements], `local` [those of the own rows]. */
  const ad_segment *segments;
  size_t segment_count;
} ad_array;

/* Describes this rank's part; data is NULL and scale 0. */
AD_API ad_array ad_array_describe(const ad_comm *comm, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout);
/* ad_array_describe with zeroed memory from ad_comm_alloc (none on engine dry). */
AD_API AD_CHECKED ad_status ad_array_create(ad_comm *comm, ad_dtype dtype, const ad_shape *shape,
                                            const ad_layout *layout, ad_array *out);
AD_API void ad_array_destroy(ad_comm *comm, ad_array *array); /* gives back what create took */
AD_API size_t ad_array_numel(const ad_array *array);          /* elements of the local part */
AD_API size_t ad_array_bytes(const ad_array *array);
/* Element i of the local part, of any dtype, as a double, and putting one there, rounded to nearest even (a whole
 * number as it is). For few elements: what goes over many does so over `data`. */
AD_API double ad_array_get(const ad_array *array, size_t i);
AD_API void ad_array_set(const ad_array *array, size_t i, double value);

/* Law 2 on arrays. `after` checks the move and describes the result (data NULL); the caller gives it memory and calls
 * `move`, which executes it over `axes`. Moves that sum (all_reduce, reduce_scatter) write the result in out's dtype
 * and scale, which the caller may change from what `after` described (law 8): the sum forms in `accumulate` and is
 * rounded once. Others keep both. In a proof's list of planted mistakes the move is named by its site, to which a
 * caller may add what it moves: AD_HERE ", tokens of the experts". `out->data` may be `in->data` where the local shapes
 * are equal. A declaration keeps the local part: `after` describes a whole in which all parts are as large as this
 * rank's; where V->S(d) parts are uneven the caller sets out->shape to the whole that they make. The values of a packed
 * array move as each would alone; AD_INVALID where one call cannot do that: declared cuts, and cuts on several axes
 * that are no one cut over all their ranks. AD_TYPE, AD_INVALID and the errors of ad_comm_run.
 */
#define ad_array_after(...) ad_array_after_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_after_at(const ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes,
                                              ad_type to, ad_array *out, const char *site);
#define ad_array_move(...) ad_array_move_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_move_at(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                                             ad_dtype accumulate, ad_array *out, const char *site);
/* Starts the move and returns; wait with ad_comm_wait. Only where parts are contiguous: all_reduce, and reduce_scatter
 * or all_gather along dimension 0; AD_INVALID otherwise. */
#define ad_array_post(...) ad_array_post_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_post_at(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                                             ad_dtype accumulate, ad_array *out, ad_request *request, const char *site);
/* all_to_all V->V over `axes`, with counts: rows (elements of dimension 0) for and from each member of the group, in
 * its order; the rows for member 0 come first in `in`, those from member 0 first in `out`. Takes out->data, memory for
 * all received rows and none of in's, and describes the rest of *out as `after` does; on failure *out is unchanged. Its
 * backward is the same with send_rows and receive_rows in each other's place. AD_TYPE unless V on all of `axes`;
 * AD_INVALID unless send_rows add up to in's local rows; the errors of ad_comm_run. */
#define ad_array_exchange(...) ad_array_exchange_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_exchange_at(ad_comm *comm, const ad_array *in, ad_axes axes,
                                                 const size_t *send_rows, const size_t *receive_rows, ad_array *out,
                                                 const char *site);
/* Law 6: to += from. AD_TYPE unless layout and scale agree, AD_INVALID unless shapes do and both have data or neither;
 * the sum forms in to's dtype if that is f64, in f32 otherwise. */
#define ad_array_add(...) ad_array_add_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_add_at(ad_array *to, const ad_array *from, const char *site);
/* Makes the whole value on every rank: gathers cuts; P is summed; R and I are taken from the group's first rank.
 * `out->data` holds the whole shape. For proofs and checkpoints, not for steps. */
#define ad_array_whole(...) ad_array_whole_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_whole_at(ad_comm *comm, const ad_array *in, ad_array *out, const char *site);
/* The same on every rank of `all`, which has all ranks of `mesh`, that of the array: ranks that are not on it have no
 * part, so that their `in` is NULL, or only described. *out then describes what out->data holds. */
#define ad_array_whole_for(...) ad_array_whole_for_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_whole_for_at(ad_comm *comm, const ad_group *all, const ad_mesh *mesh,
                                                  const ad_array *in, ad_array *out, const char *site);
/* Fills this rank's part of [samples, ...], f32 or f64, with numbers in [0, 1). Each depends on the seed, the name, the
 * step, the number of its sample (`first` is that of the array's first one) and its place in the sample alone: all
 * meshes, all ways to cut a batch into microbatches, and both dtypes have the same. Element e of sample i, counted row
 * by row within the sample, is floor(r / 2^40) / 2^24, r the first number of the draw (s, i, e), and s that of the draw
 * (seed, XXH64(name), step): see data.h for draws (seed, stream, index). AD_TYPE where it is P or V. */
#define ad_array_uniform(...) ad_array_uniform_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_uniform_at(const ad_comm *comm, uint64_t seed, const char *name, int64_t step,
                                                int64_t first, ad_array *array, const char *site);
/* Sum of squares of every distinct element of `count` arrays, once each, in f64: counted by the first rank on R and I
 * axes, an addend on cut axes; one all-reduce over `group`, after one over each mesh that has fewer ranks. P is a type
 * error. Equal bits on every rank. A rank that is not on an array's mesh has nothing of it to count. The group holds
 * all ranks of an array's mesh, or lies on that mesh: AD_INVALID. */
#define ad_array_square_sum(...) ad_array_square_sum_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_square_sum_at(ad_comm *comm, const ad_group *group, const ad_array *const *arrays,
                                                   size_t count, double *out, const char *site);

#if defined(__cplusplus)
}
#endif
#endif
