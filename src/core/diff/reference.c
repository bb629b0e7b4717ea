/* Comparing with a reference, element by element of the whole. */
#include "diff/reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/roundoff.h"
#include "diff/explain.h"

/* ---- the reference's tensors of one parameter ---- */

typedef struct ad_whole {
  const ad_parts *parts;
  const ad_dump_param *param; /* the reference's; NULL: one tensor that is the whole */
  ad_piece *pieces;
  size_t count;
  ad_dtype dtype; /* the narrowest */
} ad_whole;

static ad_status find_plain(const ad_dump *reference, ad_whole *whole) {
  const ad_dump_param *param = whole->parts->param;
  const ad_safetensor *tensor = ad_safetensors_find(reference->reference->tensors, param->name);
  char own[160], other[160];
  if (!tensor) return AD_OK;
  if (!ad_shape_equal(&tensor->shape, &param->shape) || !ad_dtype_is_float(tensor->dtype))
    return ad_fail(AD_INVALID, "%s: \"%.80s\" is %s %s, and in the dump its whole is %s", reference->reference->path,
                   param->name, ad_dtype_name(tensor->dtype), ad_shape_print(&tensor->shape, own, sizeof own),
                   ad_shape_print(&param->shape, other, sizeof other));
  AD_TRY(ad_new(1, &whole->pieces));
  whole->pieces[0] = (ad_piece){.tensor = tensor, .box = ad_box_whole(&param->shape)};
  whole->count = 1;
  return AD_OK;
}

static ad_status find_sums(const ad_dump *reference, ad_whole *whole) {
  const ad_dump_param *own = whole->parts->param, *param = ad_dump_find(reference, own->name);
  if (!param) return AD_OK;
  if (!ad_shape_equal(&param->shape, &own->shape) || param->partial ||
      (param->is_sampled && param->sample != own->sample))
    return ad_fail(AD_INVALID, "\"%.80s\": the reference has another shape, another sample, or a sum that is partial",
                   own->name);
  whole->param = param;
  AD_TRY(ad_new((size_t)reference->mesh.world, &whole->pieces));
  for (int64_t rank = 0; rank < reference->mesh.world; rank++) {
    int there;
    AD_TRY(ad_dump_piece(reference, param, reference->sums[rank], &whole->pieces[whole->count], &there));
    whole->count += there && ad_box_numel(&param->shape, &whole->pieces[whole->count].box) > 0;
  }
  return AD_OK;
}

/* ---- values ---- */

/* Number k of a sample, or the element itself: where the piece has it. */
static size_t place_of(const ad_whole *whole, const ad_piece *piece, int64_t flat, int64_t k) {
  const ad_shape *shape = &whole->parts->param->shape;
  return whole->param && whole->param->is_sampled ? ad_sample_place(piece->sampled, k)
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

/* NaN: no piece has it. */
static double reference_value(const ad_whole *whole, const ad_part *part, size_t element) {
  int64_t flat = ad_part_flat(whole->parts, part, element), k = part->sampled ? part->sampled->numbers[element] : 0;
  for (size_t i = 0; i < whole->count; i++)
    if (ad_box_has(&whole->parts->param->shape, &whole->pieces[i].box, flat))
      return value_at(whole->pieces[i].tensor, place_of(whole, &whole->pieces[i], flat, k));
  return NAN;
}

/* ---- comparison ---- */

typedef struct ad_sums {
  double own_own, own_ref, ref_ref, worst, largest;
  size_t lacking;
} ad_sums;

static void add_part(const ad_whole *whole, const ad_part *part, double *own, ad_sums *sums) {
  for (size_t begin = 0; begin < part->count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count;
    ad_part_read_sum(whole->parts, part, begin, end, own);
    for (size_t i = begin; i < end; i++) {
      double value = own[i - begin], ref = reference_value(whole, part, i);
      if (isnan(ref)) {
        sums->lacking++;
        continue;
      }
      sums->own_own += value * value;
      sums->own_ref += value * ref;
      sums->ref_ref += ref * ref;
      sums->worst = fmax(sums->worst, fabs(value - ref));
      sums->largest = fmax(sums->largest, fabs(ref));
    }
  }
}

/* Of copies the first. */
static int is_first_of_its_box(const ad_parts *parts, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (ad_box_equal(&parts->param->shape, &parts->parts[i].box, &parts->parts[index].box)) return 0;
  return 1;
}

static ad_dtype narrowest(const ad_whole *whole) {
  ad_dtype dtype = whole->pieces[0].tensor->dtype;
  for (size_t i = 0; i < whole->parts->count; i++) {
    ad_dtype own = whole->parts->parts[i].terms[0].tensor->dtype;
    if (ad_unit_roundoff(own) > ad_unit_roundoff(dtype)) dtype = own;
  }
  return dtype;
}

/* Two runs add in another order all the way through the model, not in the sum alone: a thousand roundings of the
 * largest element, which a mistake in a sum is well beyond; of narrow dtypes one part in thirty-two. */
static double bound_of(ad_dtype dtype) { return fmin(fmax(1024 * ad_unit_roundoff(dtype), 1e-12), 0x1p-5); }

static void add(ad_compared *out, ad_cause_kind kind, const char *axes, const char *format, ...) AD_PRINTF(4, 5);
static void add(ad_compared *out, ad_cause_kind kind, const char *axes, const char *format, ...) {
  char text[AD_DUMP_AXES * AD_DUMP_NAME + 160];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  json_array_append_new(out->causes, ad_cause_document(ad_cause_name(kind), axes, out->ratio, text, ""));
}

/* Every set of axes whose size the factor or its inverse is. */
static void add_factor(const ad_parts *parts, ad_compared *out) {
  const ad_dump_mesh *mesh = &parts->dump->mesh;
  char names[AD_DUMP_AXES * AD_DUMP_NAME];
  uint32_t sets[AD_DUMP_SETS];
  int divided = out->ratio < 1;
  size_t count = ad_dump_axes_of_size(mesh, divided ? 1 / out->ratio : out->ratio, parts->param->summed, sets);
  for (size_t i = 0; i < count; i++) {
    ad_dump_axes_print(mesh, sets[i], names, sizeof names);
    add(out, divided ? AD_CAUSE_AVERAGED : AD_CAUSE_DOUBLED, names, "%s over %s",
        divided ? "averaged, or divided by a count that was summed twice,"
                : "summed twice, or divided by a local count,",
        names);
  }
  if (!count) add(out, AD_CAUSE_UNKNOWN, "", "%.6g times the reference: a factor that is no group's size", out->ratio);
}

static void find_causes(const ad_parts *parts, const ad_sums *sums, ad_compared *out) {
  double left = sums->own_own - out->ratio * sums->own_ref;
  int proportional = sums->own_own > 0 && fabs(left) <= fmax(out->bound * out->bound, 1e-10) * sums->own_own;
  out->causes = json_array();
  if (proportional && out->ratio > 0)
    add_factor(parts, out);
  else
    add(out, AD_CAUSE_MISSING, "",
        "addends are missing, counted with other weights, or of other data; ratio %.4g, worst error %.2g of the "
        "largest element",
        out->ratio, out->max_rel_err);
}

void ad_compared_clear(ad_compared *compared) {
  json_decref(compared->causes);
  compared->causes = NULL;
}

static ad_status compare(const ad_whole *whole, ad_compared *out) {
  const ad_parts *parts = whole->parts;
  ad_sums sums = {0};
  double *own;
  AD_TRY(ad_new(AD_ROWS, &own));
  for (size_t i = 0; i < parts->count; i++)
    if (is_first_of_its_box(parts, i)) add_part(whole, &parts->parts[i], own, &sums);
  ad_release(own);
  if (sums.lacking)
    return ad_fail(AD_INVALID, "\"%.80s\": the reference lacks %zu of its elements", parts->param->name, sums.lacking);
  out->there = 1;
  out->bound = bound_of(narrowest(whole));
  out->ratio = sums.ref_ref > 0 ? sums.own_ref / sums.ref_ref : sums.worst == 0 ? 1 : NAN;
  out->max_rel_err = sums.worst == 0 ? 0 : sums.worst / sums.largest;
  out->holds = out->max_rel_err <= out->bound;
  if (!out->holds) find_causes(parts, &sums, out);
  return AD_OK;
}

ad_status ad_reference_compare(const ad_parts *parts, const ad_dump *reference, ad_compared *out) {
  ad_whole whole = {.parts = parts};
  ad_sampled_lists lists = {0};
  *out = (ad_compared){0};
  ad_status status = reference->sums ? find_sums(reference, &whole) : find_plain(reference, &whole);
  for (size_t i = 0; i < whole.count && !status && whole.param; i++)
    status = ad_sampled_find(&lists, whole.param, &whole.pieces[i].box, &whole.pieces[i].sampled);
  if (!status && whole.count) status = compare(&whole, out);
  ad_sampled_clear(&lists);
  ad_release(whole.pieces);
  return status;
}
