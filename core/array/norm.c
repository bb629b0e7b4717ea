/* Computes sums of squares over distributed arrays, counting every distinct element once. */
#include <math.h>
#include <string.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "base/injection.h"
#include "base/exact.h"
#include "kernels/kernels.h"
#include "layout/type.h"
#include "mesh/group.h"
#include "mesh/mesh.h"

/* Returns the sum of squares of the elements that this rank stores. */
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

/* Adds the squares of the elements that this rank stores: the squares of each row are summed in f64, in the order of
 * the elements, and the sums of rows are added without rounding. Sharding along dimension 0 divides no row, so the
 * ranks that share an array add the same numbers, however many ranks there are. */
static void add_square_rows(ad_exact *sum, const ad_array *array) {
  enum { BLOCK = 512 };
  double row_sum = 0, block[BLOCK];
  size_t numel = ad_array_numel(array), element = ad_dtype_size(array->dtype);
  size_t row = numel && array->local.ndim ? numel / (size_t)array->local.dim[0] : 1, left = row;
  const char *data = array->data;
  for (size_t done = 0; done < numel; done += BLOCK) {
    size_t count = numel - done < BLOCK ? numel - done : BLOCK;
    ad_cast(block, AD_F64, data + done * element, array->dtype, count);
    for (size_t i = 0; i < count; i++) {
      row_sum += block[i] * block[i];
      if (--left) continue;
      ad_exact_add(sum, ldexp(row_sum, 2 * array->scale));
      row_sum = 0;
      left = row;
    }
  }
}

/* A call that sums squares. Its sums lie one after another in memory; each sum is one f64, or an ad_exact, which is
 * several i64. */
typedef struct summing {
  ad_comm *comm;
  const ad_group *group;
  const char *site;
  ad_dtype dtype;
  size_t numbers; /* how many numbers of this dtype make up one sum */
} summing;

/* Memory for one sum, which is an f64 or an ad_exact. */
typedef union any_sum {
  double f64;
  ad_exact exact;
} any_sum;

static void *sum_at(const summing *by, void *sums, size_t i) { return (int64_t *)sums + i * by->numbers; }

static void add_sum(const summing *by, void *to, const any_sum *from) {
  if (by->dtype == AD_F64) {
    *(double *)to += from->f64;
  } else {
    ad_exact_add_sum(to, &from->exact);
  }
}

/* Returns AD_TYPE if a value is P on an axis, AD_INVALID if its dtype is not a floating one. */
static ad_status check_summable(const ad_comm *comm, const ad_array *array, const char *site) {
  AD_TRY(ad_array_check(comm, array, "square sum", site));
  ad_axes partial = ad_layout_axes_of(&array->layout, AD_P) & ad_mesh_large(array->layout.mesh);
  if (partial) {
    return ad_fail(AD_TYPE,
                   "%s: the sum of squares cannot be taken of an array that is P on `%s`, because the square of a sum "
                   "is not the sum of its addends' squares; reduce that array first",
                   site, ad_axis_name((ad_axis)__builtin_ctz(partial)));
  }
  if (ad_dtype_is_float(array->dtype)) return AD_OK;
  char floats[AD_DTYPES_TEXT];
  return ad_fail(AD_INVALID,
                 "%s: the sum of squares needs arrays of %s, but an array has dtype %s; convert this array first", site,
                 ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats), ad_dtype_name(array->dtype));
}

/* Returns 1 if the group contains all ranks of the mesh. */
static int has_ranks(const ad_group *group, const ad_mesh *mesh) {
  int64_t first = ad_mesh_first_rank(mesh), first_of_group = ad_mesh_first_rank(group->mesh);
  return first >= first_of_group && first + ad_mesh_size(mesh) <= first_of_group + ad_mesh_size(group->mesh) &&
         !(ad_mesh_large(group->mesh) & ~group->axes);
}

/* *out: the axes on which the group's ranks hold replicas of the array. AD_INVALID unless the group lies on the array's
 * mesh or contains all ranks of that mesh. */
static ad_status find_replicas(const ad_array *array, const ad_group *group, const char *site, ad_axes *out) {
  const ad_mesh *mesh = array->layout.mesh, *of_group = group->mesh;
  ad_axes same = ad_layout_same_axes(&array->layout);
  int has_all = has_ranks(group, mesh);
  *out = has_all ? same : same & group->axes;
  if (has_all || ad_mesh_equal(mesh, of_group)) return AD_OK;
  char ranks[160];
  return ad_fail(AD_INVALID,
                 "%s: the sum of squares is taken over the group %s of mesh \"%s\", which does not contain all ranks "
                 "of mesh \"%s\" of one array; use a group that contains all ranks of the second mesh",
                 site, ad_group_print(group, ranks, sizeof ranks), ad_mesh_text(of_group), ad_mesh_text(mesh));
}

/* Describes `count` sums as an array on the mesh: R on the axes `replicas`, P on the axes `addends`, V on all others.
 * The sums have no gradient, so R is used for both R and I. */
static ad_array describe_sums(const summing *by, const ad_mesh *mesh, ad_axes replicas, ad_axes addends, void *data,
                              size_t count) {
  ad_shape shape = {1, {(int64_t)(count * by->numbers)}};
  ad_layout layout = ad_layout_all(mesh, AD_V);
  ad_layout_set(&layout, replicas, AD_R);
  ad_layout_set(&layout, addends, AD_P);
  ad_array sums = ad_array_describe(by->comm, by->dtype, &shape, &layout);
  sums.data = ad_comm_is_dry(by->comm) ? NULL : data;
  return sums;
}

/* Keeps the sums on the first rank along `axes` and zeroes them on the other ranks. All ranks along `axes` have the
 * same sums, and so each sum counts once. `name` is the array that was summed, for messages. */
static ad_status take_once(const summing *by, const ad_array *sums, ad_axes axes, const char *name) {
  ad_array once;
  ad_transit move = {.move = AD_MOVE_ONCE, .axes = axes, .to = AD_P, .site = by->site, .what = name};
  AD_TRY(ad_array_after_at(by->comm, sums, move.move, move.axes, move.to, &once, by->site));
  once.data = sums->data;
  AD_TRY(ad_transit_run(by->comm, &move, sums, &once));
  ad_axes replicas = axes & ~ad_layout_axes_of(&once.layout, AD_P);
  char text[96];
  if (!replicas) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: the sum of squares of `%s` is R over %s, so each replica there would be counted again; count "
                 "only one replica",
                 by->site, name, ad_axes_print(replicas, text, sizeof text));
}

/* *sum: what this rank adds to the sum for one array: the squares of its own elements, or 0 if an earlier rank of the
 * group has the same elements. */
static ad_status count_own(const summing *by, const ad_array *array, const char *name, any_sum *sum) {
  ad_axes replicas, same = ad_layout_same_axes(&array->layout);
  AD_TRY(find_replicas(array, by->group, by->site, &replicas));
  memset(sum, 0, sizeof *sum);
  if (array->data && by->dtype == AD_F64) {
    sum->f64 = local_square_sum(array);
  } else if (array->data) {
    add_square_rows(&sum->exact, array);
    ad_inject(AD_INJECT_SQUARES, &sum->exact);
    ad_exact_carry(&sum->exact);
  }
  if (!replicas) return AD_OK;
  ad_array own = describe_sums(by, array->layout.mesh, same, AD_AXES_ALL & ~same, sum, 1);
  return take_once(by, &own, replicas, name);
}

/* Sums `sums` over the group, in place: an all_reduce P->R. */
static ad_status reduce(const summing *by, const ad_group *group, void *sums, size_t count) {
  ad_array own = describe_sums(by, group->mesh, 0, group->axes, sums, count), total;
  ad_transit all = {.move = AD_MOVE_ALL_REDUCE, .axes = group->axes, .to = AD_R, .site = by->site, .what = "norm"};
  AD_TRY(ad_array_after_at(by->comm, &own, all.move, all.axes, all.to, &total, by->site));
  total.data = own.data;
  AD_TRY(ad_transit_run(by->comm, &all, &own, &total));
  ad_axes partial_axes = ad_layout_axes_of(&total.layout, AD_P) & group->axes;
  char axes[96];
  if (!partial_axes) return AD_OK;
  return ad_fail(AD_TYPE,
                 "%s: the sum of squares is still Partial (P) over %s, so each rank has only a part of the sum; "
                 "all-reduce the sum over these axes too",
                 by->site, ad_axes_print(partial_axes, axes, sizeof axes));
}

/* Sums over the ranks of `mesh`, which are a part of a larger group. Keeps the result only on the mesh's first rank, so
 * that the result counts once in the sum over the larger group. */
static ad_status reduce_part(const summing *by, const ad_mesh *mesh, void *sums, size_t count) {
  ad_group part = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(by->comm));
  AD_TRY(reduce(by, &part, sums, count));
  ad_array total = describe_sums(by, mesh, AD_AXES_ALL, 0, sums, count);
  return take_once(by, &total, AD_AXES_ALL, "norm");
}

/* Returns 1 if the group contains all ranks of the mesh and further ranks, else 0. */
static int is_part(const ad_group *group, const ad_mesh *mesh) {
  return has_ranks(group, mesh) && ad_mesh_size(mesh) < ad_group_size(group);
}

/* Checks that this rank is in the group, and checks all arrays that lie on this rank. */
static ad_status check_call(const ad_comm *comm, const ad_group *group, const ad_array *const *arrays, size_t count,
                            const char *site) {
  int64_t rank = ad_comm_rank(comm);
  if (ad_group_index(group, rank) < 0)
    return ad_fail(AD_INVALID,
                   "%s: the sum of squares was asked for on rank %lld, which is not in the group; call "
                   "ad_array_square_sum on ranks of the group only",
                   site, (long long)rank);
  for (size_t i = 0; i < count; i++) {
    if (!arrays[i] || !arrays[i]->layout.mesh)
      return ad_fail(AD_INVALID,
                     "%s: entry %zu (from 0) of the arrays for the sum of squares %s; give only arrays that have a "
                     "layout with a mesh",
                     site, i, arrays[i] ? "has no mesh" : "is NULL");
    if (ad_mesh_has_rank(arrays[i]->layout.mesh, rank)) AD_TRY(check_summable(comm, arrays[i], site));
  }
  return AD_OK;
}

/* Returns the end of a run of arrays that begins at array i. The arrays of a run lie on the same ranks and are added to
 * consecutive sums, so one reduction is enough for the run. */
static size_t find_end(const ad_array *const *arrays, const size_t *places, size_t count, size_t i) {
  size_t end = i + 1;
  while (end < count && ad_mesh_same_ranks(arrays[end]->layout.mesh, arrays[i]->layout.mesh) &&
         (!places || places[end] == places[end - 1] + 1))
    end++;
  return end;
}

/* Adds this rank's squares of several arrays on the same ranks: to one sum for each array, or to one sum for all
 * arrays. If these ranks are only a part of the group, they are summed among themselves first. Therefore the order of
 * additions, and with it the bits, does not depend on the other ranks of the group. */
static ad_status sum_neighbours(const summing *by, const ad_array *const *arrays, const char *const *names,
                                size_t count, void *sums, size_t sum_count) {
  const ad_mesh *mesh = arrays[0]->layout.mesh;
  for (size_t i = 0; i < count; i++) {
    any_sum own;
    AD_TRY(count_own(by, arrays[i], names ? names[i] : "a value", &own));
    add_sum(by, sum_at(by, sums, sum_count == 1 ? 0 : i), &own);
  }
  return is_part(by->group, mesh) ? reduce_part(by, mesh, sums, sum_count) : AD_OK;
}

/* Computes ad_square_sums or ad_exact_square_sums, by the dtype of the sums. */
static ad_status sum_squares(const summing *by, const ad_array *const *arrays, const char *const *names, size_t count,
                             void *sums, const size_t *places, size_t sum_count) {
  AD_TRY(check_call(by->comm, by->group, arrays, count, by->site));
  memset(sums, 0, sum_count * by->numbers * ad_dtype_size(by->dtype));
  for (size_t i = 0, end; i < count; i = end) {
    any_sum of_all;
    memset(&of_all, 0, sizeof of_all);
    void *own = places ? sum_at(by, sums, places[i]) : &of_all;
    end = find_end(arrays, places, count, i);
    if (!ad_mesh_has_rank(arrays[i]->layout.mesh, ad_comm_rank(by->comm))) continue;  // other ranks have this array
    AD_TRY(sum_neighbours(by, &arrays[i], names ? &names[i] : NULL, end - i, own, places ? end - i : 1));
    add_sum(by, sums, &of_all);
  }
  return reduce(by, by->group, sums, sum_count);
}

ad_status ad_square_sums(ad_comm *comm, const ad_group *group, const ad_array *const *arrays, const char *const *names,
                         size_t count, const char *site, double *sums, const size_t *places, size_t sum_count) {
  const summing by = {comm, group, site, AD_F64, 1};
  return sum_squares(&by, arrays, names, count, sums, places, sum_count);
}

ad_status ad_exact_square_sums(ad_comm *comm, const ad_group *group, const ad_array *const *arrays,
                               const char *const *names, size_t count, const char *site, ad_exact *sums,
                               const size_t *places, size_t sum_count) {
  const summing by = {comm, group, site, AD_I64, AD_EXACT_NUMBERS};
  return sum_squares(&by, arrays, names, count, sums, places, sum_count);
}

ad_status ad_array_square_sum_at(ad_comm *comm, const ad_group *group, const ad_array *const *arrays, size_t count,
                                 double *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, group, out);
  AD_NEED(group->mesh);
  if (count) AD_NEED(arrays);
  return ad_square_sums(comm, group, arrays, NULL, count, site, out, NULL, 1);
}
