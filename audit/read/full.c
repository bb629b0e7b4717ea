/* Finds a parameter's values in a reference (a file of full gradients, or another dump). */
#include "read/full.h"

#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "kernels/kernels.h"

/* ---- finding a parameter's tensors in the reference ---- */

/* Finds the parameter's tensor in a file of full gradients. */
static ad_status find_plain(const ad_dump *reference, ad_full *full) {
  const ad_dump_param *param = full->parts->param;
  const ad_safetensor *tensor = ad_safetensors_find(reference->reference->tensors, param->name);
  char own[160], other[160];
  if (!tensor) return AD_OK;
  if (!ad_shape_equal(&tensor->shape, &param->shape) || !ad_dtype_is_float(tensor->dtype))
    return ad_fail(AD_INVALID,
                   "the reference %s has \"%.80s\" as %s %s, but a reference must have a float dtype and the dump's "
                   "shape, %s; write the reference again",
                   reference->reference->path, param->name, ad_dtype_name(tensor->dtype),
                   ad_shape_print(&tensor->shape, own, sizeof own), ad_shape_print(&param->shape, other, sizeof other));
  AD_TRY(ad_new(1, &full->pieces));
  full->pieces[0] = (ad_piece){.tensor = tensor, .box = ad_box_full(&param->shape)};
  full->count = 1;
  return AD_OK;
}

/* Finds the parameter's sums in another dump, each with its box. */
static ad_status find_sums(const ad_dump *reference, ad_full *full) {
  const ad_dump_param *own = full->parts->param, *param = ad_dump_find(reference, own->name);
  if (!param) return AD_OK;
  if (!ad_shape_equal(&param->shape, &own->shape) || param->partial ||
      (param->is_sampled && param->sample != own->sample))
    return ad_fail(AD_INVALID,
                   "the reference has \"%.80s\" in another shape, with other sampled elements, or as a partial sum "
                   "(addend.partial), so it cannot be compared with the dump; make the reference with the same "
                   "addend.shapes and addend.sample",
                   own->name);
  full->param = param;
  AD_TRY(ad_new((size_t)reference->mesh.world, &full->pieces));
  for (int64_t rank = 0; rank < reference->mesh.world; rank++) {
    int there;
    AD_TRY(ad_dump_piece(reference, param, reference->sums[rank], &full->pieces[full->count], &there));
    full->count += there && ad_box_numel(&param->shape, &full->pieces[full->count].box) > 0;
  }
  return AD_OK;
}

/* ---- reading values of the reference ---- */

/* Returns the index, in the piece's tensor, of the element with flat index `flat` and sample number `k`. `k` is used
 * if the reference is sampled, else `flat`. */
static size_t element_place(const ad_full *full, const ad_piece *piece, int64_t flat, int64_t k) {
  const ad_shape *shape = &full->parts->param->shape;
  return full->param && full->param->is_sampled ? ad_sample_place(piece->sampled, k)
                                                : (size_t)ad_box_offset(shape, &piece->box, flat);
}

static double value_at(const ad_safetensor *tensor, size_t place) {
  char element[sizeof(double)] __attribute__((aligned(8)));
  double value;
  size_t size = ad_dtype_size(tensor->dtype);
  memcpy(element, (const char *)tensor->data + place * size, size);
  ad_cast(&value, AD_F64, element, tensor->dtype, 1);
  return value;
}

double ad_full_value(const ad_full *full, const ad_part *part, size_t element) {
  int64_t flat = ad_part_flat(full->parts, part, element), k = part->sampled ? part->sampled->numbers[element] : 0;
  for (size_t i = 0; i < full->count; i++)
    if (ad_box_has(&full->parts->param->shape, &full->pieces[i].box, flat))
      return value_at(full->pieces[i].tensor, element_place(full, &full->pieces[i], flat, k));
  return NAN;
}

ad_status ad_full_find(const ad_parts *parts, const ad_dump *reference, ad_full *out) {
  *out = (ad_full){.parts = parts};
  ad_status status = reference->sums ? find_sums(reference, out) : find_plain(reference, out);
  for (size_t i = 0; i < out->count && !status && out->param; i++)
    status = ad_sampled_find(&out->sampled, out->param, &out->pieces[i].box, &out->pieces[i].sampled);
  return status;
}

void ad_full_clear(ad_full *full) {
  ad_sampled_clear(&full->sampled);
  ad_release(full->pieces);
}
