/* Random numbers for the samples of a batch, for masks and noise. A number depends on the seed, a name, the step and
 * its element's position in the batch, never on the rank or the microbatch. */
#include "addend/tensor.h"
#include "array/array.h"
#include "array/packed.h"
#include "array/part.h"
#include "base/error.h"
#include "base/random.h"

typedef struct drawing {
  uint64_t seed;     /* seed of this name and step */
  int64_t first;     /* index, in the whole batch, of the array's first sample */
  int64_t of_sample; /* number of elements of one sample */
  ad_array *array;
  size_t written; /* elements of the local part written so far, in storage order */
} drawing;

static void set_element(const ad_array *array, size_t i, double value) {
  if (array->dtype == AD_F64)
    ((double *)array->data)[i] = value;
  else
    ((float *)array->data)[i] = (float)value;
}

/* Returns a number with 24 random bits. An f32 below 1 has no more bits, so arrays of f32 and of f64 get the same
 * numbers. */
static double uniform(const drawing *of, int64_t element) {
  uint64_t sample = (uint64_t)(of->first + element / of->of_sample);
  return (double)(ad_random_bits(of->seed, sample, (uint64_t)(element % of->of_sample)) >> 40) * 0x1p-24;
}

static void draw_run(void *context, int64_t first, int64_t count) {
  drawing *of = context;
  for (int64_t i = 0; i < count; i++) set_element(of->array, of->written++, uniform(of, first + i));
}

/* Refuses arrays without samples, other dtypes than f32 and f64, and values that are P or V on an axis. */
static ad_status check_array(const ad_comm *comm, const ad_array *array, const char *name, const char *site) {
  AD_TRY(ad_array_check(comm, array, "uniform", site));
  if (!array->shape.ndim || ad_array_is_packed(array))
    return ad_fail(AD_INVALID,
                   "%s: the array `%s` cannot get uniform values, because it is a scalar or a packed array; use one "
                   "array of shape [samples, ...]",
                   site, name);
  if ((array->dtype != AD_F32 && array->dtype != AD_F64) || array->scale)
    return ad_fail(
        AD_INVALID,
        "%s: the array `%s` for uniform values has dtype %s and scale %d, but must have dtype f32 or f64 and scale 0",
        site, name, ad_dtype_name(array->dtype), array->scale);
  ad_axes apart = ad_layout_axes_of(&array->layout, AD_P) | ad_layout_axes_of(&array->layout, AD_V);
  apart &= ad_mesh_named(array->layout.mesh);
  char type[16];
  if (!apart) return AD_OK;
  ad_axis axis = (ad_axis)__builtin_ctz(apart);
  return ad_fail(AD_TYPE,
                 "%s: the array `%s` for uniform values is %s on `%s`, but must be R, I or S there, so that each rank "
                 "has a replica or a part of one full value",
                 site, name, ad_type_print(array->layout.type[axis], type, sizeof type), ad_axis_name(axis));
}

ad_status ad_array_uniform_at(const ad_comm *comm, uint64_t seed, const char *name, int64_t step, int64_t first,
                              ad_array *array, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, name, array);
  AD_NEED(array->layout.mesh);
  AD_TRY(check_array(comm, array, name, site));
  if (!array->data || !ad_array_numel(array)) return AD_OK;
  uint64_t own = ad_random_bits(seed, ad_random_stream(name), (uint64_t)step);
  drawing of = {own, first, ad_shape_numel(&array->shape) / array->shape.dim[0], array, 0};
  ad_part part;
  ad_part_of(&array->layout, &array->shape, ad_comm_rank(comm), &part);
  ad_part_visit(&part, &array->shape, draw_run, &of);
  return AD_OK;
}
