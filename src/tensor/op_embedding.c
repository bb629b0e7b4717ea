/* The lookup of rows in a table, and its backward: a scattered sum. */
#include <string.h>
#include "tensor/operation.h"

static const int32_t *indices_of(const ad_tensor *out) { return out->operand[1]->array.data; }

static ad_status embedding_forward(ad_tape *tape, ad_tensor *out) {
  const ad_tensor *table = out->operand[0];
  size_t width = ad_columns(out), rows = ad_rows_of(out);
  int32_t vocabulary = (int32_t)table->array.local.dim[0];
  const int32_t *index = indices_of(out);
  for (size_t i = 0; i < rows; i++) {
    if (index[i] < 0 || index[i] >= vocabulary)
      return ad_fail(AD_INVALID, "%s: embedding: index %d at position %zu is outside the table of %d rows", out->site,
                     index[i], i, vocabulary);
    memcpy(ad_at(out, out->array.data, i * width), ad_at(table, table->array.data, (size_t)index[i] * width),
           width * ad_dtype_size(out->array.dtype));
  }
  return AD_OK;
}

static ad_status embedding_backward(ad_tape *tape, ad_tensor *out, const gradient_slot *slot) {
  const ad_tensor *table = out->operand[0];
  const row_kernels *rows = ad_rows(out->array.dtype);
  size_t width = ad_columns(out), count = ad_rows_of(out);
  if (!slot[0].adds) memset(slot[0].data, 0, ad_array_bytes(&table->array));
  for (size_t i = 0; i < count; i++)
    rows->put(ad_at(table, slot[0].data, (size_t)indices_of(out)[i] * width), ad_at(out, out->grad.data, i * width), 1,
              width, 1);
  return AD_OK;
}

static const operation embedding = {.name = "embedding",
                                    .dims = "vd,...->...d",
                                    .linearity = AD_MULTILINEAR,
                                    .dtypes = IN_F32_F64,
                                    .whole = "v",
                                    .indices = 1u << 1,
                                    .unread = 1u << 0,
                                    .forward = embedding_forward,
                                    .backward = embedding_backward};

ad_tensor *ad_embedding_at(ad_tape *tape, ad_tensor *table, ad_tensor *indices, const char *site) {
  return ad_tape_apply(tape, &embedding, (ad_tensor *[]){table, indices}, 2, NULL, site);
}
