/* What array/ and the folders above it know of an array besides its public fields. */
#ifndef ARRAY_ARRAY_H
#define ARRAY_ARRAY_H
#include <string.h>
#include "addend/array.h"
#include "base/internal.h"

static inline ad_group ad_array_group(const ad_comm *comm, const ad_array *array, ad_axes axes) {
  return ad_mesh_group(array->layout.mesh, axes, ad_comm_rank(comm));
}
/* Where the next piece of one block of scratch memory begins: whole cache lines. */
static inline size_t ad_padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
/* Of this rank's part, as the layout and, of a packed array, the segments give it. */
ad_shape ad_array_local_shape(const ad_comm *comm, const ad_array *array);
/* AD_INVALID if no array has the dtype, if the rank is not on the array's mesh, if its local part is not the one that
 * its layout gives, or if an array with elements has no data. */
AD_INTERNAL ad_status ad_array_check(const ad_comm *comm, const ad_array *array, const char *what,
                                     const char *site) AD_CHECKED;

/* Law 6: AD_TYPE unless layout and scale agree, AD_INVALID unless the shapes do. Dtypes are the caller's contract. */
ad_status ad_array_check_addend(const ad_array *to, const ad_array *from, const char *site) AD_CHECKED;

/* ad_array_square_sum into several sums at once: the squares of array i count in sums[places[i]] (NULL: all in the
 * first), of `sum_count`, which is the same on all ranks of the group. A sum with one array alone has the same bits
 * whatever other ranks the group has. `names`: of the arrays (NULL: none). `site` is not NULL. */
AD_INTERNAL ad_status ad_square_sums(ad_comm *comm, const ad_group *group, const ad_array *const *arrays,
                                     const char *const *names, size_t count, const char *site, double *sums,
                                     const size_t *places, size_t sum_count) AD_CHECKED;

/* The same of a packed array. Its layout may cut it by S(0) alone. */
ad_array ad_array_describe_packed(const ad_comm *comm, ad_dtype dtype, const ad_segment *segments, size_t count,
                                  const ad_layout *layout);

#endif
