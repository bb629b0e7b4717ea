/* A program of two modules on two meshes of the same ranks, for tests of the step: phase `front` makes h from its
 * batch, and two later phases need h: `back`, on the other mesh, and `tail`, on the mesh of `front`.
 *
 *   front:  h = x w                       x [rows, IN] sharded over dp, w [IN, MID] R
 *   back:   y = h u,  square = sum y^2 / count       u [MID, OUT] cut by columns over tp
 *   tail:   s = sum h v,  strength = s^2 times the microbatch's share of the count;  metric `size` = sum h^2 / count
 *
 * Each row counts for 1, 2 or 3, so that microbatches weigh differently; rows are sharded unevenly. */
#ifndef TESTS_TRAIN_TWO_MODULES_H
#define TESTS_TRAIN_TWO_MODULES_H
#include "world.h"

#include "base/memory.h"
#include "addend/helpers.h"
#include "array/array.h"
#include "program/program.h"

enum { IN = 5, MID = 4, OUT = 7, MICROBATCHES_MAX = 4, ROWS_MAX = 16 };
enum { SQUARE, STRENGTH, SIZE };
#define MESHES_OF_SIX "{front: dp_replicate=2 dp_shard=3, back: dp_shard=2 tp=3}"
#define MESHES_OF_ONE "{front: dp_replicate=1 dp_shard=1, back: dp_shard=1 tp=1}"

/* What a phase leaves out, to test the error message. */
typedef enum two_forgets { FORGETS_NOTHING, FORGETS_VALUE, FORGETS_LOSS, FORGETS_NAME } two_forgets;

/* What divides the losses. SHARES: one count. Otherwise the number of rows is a second count, which divides the metric
 * alone or `strength` too. */
typedef enum two_divisors { SHARES, ROWS_OF_METRIC, ROWS_OF_LOSS } two_divisors;

typedef struct two_options {
  int apart;       /* each module is its own norm group */
  int64_t divides; /* a value of two_divisors */
  int64_t forgets; /* a value of two_forgets */
} two_options;

typedef struct two_batch {
  ad_array wide, narrow; /* the same rows, in f64 and in f32 */
  double wide_data[ROWS_MAX * IN];
  float narrow_data[ROWS_MAX * IN];
} two_batch;

typedef struct two {
  const two_options *options;
  const ad_program_setting *setting;
  const ad_mesh *back_mesh;
  ad_layout batch_layout;
  two_batch batches[MICROBATCHES_MAX];
} two;

static inline double two_input(int64_t step, int64_t row, int64_t column) {
  return ad_random_normal((uint64_t)step + 11, (uint64_t)row, (uint64_t)column);
}
static inline int64_t two_counted(int64_t row) { return 1 + row % 3; }

/* ---- phases: the forward passes ---- */

static ad_status two_front(void *own, ad_phase_run *at) {
  two *model = own;
  ad_tape *t = ad_phase_tape(at);
  const two_batch *batch = &model->batches[ad_phase_microbatch(at)];
  ad_tensor *x = ad_constant(t, ad_tape_dtype(t) == AD_F64 ? &batch->wide : &batch->narrow);
  ad_tensor *h = ad_linear(t, x, ad_parameter(t, ad_phase_parameters(at), 0));  // [rows, MID] S0 on dp
  h = ad_all_gather(t, h, "dp", AD_R);
  if (model->options->forgets != FORGETS_VALUE) ad_phase_give(at, "h", h);
  return AD_OK;
}

static ad_status two_back(void *own, ad_phase_run *at) {
  two *model = own;
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *h = ad_view(t, ad_phase_need(at, model->options->forgets == FORGETS_NAME ? "z" : "h"), model->back_mesh);
  h = ad_convert(t, h, "dp", AD_S(0));
  ad_tensor *y = ad_linear(t, h, ad_parameter(t, ad_phase_parameters(at), 0));  // [rows, OUT] S0 on dp, S1 on tp
  if (model->options->forgets != FORGETS_LOSS) ad_phase_loss(at, SQUARE, ad_sum(t, ad_multiply(t, y, y)));
  return AD_OK;
}

static ad_status two_tail(void *own, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *h = ad_phase_need(at, "h");
  ad_tensor *s = ad_sum(t, ad_linear(t, h, ad_parameter(t, ad_phase_parameters(at), 1)));
  ad_phase_loss(at, STRENGTH, ad_once(t, ad_multiply(t, s, s), "dp"));
  ad_phase_loss(at, SIZE, ad_once(t, ad_sum(t, ad_multiply(t, h, h)), "dp"));
  return AD_OK;
}

/* ---- the program's record: parameters, modules, phases ---- */

static ad_param_spec two_param(const char *name, int64_t rows, int64_t columns, ad_layout layout) {
  return (ad_param_spec){.size = sizeof(ad_param_spec),
                         .name = name,
                         .shape = {2, {rows, columns}},
                         .layout = layout,
                         .storage = layout,
                         .sharded = AD_AXES(AD_DP_SHARD),
                         .deviation = 0.5};
}

static ad_status two_add_modules(const two *model, ad_program *to) {
  const ad_mesh *front = ad_program_mesh(to, 0), *back = ad_program_mesh(to, 1);
  ad_layout full = ad_layout_all(front, AD_R), columns = ad_layout_all(back, AD_R);
  ad_layout_set(&columns, AD_AXES(AD_TP), AD_S(1));
  ad_param_spec of_front[] = {two_param("w", IN, MID, full), two_param("v", MID, 1, full)};
  ad_param_spec of_back[] = {two_param("u", MID, OUT, columns)};
  ad_state_spec balance = {
      .size = sizeof balance, .name = "balance", .dtype = AD_F64, .shape = {1, {MID}}, .layout = full, .value = 0.5};
  of_front[1].unit = 1;
  ad_module_spec modules[] = {
      {.size = sizeof(ad_module_spec),
       .name = "front",
       .mesh = front,
       .params = of_front,
       .param_count = 2,
       .states = &balance,
       .state_count = 1},
      {.size = sizeof(ad_module_spec), .name = "back", .mesh = back, .params = of_back, .param_count = 1}};
  if (model->options->apart) modules[1].norm_group = "back";
  ad_status status = ad_program_add_module(to, &modules[0]);
  return status ? status : ad_program_add_module(to, &modules[1]);
}

static ad_status two_add_losses(const two *model, ad_program *to, ad_layout counted) {
  int64_t divides = model->options->divides;
  ad_loss_spec specs[] = {{.size = sizeof(ad_loss_spec), .name = "square"},
                          {.size = sizeof(ad_loss_spec), .name = "strength", .per_microbatch = !divides},
                          {.size = sizeof(ad_loss_spec), .name = "size", .is_metric = 1}};
  specs[STRENGTH].count = divides == ROWS_OF_LOSS;
  specs[SIZE].count = divides == ROWS_OF_METRIC;
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  ad_status status = ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "weight", counted});
  if (!status && divides) status = ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", counted});
  for (int i = 0; i < 3 && !status; i++) status = ad_program_add_loss(to, &specs[i]);
  return status;
}

static ad_status two_add_phases(ad_program *to) {
  static const char *const h[] = {"h", NULL};
  static const ad_phase phases[] = {
      {.size = sizeof(ad_phase), .name = "front", .module = 0, .gives = h, .run = two_front},
      {.size = sizeof(ad_phase), .name = "back", .module = 1, .needs = h, .run = two_back},
      {.size = sizeof(ad_phase), .name = "tail", .module = 0, .needs = h, .run = two_tail}};
  ad_status status = AD_OK;
  for (int i = 0; i < 3 && !status; i++) status = ad_program_add_phase(to, &phases[i]);
  return status;
}

static ad_status two_create(const void *options, ad_program *to, void **own) {
  two *model;
  ad_status status = ad_new(1, &model);
  if (status) return status;
  *own = model;
  model->options = options;
  model->setting = ad_program_setting_of(to);
  model->back_mesh = ad_program_mesh(to, 1);
  model->batch_layout = ad_layout_all(ad_program_mesh(to, 0), AD_R);
  ad_layout_set(&model->batch_layout, AD_AXES(AD_DP_REPLICATE), AD_S(0));
  ad_layout_set(&model->batch_layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  status = two_add_modules(model, to);
  if (!status) status = two_add_losses(model, to, ad_layout_all(ad_program_mesh(to, 0), AD_R));
  return status ? status : two_add_phases(to);
}

static void two_destroy(void *own) { ad_release(own); }
static ad_status two_open(void *own) { return AD_OK; }

static ad_array two_describe(const two *model, int64_t m, ad_dtype dtype, void *data) {
  const ad_program_setting *setting = model->setting;
  ad_shape shape = {2, {ad_cut(setting->global_batch, m, setting->microbatches).count, IN}};
  ad_array array = ad_array_describe(setting->comm, dtype, &shape, &model->batch_layout);
  array.data = ad_comm_is_dry(setting->comm) ? NULL : data;
  return array;
}

static ad_status two_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  two *model = own;
  const ad_program_setting *setting = model->setting;
  for (int64_t m = 0; m < setting->microbatches; m++) {
    two_batch *batch = &model->batches[m];
    ad_span rows = ad_batch_rows(&model->batch_layout, ad_comm_rank(setting->comm), setting->global_batch,
                                 setting->microbatches, m);
    counted[0][m] = 0;
    if (model->options->divides) counted[1][m] = rows.count;
    for (int64_t i = 0; i < rows.count; i++) {
      counted[0][m] += two_counted(rows.first + i);
      for (int64_t j = 0; j < IN; j++)
        batch->narrow_data[i * IN + j] = (float)(batch->wide_data[i * IN + j] = two_input(step, rows.first + i, j));
    }
    batch->wide = two_describe(model, m, AD_F64, batch->wide_data);
    batch->narrow = two_describe(model, m, AD_F32, batch->narrow_data);
  }
  return AD_OK;
}

static int two_has_validation(const void *own) { return 0; }
static size_t two_data_bytes(const void *own) { return sizeof(two); }
static double two_flops(const void *own, int64_t samples) { return 6.0 * (double)samples * (IN * MID + MID * OUT); }

static void two_register(void) {
  static const char *const modules[] = {"front", "back", NULL};
  static const ad_key keys[] = {
      {"model.apart", AD_KEY_BOOLEAN, .offset = offsetof(two_options, apart), .fallback = "false"},
      {"model.divides", AD_KEY_INTEGER, .offset = offsetof(two_options, divides), .most = 2, .fallback = "0"},
      {"model.forgets", AD_KEY_INTEGER, .offset = offsetof(two_options, forgets), .most = 3, .fallback = "0"}};
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "two",
                                       .help = "two modules on two meshes, for tests",
                                       .modules = modules,
                                       .keys = keys,
                                       .key_count = sizeof keys / sizeof *keys,
                                       .options_size = sizeof(two_options),
                                       .create = two_create,
                                       .destroy = two_destroy,
                                       .open = two_open,
                                       .read = two_read,
                                       .data = {.has_validation = two_has_validation, .bytes = two_data_bytes},
                                       .account = {.flops = two_flops}};
  if (!ad_program_kind_find("two")) must(ad_program_register(&kind));
}

/* `more`: further keys of `model`, beginning with a comma; `sections`: further sections of the recipe. */
static inline ad_recipe *two_recipe(const char *meshes, const char *more, const char *train, const char *sections) {
  char text[1024];
  ad_recipe *recipe = NULL;
  two_register();
  snprintf(text, sizeof text, "name: two\nmodel: {kind: two%s}\nmesh: %s\ntrain: {seed: 4, steps: 10%s}\n%s", more,
           meshes, train, sections);
  ad_status status = ad_recipe_parse(text, "two.yaml", NULL, 0, &recipe);
  if (status) fail_msg("%s", ad_last_error());
  return recipe;
}

#endif
