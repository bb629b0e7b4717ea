/* The lookup of rows in a table; backward adds each row's gradient to the table's row. If the table is sharded by
 * rows, a rank looks up its own rows and gives zeros for the others, so that the results are addends (P). */
#include <inttypes.h>
#include <string.h>
#include "tensor/operation.h"

static const int32_t *indices_of(const ad_tensor *out) { return out->operand[1]->array.data; }

/* Returns the rows of the full table that this rank has. */
static ad_span own_rows(const ad_tape *tape, const ad_tensor *out, int *span_count) {
  const ad_array *table = &out->operand[0]->array;
  ad_span span = {0, 0};
  *span_count = ad_layout_spans(&table->layout, 0, table->shape.dim[0], ad_comm_rank(ad_tape_comm(tape)), &span, 1);
  return span;
}

static ad_status embedding_check(const ad_tape *tape, const ad_tensor *out) {
  int span_count;
  own_rows(tape, out, &span_count);
  if (span_count <= 1) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the table of `embedding` has %d separate pieces on this rank, but must be one piece; shard the "
                 "table S0, in order of the ranks",
                 out->site, span_count);
}

static ad_status check_index(const ad_tensor *out, size_t position) {
  int32_t index = indices_of(out)[position];
  int64_t vocabulary = out->operand[0]->array.shape.dim[0];
  if (index >= 0 && index < vocabulary) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `embedding` got index %d at position %zu (from 0), which is outside the table of %" PRId64
                 " rows; give indices from 0 to the number of rows - 1",
                 out->site, index, position, vocabulary);
}

/* Returns the local row of the table for a position, or -1 if another rank has that row. */
static int64_t own_row(const ad_tensor *out, ad_span own, size_t position) {
  int64_t row = indices_of(out)[position] - own.first;
  return row >= 0 && row < own.count ? row : -1;
}

static ad_status embedding_forward(ad_tape *tape, ad_tensor *out) {
  const ad_tensor *table = out->operand[0];
  size_t width = ad_columns(out), rows = ad_rows_of(out), bytes = width * ad_dtype_size(out->array.dtype);
  int span_count;
  ad_span own = own_rows(tape, out, &span_count);
  for (size_t i = 0; i < rows; i++) {
    AD_TRY(check_index(out, i));
    int64_t row = own_row(out, own, i);
    void *to = ad_at(out, out->array.data, i * width);
    if (row < 0)
      memset(to, 0, bytes);
    else
      memcpy(to, ad_at(table, table->array.data, (size_t)row * width), bytes);
  }
  return AD_OK;
}

static ad_status embedding_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_tensor *table = out->operand[0];
  size_t width = ad_columns(out), count = ad_rows_of(out), size = ad_dtype_size(slot[0].dtype);
  int span_count;
  ad_span own = own_rows(tape, out, &span_count);
  if (!slot[0].adds) memset(slot[0].data, 0, ad_numel(table) * size);
  for (size_t i = 0; i < count; i++) {
    int64_t row = own_row(out, own, i);
    if (row >= 0)
      ad_accumulate((char *)slot[0].data + (size_t)row * width * size, slot[0].dtype,
                    ad_at(out, out->grad.data, i * width), out->grad.dtype, 1, width);
  }
  return AD_OK;
}

static const ad_operation embedding = {.name = "embedding",
                                       .dims = "vd,...->...d",
                                       .linearity = AD_MULTILINEAR,
                                       .dtypes = AD_IN_ANY_FLOAT,
                                       .raw = 1u << 0,
                                       .indices = 1u << 1,
                                       .unread = 1u << 0,
                                       .check = embedding_check,
                                       .forward = embedding_forward,
                                       .backward = embedding_backward};

ad_tensor *ad_embedding_at(ad_tape *tape, ad_tensor *table, ad_tensor *indices, const char *site) {
  return ad_tape_apply(tape, &embedding, (ad_tensor *[]){table, indices}, 2, NULL, site);
}
