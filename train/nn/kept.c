/* Keys and values of earlier tokens, which sampling keeps, as arrays of rows that grow. */
#include "nn/kept.h"

#include <string.h>
#include "addend/helpers.h"
#include "tensor/tape.h"

static ad_status make_room(ad_kept_rows *rows, size_t bytes) {
  char *more;
  size_t room = 2 * rows->room > bytes ? 2 * rows->room : bytes;
  if (bytes <= rows->room) return AD_OK;
  AD_TRY(ad_new(room, &more));
  if (rows->bytes) memcpy(more, rows->data, rows->bytes);
  ad_release(rows->data);
  rows->data = more;
  rows->room = room;
  return AD_OK;
}

static ad_status append_rows(ad_kept_rows *rows, const ad_array *array) {
  size_t bytes = (size_t)ad_shape_numel(&array->shape) * ad_dtype_size(array->dtype);
  AD_TRY(make_room(rows, rows->bytes + bytes));
  memcpy(rows->data + rows->bytes, array->data, bytes);
  rows->bytes += bytes;
  rows->count += array->shape.dim[1];
  return AD_OK;
}

/* Checks that x is one sequence, full on this rank, and begins where the tokens with kept keys end. */
static ad_status check_continues(const ad_tape *t, const ad_kept_rows *rows, const ad_array *array) {
  if (array->shape.dim[0] != 1 || !ad_shape_equal(&array->shape, &array->local))
    return ad_fail(
        AD_INVALID,
        "ad_attention_continue: the input must be one sequence that is full on this rank, but has %lld "
        "sequences, of which this rank has %lld of %lld rows and %lld of %lld columns; pass one full sequence",
        (long long)array->shape.dim[0], (long long)array->local.dim[1], (long long)array->shape.dim[1],
        (long long)array->local.dim[2], (long long)array->shape.dim[2]);
  if (t->position == rows->count) return AD_OK;
  return ad_fail(AD_INVALID,
                 "ad_attention_continue: the tape begins at position %lld, but the keys of %lld tokens are kept; call "
                 "ad_tape_continue with the number of kept tokens",
                 (long long)t->position, (long long)rows->count);
}

ad_tensor *ad_kept_rows_add(ad_tape *t, ad_kept_rows *rows, ad_tensor *x) {
  const ad_array *array = ad_tensor_array(x);
  if (!array || ad_tape_status(t)) return x;
  ad_status status = check_continues(t, rows, array);
  if (!status) status = append_rows(rows, array);
  if (status) return ad_tape_fail(t, status);
  ad_array all = *array;
  all.shape.dim[1] = all.local.dim[1] = rows->count;
  all.data = rows->data;
  return ad_constant(t, &all);
}

ad_status ad_kept_keys_create(ad_kept_keys **out) { return ad_new(1, out); }

static void clear_rows(ad_kept_rows *rows) {
  rows->bytes = 0;
  rows->count = 0;
}

void ad_kept_keys_forget(ad_kept_keys *kept) {
  if (!kept) return;
  clear_rows(&kept->k);
  clear_rows(&kept->v);
}

void ad_kept_keys_destroy(ad_kept_keys *kept) {
  if (!kept) return;
  ad_release(kept->k.data);
  ad_release(kept->v.data);
  ad_release(kept);
}
