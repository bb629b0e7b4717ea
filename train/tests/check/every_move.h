/* A program whose tape has every transition that a tape can have, for tests of the mutants that are derived from a
 * program. All values are matrices [rows, WIDTH] sharded by rows over dp and cp; beside each name is its type on tp. No
 * axis size divides the numbers of rows and columns, so parts are uneven and some are empty.
 *
 *   a = x w_same            I      over dp once gathered and cut again
 *   b = convert a           R
 *   c = b w_columns         S(1)   through all_to_all to S(0) and back
 *   e = c w_rows            P
 *   e -> all_reduce R, I;  reduce_scatter S(1), S(1z);  all_gather R, I;  convert R -> S, I -> S, S -> P, P;
 *   declare S -> V -> S and R -> V -> P, where the second is masked so that one rank's copy counts;  once
 *
 * Between any two transitions stands a nonlinear operation, so that no two mistakes give the same numbers. */
#ifndef TESTS_CHECK_EVERY_MOVE_H
#define TESTS_CHECK_EVERY_MOVE_H
#include "world.h"

#include "addend/data.h"
#include "addend/program.h"
#include "array/array.h"
#include "base/memory.h"
#include "addend/helpers.h"
#include "program/program.h"

enum { EVERY_IN = 4, EVERY_WIDTH = 5, EVERY_MIDDLE = 7, EVERY_EVEN = 6, EVERY_ROWS = 16, EVERY_MICROBATCHES = 4 };
enum { W_SAME, W_COLUMNS, W_ROWS, W_FULL, W_EVEN, W_BACK, EVERY_PARAMS };

typedef struct every_batch {
  ad_array x, weights, mask;
  double x_data[EVERY_ROWS * EVERY_IN], weights_data[EVERY_ROWS * EVERY_WIDTH], mask_data[EVERY_ROWS * EVERY_WIDTH];
} every_batch;

typedef struct every_model {
  const ad_program_setting *setting;
  const ad_mesh *mesh;
  ad_layout rows; /* rows sharded over dp, I on tp */
  every_batch batches[EVERY_MICROBATCHES];
} every_model;

/* ---- the phase: the forward pass whose tape has every transition ---- */

static inline ad_tensor *every_weight(ad_phase_run *at, size_t param) {
  return ad_parameter(ad_phase_tape(at), ad_phase_parameters(at), param);
}

/* I -> I: multiplies each row with the gathered rows of all ranks, and adds the rank's part of the gathered rows. */
static inline ad_tensor *every_first(ad_tape *t, ad_phase_run *at, ad_tensor *x) {
  ad_tensor *a = ad_gelu(t, ad_linear(t, x, every_weight(at, W_SAME)));
  ad_tensor *all = ad_gelu(t, ad_all_gather(t, a, "dp,cp", AD_R));
  ad_tensor *met = ad_linear(t, ad_gelu(t, ad_linear_transposed(t, a, all)), all);
  return ad_add(t, met, ad_convert(t, all, "dp,cp", AD_S(0)));
}

/* R -> P through an all-to-all and back */
static inline ad_tensor *every_exchange(ad_tape *t, ad_phase_run *at, ad_tensor *b) {
  ad_tensor *c = ad_gelu(t, ad_linear(t, b, every_weight(at, W_COLUMNS)));
  c = ad_gelu(t, ad_all_to_all(t, c, "tp", AD_S(0)));
  c = ad_gelu(t, ad_all_to_all(t, c, "tp", AD_S(1)));
  return ad_linear(t, c, every_weight(at, W_ROWS));
}

/* R -> P by way of V: columns whose number tp divides are declared V, then S(1) again. */
static inline ad_tensor *every_varying(ad_tape *t, ad_phase_run *at, ad_tensor *b) {
  ad_tensor *c = ad_declare(t, ad_linear(t, b, every_weight(at, W_EVEN)), "tp", AD_V);
  c = ad_declare(t, ad_gelu(t, c), "tp", AD_S(1));
  return ad_linear(t, c, every_weight(at, W_BACK));
}

/* R -> P: keeps the copy of the first tp rank, which alone has a mask of ones. */
static inline ad_tensor *every_masked(ad_tape *t, ad_tensor *r, const every_batch *batch) {
  ad_tensor *v = ad_multiply(t, ad_declare(t, r, "tp", AD_V), ad_constant(t, &batch->mask));
  return ad_declare(t, v, "tp", AD_P);
}

/* P -> P: the value is summed, cut, gathered and converted in every way, and the results are combined. */
static inline ad_tensor *every_way(ad_tape *t, ad_phase_run *at, ad_tensor *e, const every_batch *batch) {
  ad_tensor *same = ad_gelu(t, ad_all_reduce(t, e, "tp", AD_I));
  ad_tensor *full = ad_gelu(t, ad_all_reduce(t, e, "tp", AD_R));
  ad_tensor *sharded_rows = ad_gelu(t, ad_reduce_scatter(t, e, "tp", AD_S(1)));
  ad_tensor *zigzag = ad_gelu(t, ad_reduce_scatter(t, e, "tp", AD_S_ZIGZAG(1)));
  ad_tensor *gathered = ad_gelu(t, ad_all_gather(t, sharded_rows, "tp", AD_R));
  ad_tensor *gathered_same = ad_gelu(t, ad_all_gather(t, sharded_rows, "tp", AD_I));
  ad_tensor *unzigzagged = ad_gelu(t, ad_all_gather(t, zigzag, "tp", AD_R));
  ad_tensor *k = ad_convert(t, ad_multiply(t, same, gathered_same), "tp", AD_S(1));
  ad_tensor *mixed = ad_linear(t, gathered, every_weight(at, W_FULL));
  ad_tensor *l = ad_convert(t, ad_multiply(t, full, mixed), "tp", AD_S(1));
  ad_tensor *both = ad_all_reduce(t, ad_convert(t, ad_multiply(t, k, l), "tp", AD_P), "tp", AD_R);
  return ad_add(t, ad_once(t, ad_gelu(t, both), "tp"), every_masked(t, unzigzagged, batch));
}

static inline ad_status every_run(void *own, ad_phase_run *at) {
  every_model *model = own;
  ad_tape *t = ad_phase_tape(at);
  const every_batch *batch = &model->batches[ad_phase_microbatch(at)];
  ad_tensor *a = every_first(t, at, ad_constant(t, &batch->x));
  ad_tensor *b = ad_convert(t, a, "tp", AD_R);
  ad_tensor *e = ad_add(t, every_exchange(t, at, b), every_varying(t, at, b));
  ad_tensor *out = every_way(t, at, e, batch);
  ad_phase_loss(at, 0, ad_sum(t, ad_multiply(t, out, ad_constant(t, &batch->weights))));
  return AD_OK;
}

/* ---- the program's record: parameters, batches, phase ---- */

/* The function that runs the program's phase; a test may set another one that uses all parameters. */
static ad_status (*every_phase)(void *own, ad_phase_run *at) = every_run;

static inline ad_param_spec every_param(const char *name, int64_t rows, int64_t columns, const ad_mesh *mesh,
                                        ad_type type) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_TP), type);
  return (ad_param_spec){.size = sizeof(ad_param_spec),
                         .name = name,
                         .shape = {2, {rows, columns}},
                         .layout = layout,
                         .storage = layout,
                         .sharded = AD_AXES(AD_DP_SHARD),
                         .deviation = 0.6};
}

static inline ad_status every_create(const void *options, ad_program *to, void **own) {
  every_model *model;
  ad_status status = ad_new(1, &model);
  if (status) return status;
  *own = model;
  const ad_mesh *mesh = model->mesh = ad_program_mesh(to, 0);
  model->setting = ad_program_setting_of(to);
  model->rows = ad_layout_all(mesh, AD_R);
  ad_layout_set(&model->rows, AD_AXES_DP | AD_AXES(AD_CP), AD_S(0));
  ad_layout_set(&model->rows, AD_AXES(AD_TP), AD_I);
  ad_param_spec params[EVERY_PARAMS] = {[W_SAME] = every_param("same", EVERY_IN, EVERY_WIDTH, mesh, AD_I),
                                        [W_COLUMNS] = every_param("columns", EVERY_WIDTH, EVERY_MIDDLE, mesh, AD_S(1)),
                                        [W_ROWS] = every_param("rows", EVERY_MIDDLE, EVERY_WIDTH, mesh, AD_S(0)),
                                        [W_FULL] = every_param("whole", EVERY_WIDTH, EVERY_WIDTH, mesh, AD_R),
                                        [W_EVEN] = every_param("even", EVERY_WIDTH, EVERY_EVEN, mesh, AD_S(1)),
                                        [W_BACK] = every_param("back", EVERY_EVEN, EVERY_WIDTH, mesh, AD_S(0))};
  ad_module_spec module = {
      .size = sizeof module, .name = "every", .mesh = mesh, .params = params, .param_count = EVERY_PARAMS};
  ad_layout counted = ad_layout_all(mesh, AD_I);
  ad_layout_set(&counted, AD_AXES_DP | AD_AXES(AD_CP), AD_P);
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss"};
  ad_phase phase = {.size = sizeof phase, .name = "every", .run = every_phase};
  status = ad_program_add_module(to, &module);
  if (!status) status = ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "weight", counted});
  if (!status) status = ad_program_add_loss(to, &loss);
  return status ? status : ad_program_add_phase(to, &phase);
}

static inline void every_destroy(void *own) { ad_release(own); }
static inline ad_status every_open(void *own) { return AD_OK; }

static inline ad_array every_describe(const every_model *model, int64_t m, int64_t columns, ad_type on_tp,
                                      double *data) {
  const ad_program_setting *setting = model->setting;
  ad_shape shape = {2, {ad_cut(setting->global_batch, m, setting->microbatches).count, columns}};
  ad_layout layout = model->rows;
  ad_layout_set(&layout, AD_AXES(AD_TP), on_tp);
  ad_array array = ad_array_describe(setting->comm, AD_F64, &shape, &layout);
  array.data = ad_comm_is_dry(setting->comm) ? NULL : data;
  return array;
}

/* Fills this rank's rows of a microbatch; each row has weight 1, 2 or 3. */
static inline void every_fill(const every_model *model, int64_t step, ad_span rows, every_batch *batch) {
  int first = ad_mesh_position(model->mesh, ad_comm_rank(model->setting->comm), AD_TP) == 0;
  for (int64_t i = 0; i < rows.count; i++) {
    uint64_t row = (uint64_t)(rows.first + i), stream = (uint64_t)step + 5;
    for (int64_t j = 0; j < EVERY_IN; j++) batch->x_data[i * EVERY_IN + j] = ad_random_normal(stream, row, (uint64_t)j);
    for (int64_t j = 0; j < EVERY_WIDTH; j++) {
      batch->weights_data[i * EVERY_WIDTH + j] = ad_random_normal(stream, row, (uint64_t)j + 100);
      batch->mask_data[i * EVERY_WIDTH + j] = first;
    }
  }
}

static inline ad_status every_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  every_model *model = own;
  const ad_program_setting *setting = model->setting;
  for (int64_t m = 0; m < setting->microbatches; m++) {
    every_batch *batch = &model->batches[m];
    ad_span rows =
        ad_batch_rows(&model->rows, ad_comm_rank(setting->comm), setting->global_batch, setting->microbatches, m);
    counted[0][m] = 0;
    for (int64_t i = 0; i < rows.count; i++) counted[0][m] += 1 + (rows.first + i) % 3;
    every_fill(model, step, rows, batch);
    batch->x = every_describe(model, m, EVERY_IN, AD_I, batch->x_data);
    batch->weights = every_describe(model, m, EVERY_WIDTH, AD_R, batch->weights_data);
    batch->mask = every_describe(model, m, EVERY_WIDTH, AD_V, batch->mask_data);
  }
  return AD_OK;
}

static inline int every_has_validation(const void *own) { return 0; }
static inline size_t every_data_bytes(const void *own) { return sizeof(every_model); }
static inline double every_flops(const void *own, int64_t samples) { return (double)samples; }

static inline void every_register(void) {
  static const char *const modules[] = {"every", NULL};
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "every",
                                       .help = "every transition, for tests",
                                       .modules = modules,
                                       .create = every_create,
                                       .destroy = every_destroy,
                                       .open = every_open,
                                       .read = every_read,
                                       .data = {.has_validation = every_has_validation, .bytes = every_data_bytes},
                                       .account = {.flops = every_flops}};
  if (!ad_program_kind_find("every")) must(ad_program_register(&kind));
}

static inline ad_recipe *every_recipe(const char *mesh, int zero) {
  char text[512];
  ad_recipe *recipe = NULL;
  every_register();
  snprintf(text, sizeof text,
           "name: every\nmodel: {kind: every}\nmesh: \"%s\"\nprecision: {param: f64, compute: f64}\n"
           "shard: {zero: %d}\ntrain: {seed: 4, global_batch: 9, microbatches: 2, steps: 5, lr: 1e-2, clip: 0.5}\n",
           mesh, zero);
  must(ad_recipe_parse(text, "every.yaml", NULL, 0, &recipe));
  return recipe;
}

#endif
