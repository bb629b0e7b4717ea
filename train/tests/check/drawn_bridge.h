/* Programs as users write them on two meshes, for tests that draw right checks: a kind of program on public headers
 * alone, whose modules `near` and `far` are joined by bridges. Its key model.form chooses what crosses.
 *
 * `near` reads the batch. Values are matrices [rows, WIDTH]: rows are sharded over dp on each mesh (S(0)), and all
 * ranks of tp have the same (I). */
#ifndef TESTS_CHECK_DRAWN_BRIDGE_H
#define TESTS_CHECK_DRAWN_BRIDGE_H
#include <stdlib.h>
#include "addend/addend.h"
#include "addend/helpers.h"

#define BRIDGED_FORMS(X)                                                                        \
  X(THERE, "a value that crosses once")                                                         \
  X(SHARED, "a value that two phases of the other mesh use")                                    \
  X(GATHERED, "rows that are gathered over dp where they arrive, one loss for each microbatch") \
  X(GATHERED_BEFORE, "rows that are compared with all ranks' rows before they cross")           \
  X(BACK, "a value that crosses, and comes back over a second bridge")                          \
  X(COMM_DTYPE, "a value that travels in bf16 both ways")                                       \
  X(LOSSES, "a loss on either side of the bridge")
typedef enum bridged_form {
#define BRIDGED_CODE(code, words) BRIDGED_##code,
  BRIDGED_FORMS(BRIDGED_CODE)
#undef BRIDGED_CODE
      BRIDGED_COUNT
} bridged_form;

enum { BRIDGED_WIDTH = 6, BRIDGED_NEAR = 0, BRIDGED_FAR = 1 };

typedef struct bridged_options {
  int64_t form;
} bridged_options;

typedef struct bridged_model {
  bridged_form form;
  int64_t rank, rows_in_all, microbatches;
  uint64_t seed;
  ad_layout rows; /* on `far` */
  ad_batch_field field;
  ad_batch *batch; /* NULL on ranks that `near` does not have */
  ad_bridge *there, *back;
} bridged_model;

/* ---- phases ---- */

/* gelu(x W) by parameter number `param` of the phase's module. */
static inline ad_tensor *bridged_layer(ad_phase_run *at, ad_tensor *x, size_t param) {
  ad_tape *t = ad_phase_tape(at);
  return ad_gelu(t, ad_linear(t, x, ad_parameter(t, ad_phase_parameters(at), param)));
}

static inline ad_tensor *bridged_squares(ad_tape *t, ad_tensor *x) { return ad_sum(t, ad_multiply(t, x, x)); }

/* Each row's products with all ranks' rows, [rows, all rows], bounded. */
static inline ad_tensor *bridged_products(ad_tape *t, ad_tensor *h) {
  return ad_tanh(t, ad_linear_transposed(t, h, ad_all_gather(t, h, "dp", AD_R)));
}

static inline ad_status bridged_near(void *own, ad_phase_run *at) {
  const bridged_model *model = own;
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *h = bridged_layer(at, ad_constant(t, ad_batch_array(model->batch, 0, ad_phase_microbatch(at))), 0);
  if (model->form == BRIDGED_GATHERED_BEFORE) h = ad_linear(t, bridged_products(t, h), ad_all_gather(t, h, "dp", AD_R));
  ad_phase_give(at, "h", h);
  if (model->form == BRIDGED_LOSSES) ad_phase_loss(at, 1, bridged_squares(t, h));
  return AD_OK;
}

static inline ad_status bridged_far(void *own, ad_phase_run *at) {
  const bridged_model *model = own;
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *h = bridged_layer(at, ad_phase_need(at, "h"), 0);
  if (model->form == BRIDGED_BACK)
    ad_phase_give(at, "g", h);
  else if (model->form == BRIDGED_GATHERED)
    ad_phase_loss(at, 0, ad_sum(t, bridged_products(t, h)));
  else
    ad_phase_loss(at, 0, bridged_squares(t, h));
  return AD_OK;
}

/* The third phase: on `far` beside the second, or on `near` behind it. */
static inline ad_status bridged_third(void *own, ad_phase_run *at) {
  const bridged_model *model = own;
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *h = bridged_layer(at, ad_phase_need(at, model->form == BRIDGED_BACK ? "g" : "h"), 1);
  ad_phase_loss(at, 0, bridged_squares(t, h));
  return AD_OK;
}

/* ---- the record of `bridged` ---- */

static inline ad_layout bridged_rows(const ad_program *program, size_t module) {
  ad_layout rows = ad_layout_all(ad_program_mesh(program, module), AD_R);
  ad_tp_type(&rows, AD_I);
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  return rows;
}

static inline ad_status bridged_add_module(bridged_model *model, ad_program *to, size_t module) {
  ad_dtype compute = ad_program_setting_of(to)->compute;
  ad_layout same = ad_layout_all(ad_program_mesh(to, module), AD_R), rows = bridged_rows(to, module);
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, module));
  model->field = (ad_batch_field){"x", compute, {1, {BRIDGED_WIDTH}}};
  int layers = model->form == BRIDGED_BACK ? 2 - (int)module : model->form == BRIDGED_SHARED ? 1 + (int)module : 1;
  ad_tp_type(&same, AD_I);
  for (int i = 0; i < layers; i++) {
    ad_param_spec w = {.size = sizeof w, .shape = {2, {BRIDGED_WIDTH, BRIDGED_WIDTH}}, .layout = same};
    w.deviation = 0.5;
    w.sharded = AD_AXES(AD_DP_SHARD);
    ad_declare_param(&list, "own", i ? "second" : "first", w);
  }
  AD_TRY(ad_program_add_declared(to, module ? "far" : "near", NULL, &list));
  if (module || !ad_mesh_has_rank(rows.mesh, model->rank)) return AD_OK;
  return ad_program_add_batch(to, &rows, &model->field, 1, &model->batch);
}

static inline ad_status bridged_add_count(ad_program *to, size_t module) {
  ad_count_spec count = {.size = sizeof count, .name = module ? "far rows" : "near rows"};
  count.layout = bridged_rows(to, module);
  ad_layout_set(&count.layout, AD_AXES_DP, AD_P);
  return ad_program_add_count(to, &count);
}

static inline ad_status bridged_transfer(const bridged_model *model, ad_program *to, const char *value, size_t from,
                                         ad_bridge **bridge) {
  const ad_program_setting *setting = ad_program_setting_of(to);
  ad_layout source = bridged_rows(to, from), destination = bridged_rows(to, !from);
  ad_bridge_options ragged = {.size = sizeof ragged, .ragged = 1};
  ad_transfer_spec transfer = {.size = sizeof transfer, .value = value, .module = !from};
  AD_TRY(ad_bridge_create((ad_comm *)(uintptr_t)setting->comm, &source, &destination, &ragged, bridge));
  transfer.bridge = *bridge;
  transfer.shape = (ad_shape){2, {setting->global_batch, BRIDGED_WIDTH}};
  if (model->form == BRIDGED_COMM_DTYPE) transfer.comm_dtype = transfer.gradient_comm_dtype = AD_BF16;
  return ad_program_add_transfer(to, &transfer);
}

static inline ad_status bridged_add_phases(bridged_model *model, ad_program *to) {
  static const char *const h[] = {"h", NULL}, *const g[] = {"g", NULL};
  int back = model->form == BRIDGED_BACK;
  ad_phase near = {.size = sizeof near, .name = "near", .module = BRIDGED_NEAR, .gives = h, .run = bridged_near};
  ad_phase far = {.size = sizeof far, .name = "far", .module = BRIDGED_FAR, .needs = h, .run = bridged_far};
  ad_phase third = {.size = sizeof third, .name = "third", .module = BRIDGED_FAR, .needs = h, .run = bridged_third};
  AD_TRY(ad_program_add_phase(to, &near));
  AD_TRY(bridged_transfer(model, to, "h", BRIDGED_NEAR, &model->there));
  if (back) far.gives = third.needs = g, third.module = BRIDGED_NEAR;
  AD_TRY(ad_program_add_phase(to, &far));
  if (back) AD_TRY(bridged_transfer(model, to, "g", BRIDGED_FAR, &model->back));
  return back || model->form == BRIDGED_SHARED ? ad_program_add_phase(to, &third) : AD_OK;
}

static inline ad_status bridged_create(const void *given, ad_program *to, void **own) {
  bridged_model *model = calloc(1, sizeof *model);
  if (!model) return ad_fail(AD_MEMORY, "no memory");
  *own = model;
  model->form = (bridged_form)((const bridged_options *)given)->form;
  model->rank = ad_comm_rank(ad_program_setting_of(to)->comm);
  model->microbatches = ad_program_setting_of(to)->microbatches;
  model->rows_in_all = ad_program_setting_of(to)->global_batch;
  model->seed = ad_program_setting_of(to)->seed;
  model->rows = bridged_rows(to, BRIDGED_FAR);
  AD_TRY(bridged_add_module(model, to, BRIDGED_NEAR));
  AD_TRY(bridged_add_module(model, to, BRIDGED_FAR));
  AD_TRY(bridged_add_count(to, BRIDGED_FAR));
  AD_TRY(bridged_add_count(to, BRIDGED_NEAR));
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss", .per_microbatch = model->form == BRIDGED_GATHERED};
  ad_loss_spec size = {.size = sizeof size, .name = "size", .count = 1, .coefficient = 0.25};
  loss.count = model->form == BRIDGED_BACK;
  AD_TRY(ad_program_add_loss(to, &loss));
  if (model->form == BRIDGED_LOSSES) AD_TRY(ad_program_add_loss(to, &size));
  return bridged_add_phases(model, to);
}

static inline void bridged_destroy(void *own) {
  bridged_model *model = own;
  ad_bridge_destroy(model->there);
  ad_bridge_destroy(model->back);
  free(model);
}

static inline ad_status bridged_read_row(void *own, ad_batch_row *to) {
  const bridged_model *model = own;
  for (int64_t k = 0; k < BRIDGED_WIDTH; k++)
    ad_array_set(&to->fields[0], to->row * BRIDGED_WIDTH + (size_t)k,
                 ad_random_normal(model->seed + 13, (uint64_t)to->sample, (uint64_t)k));
  return AD_OK;
}

/* `near` counts the rows that it reads, and `far` those that arrive. In most forms no loss is divided by one of these
 * counts. */
static inline ad_status bridged_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  const bridged_model *model = own;
  ad_row_reader reader = {bridged_read_row, own};
  int64_t all = model->rows_in_all, parts = model->microbatches;
  for (int64_t m = 0; m < parts; m++) counted[0][m] = ad_batch_rows(&model->rows, model->rank, all, parts, m).count;
  return model->batch ? ad_batch_read(model->batch, step, validation, &reader, counted[1]) : AD_OK;
}

static const ad_key bridged_keys[] = {
    {"model.form", AD_KEY_INTEGER, .offset = offsetof(bridged_options, form), .most = BRIDGED_COUNT - 1}};
static const char *const bridged_modules[] = {"near", "far", NULL};

static const ad_program_kind bridged_kind = {.size = sizeof bridged_kind,
                                             .name = "bridged",
                                             .modules = bridged_modules,
                                             .keys = bridged_keys,
                                             .key_count = 1,
                                             .options_size = sizeof(bridged_options),
                                             .create = bridged_create,
                                             .destroy = bridged_destroy,
                                             .read = bridged_read};

#endif
