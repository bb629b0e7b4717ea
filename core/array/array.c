/* Describes, creates, checks and adds arrays (law 6, like adds to like). Transitions, which change an array's types,
 * are in move.c. */
#include "array/array.h"

#include <math.h>
#include "array/packed.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "layout/shown.h"
#include "layout/type.h"
#include "mesh/mesh.h"

ad_array ad_array_describe(const ad_comm *comm, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout) {
  ad_array array = {.dtype = dtype, .shape = *shape, .layout = *layout};
  array.local = ad_array_local_shape(comm, &array);
  return array;
}

ad_shape ad_array_local_shape(const ad_comm *comm, const ad_array *array) {
  int64_t rank = ad_comm_rank(comm);
  if (!ad_mesh_has_rank(array->layout.mesh, rank)) return (ad_shape){1, {0}};
  if (ad_array_is_packed(array)) return (ad_shape){1, {(int64_t)ad_packed_local(array, rank)}};
  return ad_layout_local_shape(&array->layout, &array->shape, rank);
}

size_t ad_array_numel(const ad_array *array) { return (size_t)ad_shape_numel(&array->local); }

size_t ad_array_bytes(const ad_array *array) { return ad_array_numel(array) * ad_dtype_size(array->dtype); }

static void *element_of(const ad_array *array, size_t i) {
  return (char *)array->data + i * ad_dtype_size(array->dtype);
}

double ad_array_get(const ad_array *array, size_t i) {
#define INTEGER_VALUE(code, name, type, ...) \
  case code:                                 \
    return (double)*(const type *)element_of(array, i);
  double value = NAN;  // returned if arrays cannot have this dtype
  switch (ad_dtype_is_of_arrays(array->dtype) ? (int)array->dtype : 0) {
    AD_INTEGER_LIST(INTEGER_VALUE)
    default:
      ad_cast(&value, AD_F64, element_of(array, i), array->dtype, 1);
      return value;
  }
}

void ad_array_set(const ad_array *array, size_t i, double value) {
#define SET_INTEGER(code, name, type, ...)       \
  case code:                                     \
    *(type *)element_of(array, i) = (type)value; \
    return;
  switch (ad_dtype_is_of_arrays(array->dtype) ? (int)array->dtype : 0) {
    AD_INTEGER_LIST(SET_INTEGER)
    default:
      ad_cast(element_of(array, i), array->dtype, &value, AD_F64, 1);
  }
}

static ad_status check_rank(const ad_comm *comm, const ad_mesh *mesh, const char *what, const char *site) {
  if (ad_mesh_has_rank(mesh, ad_comm_rank(comm))) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: the array that `%s` got is used on rank %lld, but its mesh \"%s\" has ranks %lld to %lld; use the "
      "array on these ranks only",
      site, what, (long long)ad_comm_rank(comm), ad_mesh_text(mesh), (long long)ad_mesh_first_rank(mesh),
      (long long)ad_mesh_last_rank(mesh));
}

/* Refuses dtypes that only collectives support. Gradients and tensors consist of arrays, so gradients and tensors
 * cannot have such dtypes either. */
static ad_status check_dtype(ad_dtype dtype, const char *what, const char *site) {
  if (!ad_dtype_size(dtype))
    return ad_fail(AD_INVALID,
                   "%s: the array that `%s` got has dtype %d, which does not exist; use a dtype of ad_dtype", site,
                   what, (int)dtype);
  if (ad_dtype_is_of_arrays(dtype)) return AD_OK;
  char dtypes[AD_DTYPES_TEXT];
  return ad_fail(AD_INVALID,
                 "%s: the array that `%s` got has dtype %s, which only collectives take (ad_comm_run); use %s", site,
                 what, ad_dtype_name(dtype), ad_dtypes_print(ad_dtype_is_of_arrays, NULL, "or", dtypes));
}

static ad_status check_shape(ad_dtype dtype, const ad_shape *shape) {
  AD_TRY(check_dtype(dtype, "out", "ad_array_create"));
  char text[AD_SHAPE_FAULT_MAX];
  const char *fault = ad_shape_fault(shape, text, sizeof text);
  return fault ? ad_fail(AD_INVALID, "ad_array_create: %s", fault) : AD_OK;
}

ad_status ad_array_create(ad_comm *comm, ad_dtype dtype, const ad_shape *shape, const ad_layout *layout,
                          ad_array *out) {
  AD_NEED(comm, shape, layout, out);
  AD_NEED(layout->mesh);
  AD_TRY(check_shape(dtype, shape));
  AD_TRY(check_rank(comm, layout->mesh, "out", "ad_array_create"));
  ad_array array = ad_array_describe(comm, dtype, shape, layout);
  if (!ad_comm_is_dry(comm)) AD_TRY(ad_comm_alloc(comm, ad_array_bytes(&array), &array.data));
  *out = array;
  return AD_OK;
}

void ad_array_destroy(ad_comm *comm, ad_array *array) {
  if (!array) return;
  if (array->data) ad_comm_free(comm, array->data);
  array->data = NULL;
}

ad_status ad_array_check(const ad_comm *comm, const ad_array *array, const char *what, const char *site) {
  AD_TRY(check_dtype(array->dtype, what, site));
  AD_TRY(check_rank(comm, array->layout.mesh, what, site));
  if (ad_array_is_packed(array)) AD_TRY(ad_packed_check(array, what, site));
  ad_shape local = ad_array_local_shape(comm, array);
  char layout[160], have[96], want[96];
  if (!ad_shape_equal(&local, &array->local)) {
    return ad_fail(
        AD_INVALID,
        "%s: the array that `%s` got has a local part of shape %s, but with layout \"%s\" the local part is of "
        "shape %s on rank %lld; take the description from ad_array_describe",
        site, what, ad_shape_print(&array->local, have, sizeof have),
        ad_layout_print(&array->layout, layout, sizeof layout), ad_shape_print(&local, want, sizeof want),
        (long long)ad_comm_rank(comm));
  }
  if (array->data || ad_comm_is_dry(comm) || !ad_array_numel(array)) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: the array that `%s` got, with a local part of shape %s, has no memory for its elements; set its `data`",
      site, what, ad_shape_print(&array->local, have, sizeof have));
}

ad_status ad_array_check_addend(const ad_array *to, const ad_array *from, const char *site) {
  char a[160], b[160];
  if (!ad_layout_equal(&to->layout, &from->layout)) {
    ad_layouts_shown_apart(&to->layout, &from->layout, a, b, sizeof a);
    return ad_fail(AD_TYPE,
                   "%s: in `add`, the sum has layout \"%s\", but the value to add has layout \"%s\"; convert one of "
                   "the two to the layout of the other first",
                   site, a, b);
  }
  if (to->scale != from->scale) {
    return ad_fail(AD_TYPE,
                   "%s: in `add`, the elements of the sum are stored multiplied by 2^%d, but those of the value to add "
                   "by 2^%d; give both arrays the same `scale` first",
                   site, -to->scale, -from->scale);
  }
  if (!ad_shape_equal(&to->shape, &from->shape) || !ad_shape_equal(&to->local, &from->local)) {
    return ad_fail(
        AD_INVALID,
        "%s: in `add`, the sum has shape %s, but the value to add has shape %s; add only arrays of the same shape",
        site, ad_shape_print(&to->shape, a, sizeof a), ad_shape_print(&from->shape, b, sizeof b));
  }
  if (ad_packed_identical(to, from)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: in `add`, the sum and the value to add pack different values; the two arrays must pack values of "
                 "the same shapes in the same order",
                 site);
}

static ad_status check_addable(const ad_array *array, const char *what, const char *site) {
  char floats[AD_DTYPES_TEXT];
  if (ad_dtype_is_float(array->dtype)) return AD_OK;
  if (!ad_dtype_size(array->dtype))
    return ad_fail(AD_INVALID, "%s: in `add`, %s has dtype %d, which does not exist; use %s", site, what,
                   (int)array->dtype, ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats));
  return ad_fail(AD_INVALID,
                 "%s: in `add`, %s has dtype %s, but only arrays of %s can be added; convert the array to one of these "
                 "dtypes first",
                 site, what, ad_dtype_name(array->dtype), ad_dtypes_print(ad_dtype_is_float, NULL, "and", floats));
}

ad_status ad_array_add_at(ad_array *to, const ad_array *from, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(to, from);
  AD_NEED(to->layout.mesh, from->layout.mesh);
  AD_TRY(ad_array_check_addend(to, from, site));
  AD_TRY(check_addable(to, "the sum", site));
  AD_TRY(check_addable(from, "the value to add", site));
  if (ad_array_numel(to) && !to->data != !from->data)
    return ad_fail(AD_INVALID, "%s: in `add`, %s has no memory for its elements; set its `data`", site,
                   to->data ? "the value to add" : "the sum");
  if (to->data && from->data) ad_accumulate(to->data, to->dtype, from->data, from->dtype, 1, ad_array_numel(to));
  return AD_OK;
}
