/* Types and layouts: how the ranks' local values make up one value, axis by axis; which transitions between types
 * exist; how types propagate through local operations. Pure data and arithmetic: nothing here communicates.
 *
 * For users. Any thread may call these functions at any time; a layout is a value, and its mesh is only read. */
#ifndef ADDEND_LAYOUT_H
#define ADDEND_LAYOUT_H
#include "addend/mesh.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_DIMS_MAX = 6 };

/* The type of a value on one axis of the mesh. A small number: compare with ==. */
typedef uint8_t ad_type;
enum {
  AD_R = 0, /* replicated: each rank's gradient is an addend, so the gradient is P */
  AD_I = 1, /* invariant: all ranks do the same work, so the gradient is I */
  AD_V = 2, /* varying: each rank has its own value, so the gradient is V */
  AD_P = 3, /* Partial: the value is the sum over ranks, the gradient is R */
};
#define AD_S(dim) ((ad_type)(0x10 + (dim))) /* sharded along tensor dimension dim */
/* sharded zigzag along dim, printed S1z for dim 1: the dimension has 2g chunks on g ranks, and rank i holds chunks i
 * and 2g-1-i */
#define AD_S_ZIGZAG(dim) ((ad_type)(0x20 + (dim)))

AD_API const char *ad_type_print(ad_type type, char *buffer, size_t size); /* "R", "S(0)", "S(1z)": for messages */

/* The shape of a full value. */
typedef struct ad_shape {
  int ndim; /* 0: a scalar */
  int64_t dim[AD_DIMS_MAX];
} ad_shape;
AD_API int64_t ad_shape_numel(const ad_shape *shape);
AD_API int ad_shape_equal(const ad_shape *a, const ad_shape *b);
AD_API const char *ad_shape_print(const ad_shape *shape, char *buffer, size_t size); /* "[4, 128]" */

/* The types of one value on all axes of its mesh. A plain struct: copy it freely. It borrows the mesh. */
typedef struct ad_layout {
  const ad_mesh *mesh;
  ad_type type[AD_AXIS_COUNT];
  /* If the axis is sharded: its index among the axes that shard the same dimension, with 0 the outermost; otherwise
   * 0. */
  uint8_t depth[AD_AXIS_COUNT];
} ad_layout;

/* Builds a layout from a string such as "dp=R tp=S1" or "cp=S1z". The string must name every axis of the mesh larger
 * than 1; all other axes that it does not name are R. `dp` means both dp axes. If two axes shard one dimension, the
 * string names the outer one first. AD_INVALID reports what is wrong and what would be right; *out is then
 * unchanged. */
AD_API AD_CHECKED ad_status ad_layout_parse(const ad_mesh *mesh, const char *text, ad_layout *out);
/* Prints a string that ad_layout_parse reads. It has every axis that the mesh names and every other axis that is not R,
 * in mesh order; but axes that shard one dimension come outermost first. Returns buffer. */
AD_API const char *ad_layout_print(const ad_layout *layout, char *buffer, size_t size);
/* The two passes of a step: forward makes values, backward makes gradients. */
typedef enum ad_pass { AD_FORWARD, AD_BACKWARD } ad_pass;
AD_API ad_layout ad_layout_all(const ad_mesh *mesh, ad_type type); /* `type` (R, I, V or P) on every axis */
/* Returns 1 if the two layouts have the same axes in the same order on the same ranks, the same types and the same
 * nesting of shards, else 0. */
AD_API int ad_layout_equal(const ad_layout *a, const ad_layout *b);
AD_API ad_layout ad_layout_dual(const ad_layout *layout); /* the layout of the value's gradient */
AD_API ad_axes ad_layout_axes_of(const ad_layout *layout,
                                 ad_type type); /* the axes on which the layout has exactly this type */
/* the axes on which the value is sharded, along any dimension */
AD_API ad_axes ad_layout_sharded_axes(const ad_layout *layout);
/* Sets the layout's type on `axes`. An axis that becomes sharded becomes the innermost of the axes that shard its
 * dimension; if several axes become sharded together, they are nested in mesh order. */
AD_API void ad_layout_set(ad_layout *layout, ad_axes axes, ad_type type);

/* A run of indices along one dimension of the full value. */
typedef struct ad_span {
  int64_t first, count;
} ad_span;
/* Returns the part [floor(i*n/g), floor((i+1)*n/g)) of n indices that member i of g members holds. */
AD_API ad_span ad_cut(int64_t n, int64_t i, int64_t g);
/* The shape of `rank`'s part of a value whose full shape is `shape`. */
AD_API ad_shape ad_layout_local_shape(const ad_layout *layout, const ad_shape *shape, int64_t rank);
/* Writes the spans of dimension `dim` (size n) that `rank` holds, in the order in which the rank stores them: one span,
 * or several if the dimension is sharded zigzag. Empty spans are left out. Writes at most `max` spans and returns how
 * many there are in all. */
AD_API int ad_layout_spans(const ad_layout *layout, int dim, int64_t n, int64_t rank, ad_span *spans, int max);
/* Returns the samples that `rank` reads of microbatch m (0 .. microbatches - 1), as a range of indices in the global
 * batch of a step. `layout` is the layout of the samples, which are dimension 0 (dp=S0 for data parallelism). The range
 * is empty if the rank is not on the layout's mesh, if there is no microbatch m, or if the layout is zigzag. */
AD_API ad_span ad_batch_rows(const ad_layout *layout, int64_t rank, int64_t global_batch, int64_t microbatches,
                             int64_t m);

/* The operations that change a type (core/docs/laws.md, law 2). */
typedef enum ad_move {
  AD_MOVE_ALL_REDUCE,
  AD_MOVE_REDUCE_SCATTER,
  AD_MOVE_ALL_GATHER,
  AD_MOVE_ALL_TO_ALL,
  AD_MOVE_CONVERT,
  AD_MOVE_ONCE,
  AD_MOVE_DECLARE,
  AD_MOVE_COUNT
} ad_move;
/* "all_reduce", ...; "unknown" for a number that is no move. */
AD_API const char *ad_move_name(ad_move move);

/* One row of law 2's table. AD_S(0) in a row means S(d) for any d. */
typedef struct ad_transition {
  ad_move move;
  ad_type from, to;
  int moves_bytes;
  ad_move backward; /* the backward operation, which leads from dual(to) to dual(from) */
  ad_type backward_from, backward_to;
} ad_transition;
/* Returns the whole table; *count is its number of rows. */
AD_API const ad_transition *ad_transition_table(size_t *count);
/* *out: the layout of a value of `ndim` dimensions after `move` has changed it over `axes` to type `to`. For each of
 * the axes law 2's table must have a row from the axis's present type to `to`. If several axes shard a dimension, a
 * move can gather only the innermost, or several of the innermost together; a newly sharded axis becomes the innermost.
 * AD_TYPE names operation, call site, axis, both types and the repair; *out is then unchanged. */
#define ad_layout_after(...) ad_layout_after_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_layout_after_at(const ad_layout *layout, ad_move move, ad_axes axes, ad_type to,
                                               int ndim, ad_layout *out, const char *site);
/* One step of a path. ad_layout_path finds the shortest legal path of reductions from a gradient's layout to a storage
 * layout (law 4). It fills at most AD_AXIS_COUNT steps, with reduce_scatter before all_reduce so that later steps move
 * fewer bytes; 0 steps if the layouts are equal. Axes that the mesh does not name take no step. AD_TYPE if there is no
 * path. */
typedef struct ad_path_step {
  ad_move move;
  ad_axes axes;
  ad_type from, to;
} ad_path_step;
AD_API AD_CHECKED ad_status ad_layout_path(const ad_layout *gradient, const ad_layout *storage,
                                           ad_path_step steps[AD_AXIS_COUNT], int *count);

/* How a local operation combines its operands (law 3). Letters name the dimensions: "bsk,kn->bsn" keeps b, s and n and
 * contracts k. */
typedef enum ad_linearity {
  AD_MULTILINEAR, /* a product, linear in each operand: at most one operand may be P, and all others are then R */
  AD_ADDITIVE,    /* a sum: all operands are P, or none is */
  AD_NONLINEAR    /* no operand may be P */
} ad_linearity;
typedef struct ad_rule {
  size_t size;      /* sizeof(ad_rule) */
  const char *name; /* name of the operation, for messages */
  const char *dims; /* "bsk,kn->bsn"; a dimension that the output does not have is summed */
  ad_linearity linearity;
  /* letters of dimensions that must not be sharded, because the operation is not local along them; "" or NULL: none */
  const char *full;
} ad_rule;
/* *out: the layout of an operation's result. constant[i] says that operand i carries no gradient; its R then counts as
 * R or as I. AD_TYPE as in law 1, for example: "site: in `name`, operand 1 is I on `tp`, operand 2 is S(0); possible
 * repair: convert operand 1 I->S(0)". *out is unchanged on failure. */
#define ad_layout_propagate(...) ad_layout_propagate_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_layout_propagate_at(const ad_rule *rule, const ad_layout *const *operands,
                                                   const int *constant, size_t count, ad_layout *out, const char *site);
/* *out: the layout of the same value on `view`, another factorisation of the same ranks; no bytes move. AD_TYPE names
 * the axes and the conversion that is needed; AD_INVALID if the ranks differ. A named axis of size 1 of the view gets
 * the type of the mesh's axis of size 1 at the same position (counted from the fastest axis). If the mesh has no such
 * axis, it gets the type of the view's next slower axis, so that types do not depend on sizes. Axes that only the mesh
 * names become R. */
#define ad_layout_view(...) ad_layout_view_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_layout_view_at(const ad_layout *layout, const ad_mesh *view, ad_layout *out,
                                              const char *site);

#if defined(__cplusplus)
}
#endif
#endif
