/* Reading a rank's share of a step's batch. Which sample stands where is decided in io/. */
#include "train/batch.h"

#include "base/memory.h"
#include "base/switches.h"

static ad_axes cut_axes_of(const ad_layout *layout) {
  ad_axes axes = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_type_is_cut(layout->type[axis])) axes |= AD_AXES(axis);
  }
  return axes;
}

static ad_microbatch describe(const ad_comm *comm, const ad_layout *layout, const ad_recipe *recipe, int64_t m) {
  int64_t batch = recipe->train.global_batch, microbatches = recipe->train.microbatches;
  ad_shape shape = {2, {ad_cut(batch, m, microbatches).count, recipe->data.seq}};
  ad_array array = ad_array_describe(comm, AD_I32, &shape, layout);
  ad_span rows = ad_batch_rows(layout, ad_comm_rank(comm), batch, microbatches, m);
  return (ad_microbatch){.rows = rows, .tokens = array, .targets = array};
}

static size_t describe_all(const ad_comm *comm, const ad_layout *layout, const ad_recipe *recipe, ad_batch *batch) {
  size_t numel = 0;
  for (size_t m = 0; m < batch->count; m++) {
    batch->microbatches[m] = describe(comm, layout, recipe, (int64_t)m);
    numel += ad_array_numel(&batch->microbatches[m].tokens);
  }
  return numel;
}

static void place(ad_batch *batch) {
  int32_t *next = batch->memory;
  for (size_t m = 0; m < batch->count; m++) {
    ad_microbatch *microbatch = &batch->microbatches[m];
    size_t numel = ad_array_numel(&microbatch->tokens);
    microbatch->tokens.data = next;
    microbatch->targets.data = next + numel;
    next += 2 * numel;
  }
}

ad_status ad_batch_create(const ad_comm *comm, const ad_layout *layout, const ad_recipe *recipe, ad_batch *out) {
  ad_batch batch = {.options = {.seed = (uint64_t)recipe->train.seed,
                                .global_batch = recipe->train.global_batch,
                                .valid = recipe->data.valid,
                                .valid_count = recipe->data.valid_count},
                    .count = (size_t)recipe->train.microbatches,
                    .cut_axes = cut_axes_of(layout)};
  AD_TRY(ad_new(batch.count, &batch.microbatches));
  ad_status status = ad_new(2 * describe_all(comm, layout, recipe, &batch), &batch.memory);
  if (status) {
    ad_batch_destroy(&batch);
    return status;
  }
  place(&batch);
  ad_group group = ad_mesh_group(layout->mesh, batch.cut_axes, ad_comm_rank(comm));
  batch.shifted = ad_group_index(&group, ad_comm_rank(comm)) == 1;
  *out = batch;
  return AD_OK;
}

void ad_batch_destroy(ad_batch *batch) {
  ad_release(batch->microbatches);
  ad_release(batch->memory);
  *batch = (ad_batch){0};
}

void ad_batch_read(ad_batch *batch, const ad_text_data *text, int64_t step, int held_out) {
  batch->options.held_out = held_out;
  for (size_t m = 0; m < batch->count; m++) {
    ad_microbatch *microbatch = &batch->microbatches[m];
    int64_t first = microbatch->rows.first;
    if (ad_switched(AD_SWITCH_SHIFTED_SLICE) && batch->shifted) first++;
    ad_text_data_rows(text, &batch->options, step, first, microbatch->rows.count, microbatch->tokens.data,
                      microbatch->targets.data, &microbatch->counted);
  }
}

int64_t ad_batch_counted(const ad_batch *batch) {
  int64_t counted = 0;
  for (size_t m = 0; m < batch->count; m++) counted += batch->microbatches[m].counted;
  return counted;
}
