/* The sum of squares over distributed arrays, every distinct element once. */
#include <math.h>
#include "array/array.h"
#include "base/error.h"
#include "base/kernels.h"
#include "base/switches.h"

/* Of the ranks of the group that hold the same part, the first one counts it. */
static int counts_here(const ad_comm *comm, const ad_array *array, const ad_group *group) {
  if (ad_switched(AD_SWITCH_REPLICA_IN_NORM)) return 1;
  int64_t rank = ad_comm_rank(comm);
  ad_axes same = ad_layout_axes_of(&array->layout, AD_R) | ad_layout_axes_of(&array->layout, AD_I);
  ad_group copies = ad_mesh_group(array->layout.mesh, same, rank);
  int64_t first = ad_group_size(&copies), count = first;
  for (int64_t i = 0; i < count && first == count; i++) {
    if (ad_group_index(group, ad_group_rank(&copies, i)) >= 0) first = i;
  }
  return first < count && ad_group_rank(&copies, first) == rank;
}

static double local_square_sum(const ad_array *array) {
  enum { BLOCK = 512 };
  double sum = 0, block[BLOCK];
  size_t numel = ad_array_numel(array), element = ad_dtype_size(array->dtype);
  const char *data = array->data;
  for (size_t done = 0; done < numel; done += BLOCK) {
    size_t count = numel - done < BLOCK ? numel - done : BLOCK;
    ad_cast(block, AD_F64, data + done * element, array->dtype, count);
    for (size_t i = 0; i < count; i++) sum += block[i] * block[i];
  }
  return ldexp(sum, 2 * array->scale);
}

static ad_status check_summable(const ad_comm *comm, const ad_array *array, const char *site) {
  if (!array || !array->layout.mesh)
    return ad_fail(AD_INVALID, "%s: square sum: an array %s", site, array ? "has no mesh" : "is NULL");
  AD_TRY(ad_array_check(comm, array, "square sum", site));
  ad_axes partial = ad_layout_axes_of(&array->layout, AD_P);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!(partial & AD_AXES(axis)) || ad_mesh_axis_size(array->layout.mesh, (ad_axis)axis) == 1) continue;
    return ad_fail(
        AD_TYPE,
        "%s: square sum: a value is P on `%s`: the square of a pending sum is not the sum of squares; reduce it first",
        site, ad_axis_name((ad_axis)axis));
  }
  if (ad_dtype_is_float(array->dtype)) return AD_OK;
  return ad_fail(AD_INVALID, "%s: square sum: the dtype %s is no floating one", site, ad_dtype_name(array->dtype));
}

ad_status ad_array_square_sum(ad_comm *comm, const ad_group *group, const ad_array *const *arrays, size_t count,
                              const char *site, double *out) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, group, out);
  AD_NEED(group->mesh);
  if (count) AD_NEED(arrays);
  for (size_t i = 0; i < count; i++) AD_TRY(check_summable(comm, arrays[i], site));
  double sum = 0;
  for (size_t i = 0; i < count; i++) {
    if (arrays[i]->data && counts_here(comm, arrays[i], group)) sum += local_square_sum(arrays[i]);
  }
  ad_collective call = {.op = AD_ALL_REDUCE, .group = *group, .in = &sum, .out = &sum, .count = 1, .site = site};
  call.dtype = AD_F64;
  AD_TRY(ad_comm_run(comm, &call));
  *out = sum;
  return AD_OK;
}
