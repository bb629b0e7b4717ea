/* Functions of arrays that are not public, for other folders of the library. */
#ifndef ARRAY_ARRAY_H
#define ARRAY_ARRAY_H
#include <string.h>
#include "addend/array.h"
#include "base/exact.h"
#include "base/internal.h"

/* Returns this rank's group over `axes` of the array's mesh. */
static inline ad_group ad_array_group(const ad_comm *comm, const ad_array *array, ad_axes axes) {
  return ad_mesh_group(array->layout.mesh, axes, ad_comm_rank(comm));
}
/* Rounds a size up to whole cache lines. Pieces of scratch memory have padded sizes, so each begins at a cache line. */
static inline size_t ad_padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
/* The shape of this rank's part, computed from the layout and, for a packed array, its segments. */
ad_shape ad_array_local_shape(const ad_comm *comm, const ad_array *array);
/* Returns AD_INVALID if arrays cannot have this dtype, the rank is not on the array's mesh, `local` is not this rank's
 * part by the layout, or an array with elements has no data. `what` names the operation in messages. */
AD_INTERNAL ad_status ad_array_check(const ad_comm *comm, const ad_array *array, const char *what,
                                     const char *site) AD_CHECKED;

/* Checks law 6 (like adds to like): AD_TYPE unless layout and scale agree, AD_INVALID unless the shapes agree. Does not
 * check the dtypes. */
ad_status ad_array_check_addend(const ad_array *to, const ad_array *from, const char *site) AD_CHECKED;

/* Like ad_array_square_sum, for several sums: adds the squares of array i to sums[places[i]], or to sums[0] if `places`
 * is NULL. There are `sum_count` sums, the same number on all ranks of the group. If only one array is added to a sum,
 * the sum has the same bits whatever other ranks are in the group. `names` are the arrays' names for messages (NULL:
 * none). `site` is not NULL. */
AD_INTERNAL ad_status ad_square_sums(ad_comm *comm, const ad_group *group, const ad_array *const *arrays,
                                     const char *const *names, size_t count, const char *site, double *sums,
                                     const size_t *places, size_t sum_count) AD_CHECKED;
/* Like ad_square_sums, with sums that do not depend on how the arrays are sharded along dimension 0: the squares of
 * each row are summed in f64, and the sums of rows are added without rounding. ad_exact_value rounds a sum. */
AD_INTERNAL ad_status ad_exact_square_sums(ad_comm *comm, const ad_group *group, const ad_array *const *arrays,
                                           const char *const *names, size_t count, const char *site, ad_exact *sums,
                                           const size_t *places, size_t sum_count) AD_CHECKED;

/* Describes a packed array, with data NULL. Its layout may shard it only on dimension 0 (S(0)). */
ad_array ad_array_describe_packed(const ad_comm *comm, ad_dtype dtype, const ad_segment *segments, size_t count,
                                  const ad_layout *layout);

#endif
