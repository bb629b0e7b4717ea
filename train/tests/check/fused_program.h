/* A program for tests of optimizers on whole matrices: a network whose first layer has three matrices beside each other in
 * one parameter, twice in turn as groups of heads have them, and whose second layer is one matrix. tp
 * shards both layers. No matrix is square, and no number of ranks divides its sides. */
#ifndef TESTS_CHECK_FUSED_PROGRAM_H
#define TESTS_CHECK_FUSED_PROGRAM_H
#include <math.h>
#include <stdlib.h>
#include "addend/data.h"
#include "addend/program.h"
#include "kernels/kernels.h"
#include "world.h"

enum { FUSED_IN = 7, FUSED_WIDTH = 10, FUSED_OUT = 5, FUSED_BATCH = 9, FUSED_PARTS = 2 };

typedef struct fused_model {
  ad_program_setting setting;
  ad_layout rows;
  ad_array x[FUSED_PARTS];
  double data[FUSED_PARTS][FUSED_BATCH * FUSED_IN], seen[FUSED_BATCH * FUSED_IN]; /* seen: in the dtype of the tape */
} fused_model;

static inline ad_status fused_phase(void *own, ad_phase_run *at) {
  fused_model *model = own;
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *params[3];
  for (size_t i = 0; i < 3; i++) params[i] = ad_parameter(t, ad_phase_parameters(at), i);
  ad_array rows = model->x[ad_phase_microbatch(at)];
  ad_cast(model->seen, ad_tape_dtype(t), rows.data, AD_F64, ad_array_numel(&rows));
  rows.dtype = ad_tape_dtype(t);
  rows.data = model->seen;
  ad_tensor *x = ad_constant(t, &rows);
  ad_tensor *h = ad_tanh(t, ad_linear(t, x, params[0]));  // S1 on tp
  ad_tensor *y = ad_all_reduce(t, ad_linear(t, h, params[1]), "tp", AD_I);
  y = ad_scale_by(t, y, params[2]);
  ad_phase_loss(at, 0, ad_sum(t, ad_multiply(t, y, y)));
  return AD_OK;
}

static inline ad_param_spec fused_param(const ad_mesh *mesh, const char *name, int64_t in, int64_t out, int sharded) {
  ad_param_spec spec = {.size = sizeof spec,
                        .name = name,
                        .shape = {2, {in, out}},
                        .layout = ad_layout_all(mesh, AD_R),
                        .sharded = AD_AXES(AD_DP_SHARD),
                        .decays = 1,
                        .deviation = 1 / sqrt((double)in)};
  ad_layout_set(&spec.layout, ad_mesh_named(mesh) & AD_AXES(AD_TP), AD_S(sharded));
  spec.storage = spec.layout;
  return spec;
}

static inline ad_status fused_create(const void *options, ad_program *to, void **own) {
  (void)options;
  fused_model *model = calloc(1, sizeof *model);
  if (!model) return AD_MEMORY;
  *own = model;
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  model->setting = *ad_program_setting_of(to);
  model->rows = ad_layout_all(mesh, AD_R);
  ad_layout_set(&model->rows, AD_AXES_DP, AD_S(0));
  ad_layout counted = ad_layout_all(mesh, AD_R);
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  ad_param_spec params[] = {fused_param(mesh, "up", FUSED_IN, FUSED_WIDTH, 1),
                            fused_param(mesh, "down", FUSED_WIDTH, FUSED_OUT, 0),
                            {.size = sizeof *params,
                             .name = "scale",
                             .shape = {1, {1}},
                             .layout = ad_layout_all(mesh, AD_R),
                             .storage = ad_layout_all(mesh, AD_R),
                             .mean = 1,
                             .deviation = 0.1}};
  ad_layout_set(&params[2].layout, ad_mesh_named(mesh) & AD_AXES(AD_TP), AD_I);
  ad_layout_set(&params[2].storage, ad_mesh_named(mesh) & AD_AXES(AD_TP), AD_I);
  params[0].matrices =
      (ad_param_matrices){.form = AD_MATRIX_FUSED, .along = 1, .count = 3, .repeats = 2, .piece = {3, 1, 1}};
  ad_module_spec module = {.size = sizeof module, .name = "fused", .mesh = mesh, .params = params, .param_count = 3};
  AD_TRY(ad_program_add_module(to, &module));
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", counted}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "squares"}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "fused", .run = fused_phase});
}

static inline ad_status fused_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  fused_model *model = own;
  const ad_program_setting *setting = &model->setting;
  (void)validation;
  for (int64_t m = 0; m < setting->microbatches; m++) {
    ad_span mine =
        ad_batch_rows(&model->rows, ad_comm_rank(setting->comm), setting->global_batch, setting->microbatches, m);
    ad_shape shape = {2, {ad_cut(setting->global_batch, m, setting->microbatches).count, FUSED_IN}};
    model->x[m] = ad_array_describe(setting->comm, AD_F64, &shape, &model->rows);
    model->x[m].data = model->data[m];
    for (int64_t i = 0, at = mine.first * FUSED_IN; i < mine.count * FUSED_IN; i++, at++)
      model->data[m][i] = sin(1.7 * (double)at + 0.3 * (double)(step * (at % 5)));
    counted[0][m] = mine.count;
  }
  return AD_OK;
}

static inline ad_recipe *fused_recipe(const char *mesh, const char *more) {
  static const char *const modules[] = {"fused", NULL};
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "fused",
                                       .help = "matrices beside each other, for tests",
                                       .modules = modules,
                                       .options_size = 1,
                                       .create = fused_create,
                                       .read = fused_read};
  char text[1024];
  ad_recipe *recipe = NULL;
  if (!ad_program_kind_find("fused")) must(ad_program_register(&kind));
  snprintf(
      text, sizeof text,
      "name: fused\nmodel: {kind: fused}\nmesh: \"%s\"\ntrain: {global_batch: 9, microbatches: 2, steps: 4, lr: 0.02, "
      "weight_decay: 0.1}\ngroups: [{match: \"scale\", kind: adamw, lr: 0.01}]\n%s\n",
      mesh, more);
  must(ad_recipe_parse(text, "fused.yaml", NULL, 0, &recipe));
  return recipe;
}

#endif
