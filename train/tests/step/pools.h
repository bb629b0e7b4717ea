/* A program for tests of the step whose two modules, a and b, may lie on disjoint ranks. It has one of these forms:
 *
 *   PAIR    a: x = i w                    b: y = x u, loss = sum y^2 / count
 *   TWICE   a: x = i w                    b: y = x u, loss; then in a second phase z = x t, a second loss
 *   BACK    a: x = i w                    b: y = x u;  then on a's ranks again z = y v + x q, loss = sum z^2 / count
 *
 * or, if no phase runs on b:
 *
 *   ALONE   a: x = i w, loss = sum x^2 / count
 *
 * Inputs i are sharded by rows over dp of a's mesh; x is replicated on its cp, and so is y on b's cp when it is sent
 * back to a. u, t, v and q are sharded by columns over cp, so that gradients which arrive have addends there. */
#ifndef TESTS_TRAIN_POOLS_H
#define TESTS_TRAIN_POOLS_H
#include "world.h"

#include "addend/bridge.h"
#include "array/array.h"
#include "base/memory.h"
#include "addend/helpers.h"
#include "program/program.h"

enum { IN = 5, MID = 4, OUT = 6, TOP = 7, MICROBATCHES_MAX = 5, ROWS_MAX = 16 };
/* Bits of the parameters that are frozen. */
enum { FROZEN_W = 1, FROZEN_V = 2, FROZEN_Q = 4, FROZEN_U = 8, FROZEN_T = 16 };
enum { ELEMENTS_MAX = IN * MID + 2 * MID * OUT + OUT * TOP + MID * TOP };

typedef enum pools_form { PAIR, TWICE, BACK, FORMS, ALONE = FORMS } pools_form;
/* A mistake that the program makes, to test the error message. */
typedef enum pools_mistake { NO_MISTAKE, NO_TRANSFER, OTHER_MESHES, LOSS_OF_NOTHING } pools_mistake;

typedef struct pools_options {
  int64_t form, mistake, frozen;
  ad_dtype comm_dtype, gradient_comm_dtype; /* dtypes in which x and its gradient travel; 0: their own */
} pools_options;

typedef struct pools_batch {
  ad_array wide, narrow; /* the same inputs, in f64 and in f32 */
  double wide_data[ROWS_MAX * IN];
  float narrow_data[ROWS_MAX * IN];
} pools_batch;

typedef struct pools {
  const pools_options *options;
  const ad_program_setting *setting;
  /* layouts of the inputs, on a's mesh, and of the weights of rows, on the mesh of the losses */
  ad_layout rows, counted;
  ad_bridge *there, *back;
  pools_batch batches[MICROBATCHES_MAX];
} pools;

static inline ad_layout pools_layout(const ad_mesh *mesh, ad_type on_dp, ad_type on_cp) {
  ad_layout layout = ad_layout_all(mesh, AD_I);
  ad_layout_set(&layout, AD_AXES_DP, on_dp);
  ad_layout_set(&layout, AD_AXES(AD_CP), on_cp);
  return layout;
}

/* ---- phases: the forward passes ---- */

static ad_tensor *pools_weight(ad_phase_run *at, size_t index) {
  return ad_parameter(ad_phase_tape(at), ad_phase_parameters(at), index);
}

static void pools_square(ad_phase_run *at, size_t loss, ad_tensor *y) {
  ad_tape *t = ad_phase_tape(at);
  ad_phase_loss(at, loss, ad_sum(t, ad_multiply(t, y, y)));
}

static ad_status pools_begin(void *own, ad_phase_run *at) {
  pools *model = own;
  ad_tape *t = ad_phase_tape(at);
  const pools_batch *batch = &model->batches[ad_phase_microbatch(at)];
  ad_tensor *inputs = ad_constant(t, ad_tape_dtype(t) == AD_F64 ? &batch->wide : &batch->narrow);
  ad_tensor *x = ad_linear(t, inputs, pools_weight(at, 0));  // [rows, MID] S0 on dp, I on cp
  if (model->options->form == ALONE)
    pools_square(at, 0, x);
  else
    ad_phase_give(at, "x", x);
  return AD_OK;
}

static ad_status pools_pass(void *own, ad_phase_run *at) {
  const pools *model = own;
  ad_tape *t = ad_phase_tape(at);
  if (model->options->mistake == LOSS_OF_NOTHING) {
    ad_tensor *weight = ad_once(t, ad_scale(t, pools_weight(at, 0), 1), "dp");
    ad_phase_loss(at, 0, ad_sum(t, weight));
    return AD_OK;
  }
  ad_tensor *y = ad_linear(t, ad_phase_need(at, "x"), pools_weight(at, 0));  // [rows, OUT] S0 on dp, S1 on cp
  if (model->options->form == BACK)
    ad_phase_give(at, "y", ad_all_gather(t, y, "cp", AD_I));
  else
    pools_square(at, 0, y);
  return AD_OK;
}

static ad_status pools_again(void *own, ad_phase_run *at) {
  pools_square(at, 1, ad_linear(ad_phase_tape(at), ad_phase_need(at, "x"), pools_weight(at, 1)));
  return AD_OK;
}

static ad_status pools_end(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *x = ad_convert(t, ad_phase_need(at, "x"), "cp", AD_R);
  ad_tensor *z = ad_linear(t, ad_phase_need(at, "y"), pools_weight(at, 1));  // [rows, TOP] S0 on dp, S1 on cp
  pools_square(at, 0, ad_add(t, z, ad_linear(t, x, pools_weight(at, 2))));
  return AD_OK;
}

/* ---- the program's record: parameters, modules, phases ---- */

static ad_param_spec pools_param(const char *name, int64_t rows, int64_t columns, ad_layout layout) {
  return (ad_param_spec){.size = sizeof(ad_param_spec),
                         .name = name,
                         .shape = {2, {rows, columns}},
                         .layout = layout,
                         .storage = layout,
                         .sharded = AD_AXES(AD_DP_SHARD),
                         .deviation = 0.5};
}

static ad_status pools_add_modules(const pools *model, ad_program *to) {
  const ad_mesh *a = ad_program_mesh(to, 0), *b = ad_program_mesh(to, 1);
  ad_layout columns_of_a = pools_layout(a, AD_R, AD_S(1)), columns_of_b = pools_layout(b, AD_R, AD_S(1));
  ad_param_spec of_a[] = {pools_param("w", IN, MID, pools_layout(a, AD_R, AD_I)),
                          pools_param("v", OUT, TOP, columns_of_a), pools_param("q", MID, TOP, columns_of_a)};
  ad_param_spec of_b[] = {pools_param("u", MID, OUT, columns_of_b), pools_param("t", MID, OUT, columns_of_b)};
  for (int i = 0; i < 3; i++) of_a[i].frozen = model->options->frozen >> i & 1;
  for (int i = 0; i < 2; i++) of_b[i].frozen = model->options->frozen >> (3 + i) & 1;
  ad_state_spec marks = {sizeof marks, "marks", AD_F64, {1, {MID}}, ad_layout_all(b, AD_R), 0.5};
  ad_module_spec modules[] = {{.size = sizeof(ad_module_spec),
                               .name = "a",
                               .mesh = a,
                               .params = of_a,
                               .param_count = model->options->form == BACK ? 3 : 1},
                              {.size = sizeof(ad_module_spec),
                               .name = "b",
                               .mesh = b,
                               .params = of_b,
                               .param_count = model->options->form == TWICE ? 2 : 1}};
  modules[1].states = &marks;
  modules[1].state_count = 1;
  ad_status status = ad_program_add_module(to, &modules[0]);
  return status ? status : ad_program_add_module(to, &modules[1]);
}

static ad_status pools_add_losses(pools *model, ad_program *to) {
  static const ad_loss_spec specs[] = {{.size = sizeof(ad_loss_spec), .name = "first"},
                                       {.size = sizeof(ad_loss_spec), .name = "second"}};
  int count = model->options->form == TWICE ? 2 : 1;
  int on_b = model->options->form == PAIR || model->options->form == TWICE;
  model->counted = pools_layout(ad_program_mesh(to, on_b), AD_P, AD_I);
  ad_status status = ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "weight", model->counted});
  for (int i = 0; i < count && !status; i++) status = ad_program_add_loss(to, &specs[i]);
  return status;
}

static ad_status pools_join(const pools *model, const ad_mesh *from, const ad_mesh *to, ad_bridge **out) {
  ad_layout source = pools_layout(from, AD_S(0), AD_I), destination = pools_layout(to, AD_S(0), AD_R);
  ad_bridge_options options = {.size = sizeof options, .ragged = 1};
  return ad_bridge_create((ad_comm *)(uintptr_t)model->setting->comm, &source, &destination, &options, out);
}

static ad_status pools_add_transfer(const pools *model, ad_program *to, const char *value, size_t module,
                                    int64_t width) {
  ad_transfer_spec spec = {.size = sizeof spec,
                           .value = value,
                           .module = module,
                           .bridge = module ? model->there : model->back,
                           .shape = {2, {model->setting->global_batch, width}},
                           .comm_dtype = model->options->comm_dtype,
                           .gradient_comm_dtype = model->options->gradient_comm_dtype};
  if (model->options->mistake == NO_TRANSFER) return AD_OK;
  if (model->options->mistake == OTHER_MESHES) spec.bridge = module ? model->back : model->there;
  return ad_program_add_transfer(to, &spec);
}

static ad_status pools_add_phases(const pools *model, ad_program *to) {
  static const char *const x[] = {"x", NULL}, *const y[] = {"y", NULL}, *const both[] = {"x", "y", NULL};
  static const ad_phase begin = {.size = sizeof begin, .name = "begin", .module = 0, .gives = x, .run = pools_begin};
  static const ad_phase pass = {.size = sizeof pass, .name = "pass", .module = 1, .needs = x, .run = pools_pass};
  static const ad_phase on = {
      .size = sizeof on, .name = "pass", .module = 1, .needs = x, .gives = y, .run = pools_pass};
  static const ad_phase again = {.size = sizeof again, .name = "again", .module = 1, .needs = x, .run = pools_again};
  static const ad_phase end = {.size = sizeof end, .name = "end", .module = 0, .needs = both, .run = pools_end};
  static const ad_phase alone = {.size = sizeof alone, .name = "alone", .module = 0, .run = pools_begin};
  pools_form form = (pools_form)model->options->form;
  if (form == ALONE) return ad_program_add_phase(to, &alone);
  ad_status status = ad_program_add_phase(to, &begin);
  if (!status) status = pools_add_transfer(model, to, "x", 1, MID);
  if (!status) status = ad_program_add_phase(to, form == BACK ? &on : &pass);
  if (!status && form == TWICE) status = ad_program_add_phase(to, &again);
  if (!status && form == BACK) status = pools_add_transfer(model, to, "y", 0, OUT);
  if (!status && form == BACK) status = ad_program_add_phase(to, &end);
  return status;
}

static ad_status pools_create(const void *options, ad_program *to, void **own) {
  const ad_mesh *a = ad_program_mesh(to, 0), *b = ad_program_mesh(to, 1);
  pools *model;
  ad_status status = ad_new(1, &model);
  if (status) return status;
  *own = model;
  model->options = options;
  model->setting = ad_program_setting_of(to);
  model->rows = pools_layout(a, AD_S(0), AD_I);
  status = pools_join(model, a, b, &model->there);
  if (!status) status = pools_join(model, b, a, &model->back);
  if (!status) status = pools_add_modules(model, to);
  if (!status) status = pools_add_losses(model, to);
  return status ? status : pools_add_phases(model, to);
}

static void pools_destroy(void *own) {
  pools *model = own;
  ad_bridge_destroy(model->there);
  ad_bridge_destroy(model->back);
  ad_release(model);
}

static ad_status pools_open(void *own) { return AD_OK; }

/* ---- the batch ---- */

/* The rows of microbatch m on this rank; none if the layout's mesh does not have this rank. */
static ad_span pools_rows(const pools *model, const ad_layout *rows, int64_t m) {
  const ad_program_setting *setting = model->setting;
  int64_t rank = ad_comm_rank(setting->comm);
  if (!ad_mesh_has_rank(rows->mesh, rank)) return (ad_span){0, 0};
  return ad_batch_rows(rows, rank, setting->global_batch, setting->microbatches, m);
}

static ad_array pools_describe(const pools *model, int64_t m, ad_dtype dtype, void *data) {
  const ad_program_setting *setting = model->setting;
  ad_shape shape = {2, {ad_cut(setting->global_batch, m, setting->microbatches).count, IN}};
  ad_array array = ad_array_describe(setting->comm, dtype, &shape, &model->rows);
  array.data = ad_comm_is_dry(setting->comm) ? NULL : data;
  return array;
}

static void pools_read_inputs(pools *model, int64_t step, int64_t m) {
  pools_batch *batch = &model->batches[m];
  ad_span rows = pools_rows(model, &model->rows, m);
  for (int64_t i = 0; i < rows.count * IN; i++) {
    batch->wide_data[i] = ad_random_normal((uint64_t)step + 11, 1, (uint64_t)(rows.first * IN + i));
    batch->narrow_data[i] = (float)batch->wide_data[i];
  }
  batch->wide = pools_describe(model, m, AD_F64, batch->wide_data);
  batch->narrow = pools_describe(model, m, AD_F32, batch->narrow_data);
}

/* Each row counts for 1, 2 or 3, so that microbatches weigh differently. */
static ad_status pools_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  pools *model = own;
  ad_layout rows = pools_layout(model->counted.mesh, AD_S(0), AD_I);
  for (int64_t m = 0; m < model->setting->microbatches; m++) {
    ad_span own_rows = pools_rows(model, &rows, m);
    counted[0][m] = 0;
    for (int64_t i = 0; i < own_rows.count; i++) counted[0][m] += 1 + (own_rows.first + i) % 3;
    pools_read_inputs(model, step, m);
  }
  return AD_OK;
}

static int pools_has_validation(const void *own) { return 0; }
static size_t pools_data_bytes(const void *own) { return sizeof(pools); }
static double pools_flops(const void *own, int64_t samples) { return 6.0 * (double)samples * ELEMENTS_MAX; }

static void pools_register(void) {
  static const char *const modules[] = {"a", "b", NULL};
  static const ad_key keys[] = {
      {"model.form", AD_KEY_INTEGER, .offset = offsetof(pools_options, form), .most = ALONE, .fallback = "0"},
      {"model.mistake", AD_KEY_INTEGER, .offset = offsetof(pools_options, mistake), .most = 3, .fallback = "0"},
      {"model.frozen", AD_KEY_INTEGER, .offset = offsetof(pools_options, frozen), .most = 31, .fallback = "0"},
      {"comm_dtype.values", AD_KEY_DTYPE, .offset = offsetof(pools_options, comm_dtype), .word = "as-is",
       .fallback = "as-is"},
      {"comm_dtype.gradients", AD_KEY_DTYPE, .offset = offsetof(pools_options, gradient_comm_dtype), .word = "as-is",
       .fallback = "as-is"}};
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "pools",
                                       .help = "two modules that may have their own ranks, for tests",
                                       .modules = modules,
                                       .keys = keys,
                                       .key_count = sizeof keys / sizeof *keys,
                                       .options_size = sizeof(pools_options),
                                       .create = pools_create,
                                       .destroy = pools_destroy,
                                       .open = pools_open,
                                       .read = pools_read,
                                       .data = {.has_validation = pools_has_validation, .bytes = pools_data_bytes},
                                       .account = {.flops = pools_flops}};
  if (!ad_program_kind_find("pools")) must(ad_program_register(&kind));
}

#endif
