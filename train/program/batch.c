/* Batches that a program reads row by row: allocates the arrays of each microbatch, and finds the rows of the step's
 * batch that this rank reads. */
#include <stdio.h>
#include <string.h>
#include "addend/data.h"
#include "base/error.h"
#include "base/memory.h"
#include "program/program.h"

/* A batch that a program reads row by row. */
struct ad_batch {
  ad_program_setting setting;
  ad_layout rows;
  const ad_batch_field *fields; /* borrowed */
  size_t field_count;
  ad_array *arrays; /* [microbatches][fields] */
  int64_t step;     /* step of the batch that was read last, and where its samples come from */
  ad_data_split validation;
};

static ad_comm *comm_of(const ad_batch *batch) { return (ad_comm *)(uintptr_t)batch->setting.comm; }

static size_t array_count(const ad_batch *batch) { return batch->setting.own_count * batch->field_count; }

static ad_array *array_of(const ad_batch *batch, size_t field, size_t m) {
  return &batch->arrays[m * batch->field_count + field];
}

/* Returns array `index` of all arrays of the microbatches that this rank runs. */
static ad_array *own_array(const ad_batch *batch, size_t index) {
  return array_of(batch, index % batch->field_count, (size_t)batch->setting.own[index / batch->field_count]);
}

/* Makes the array of a field in a microbatch. The array has no data if this rank does not run the microbatch. */
static ad_status create_array(const ad_batch *batch, size_t field, int64_t m, int is_own) {
  const ad_batch_field *of = &batch->fields[field];
  ad_shape shape = {of->row.ndim + 1, {ad_cut(batch->setting.global_batch, m, batch->setting.microbatches).count}};
  if (shape.ndim > AD_DIMS_MAX)
    return ad_fail(
        AD_INVALID,
        "a row of the batch field `%s` has %d dimensions, but at most %d are allowed; give the field a smaller row",
        of->name, of->row.ndim, AD_DIMS_MAX - 1);
  for (int d = 0; d < of->row.ndim; d++) shape.dim[d + 1] = of->row.dim[d];
  ad_array *array = array_of(batch, field, (size_t)m);
  if (is_own) return ad_array_create(comm_of(batch), of->dtype, &shape, &batch->rows, array);
  *array = ad_array_describe(batch->setting.comm, of->dtype, &shape, &batch->rows);
  return AD_OK;
}

static ad_status create_arrays(ad_batch *batch) {
  const ad_program_setting *s = &batch->setting;
  size_t own = 0;
  AD_TRY(ad_new((size_t)s->microbatches * batch->field_count, &batch->arrays));
  for (int64_t m = 0; m < s->microbatches; m++) {
    int is_own = own < s->own_count && s->own[own] == m;
    for (size_t field = 0; field < batch->field_count; field++) AD_TRY(create_array(batch, field, m, is_own));
    own += (size_t)is_own;
  }
  return AD_OK;
}

/* Checks that fields have different names, because dumps write fields by name. */
static ad_status check_fields(const ad_batch_field *fields, size_t count) {
  if (!count) return ad_fail(AD_INVALID, "the batch has no fields; give at least one field");
  for (size_t i = 0; i < count; i++) {
    if (!fields[i].name) return ad_fail(AD_INVALID, "field %zu (from 0) of the batch has no name; give it one", i);
    for (size_t j = 0; j < i; j++)
      if (!strcmp(fields[i].name, fields[j].name))
        return ad_fail(AD_INVALID, "two fields of the batch have the name `%s`; field names must be unique",
                       fields[i].name);
  }
  return AD_OK;
}

ad_status ad_program_add_batch(ad_program *to, const ad_layout *rows, const ad_batch_field *fields, size_t count,
                               ad_batch **out) {
  AD_NEED(to, rows, fields, out);
  AD_TRY(check_fields(fields, count));
  if (to->batch)
    return ad_fail(AD_INVALID, "program `%s` already has a batch; add these fields to that batch", to->kind->name);
  AD_TRY(ad_new(1, &to->batch));
  *to->batch = (ad_batch){.setting = to->setting, .rows = *rows, .fields = fields, .field_count = count};
  AD_TRY(create_arrays(to->batch));
  *out = to->batch;
  return AD_OK;
}

void ad_batch_destroy(ad_batch *batch) {
  if (!batch) return;
  for (size_t i = 0; batch->arrays && i < array_count(batch); i++)
    ad_array_destroy(comm_of(batch), own_array(batch, i));
  ad_release(batch->arrays);
  ad_release(batch);
}

const ad_array *ad_batch_array(const ad_batch *batch, size_t field, size_t m) {
  if (!ad_has(field, batch->field_count, __func__, "field") ||
      !ad_has(m, (size_t)batch->setting.microbatches, __func__, "microbatch"))
    return NULL;
  return array_of(batch, field, m);
}

const ad_array *ad_batch_list(const ad_batch *batch, size_t index, char *name, size_t size) {
  if (!batch || index >= array_count(batch)) return NULL;
  if (size)
    snprintf(name, size, "microbatch.%lld.%s", (long long)batch->setting.own[index / batch->field_count],
             batch->fields[index % batch->field_count].name);
  return own_array(batch, index);
}

size_t ad_batch_bytes(const ad_batch *batch) {
  size_t bytes = 0;
  for (size_t i = 0; batch && i < array_count(batch); i++) bytes += ad_array_bytes(own_array(batch, i));
  return bytes;
}

/* Returns 1 if a sample counts. In the last batch of the validation set, samples beyond the end of the set do not
 * count. */
static int is_counted(const ad_batch *batch, int64_t sample, ad_data_split validation) {
  return validation != AD_VALIDATION_SET || sample < batch->setting.evaluated;
}

static ad_status read_microbatch(ad_batch *batch, int64_t step, int64_t m, ad_data_split validation,
                                 const ad_row_reader *reader, int64_t *counted) {
  const ad_program_setting *s = &batch->setting;
  ad_span mine = ad_batch_rows(&batch->rows, ad_comm_rank(s->comm), s->global_batch, s->microbatches, m);
  ad_batch_row row = {.size = sizeof row, .fields = array_of(batch, 0, (size_t)m), .validation = validation};
  *counted = 0;
  for (int64_t i = 0; i < mine.count; i++) {
    row.row = (size_t)i;
    row.sample = step * s->global_batch + mine.first + i;
    row.counts = is_counted(batch, row.sample, validation);
    if (row.fields->data) AD_TRY(reader->read(reader->own, &row));  // on backend dry arrays have no memory
    *counted += row.counts;
  }
  return AD_OK;
}

ad_status ad_batch_read(ad_batch *batch, int64_t step, ad_data_split validation, const ad_row_reader *reader,
                        int64_t *counted) {
  AD_NEED(batch, reader, counted);
  batch->step = step;
  batch->validation = validation;
  memset(counted, 0, (size_t)batch->setting.microbatches * sizeof *counted);
  for (size_t i = 0; i < batch->setting.own_count; i++) {
    int64_t m = batch->setting.own[i];
    AD_TRY(read_microbatch(batch, step, m, validation, reader, &counted[m]));
  }
  return AD_OK;
}

int64_t ad_batch_step(const ad_batch *batch) { return batch->step; }

ad_data_split ad_batch_split(const ad_batch *batch) { return batch->validation; }

int64_t ad_batch_first(const ad_batch *batch, size_t m) {
  const ad_program_setting *s = &batch->setting;
  if (!ad_has(m, (size_t)s->microbatches, __func__, "microbatch")) return -1;
  return ad_cut(s->global_batch, (int64_t)m, s->microbatches).first;
}
