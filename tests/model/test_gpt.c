/* The decoder: what it declares, what it refuses, and that its loss and gradient belong together. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/model.h"
#include "base/memory.h"
#include "base/random.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { VOCABULARY = 11, SEQ = 5, BATCH = 3, PARAMS_MAX = 32 };

static ad_gpt_options tiny(int tied) {
  return (ad_gpt_options){.size = sizeof(ad_gpt_options),
                          .layers = 2,
                          .d_model = 8,
                          .heads = 2,
                          .d_hidden = 12,
                          .vocabulary = VOCABULARY,
                          .seq = SEQ,
                          .tied = tied};
}

static ad_model *create(const ad_mesh *mesh, int tied) {
  ad_gpt_options options = tiny(tied);
  ad_model *model;
  must(ad_gpt_create(mesh, &options, &model));
  return model;
}

static int count_matching(const ad_model *model, const char *pattern) {
  int count = 0;
  for (size_t i = 0; i < ad_model_param_count(model); i++) {
    count += !fnmatch(pattern, ad_model_param(model, i)->name, 0);
  }
  return count;
}

static void parameters_have_the_names_that_recipes_use(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=2", &mesh));
  ad_model *untied = create(mesh, 0), *tied = create(mesh, 1);
  assert_int_equal(ad_model_param_count(untied), 1 + 2 * 9 + 2);
  assert_int_equal(ad_model_param_count(tied), 1 + 2 * 9 + 1);
  assert_string_equal(ad_model_param(untied, 0)->name, "embedding.weight");
  assert_string_equal(ad_model_param(untied, 20)->name, "head.weight");
  assert_int_equal(count_matching(untied, "*.norm.*"), 5);
  assert_int_equal(count_matching(untied, "blocks.*.attn.wo"), 2);
  for (size_t i = 0; i < ad_model_param_count(untied); i++) {
    const ad_param_spec *param = ad_model_param(untied, i);
    assert_int_equal(param->decays, fnmatch("*.norm.*", param->name, 0) && strcmp(param->name, "embedding.weight"));
  }
  ad_model_destroy(untied);
  ad_model_destroy(tied);
  ad_mesh_destroy(mesh);
}

static void outputs_of_residual_branches_start_smaller(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  ad_model *model = create(mesh, 0);
  double wq = ad_model_param(model, 2)->deviation, wo = ad_model_param(model, 5)->deviation;
  assert_string_equal(ad_model_param(model, 5)->name, "blocks.0.attn.wo");
  assert_true(fabs(wo / wq - 0.5) < 1e-12);  // 1/sqrt(2 * 2 layers)
  ad_model_destroy(model);
  ad_mesh_destroy(mesh);
}

static void batches_are_cut_over_dp_alone(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_replicate=3 dp_shard=2 tp=2", &mesh));
  ad_model *model = create(mesh, 0);
  const ad_layout *layout = ad_model_batch_layout(model);
  assert_int_equal(layout->type[AD_DP_REPLICATE], AD_S(0));
  assert_int_equal(layout->type[AD_DP_SHARD], AD_S(0));
  assert_int_equal(layout->depth[AD_DP_SHARD], 1);
  assert_int_equal(layout->type[AD_TP], AD_I);
  ad_model_destroy(model);
  ad_mesh_destroy(mesh);
}

static void a_refusal_names_every_number_that_does_not_fit(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  ad_gpt_options options = tiny(0);
  options.layers = 0;
  options.heads = 3;
  options.seq = -4;
  ad_model *model = NULL;
  assert_int_equal(ad_gpt_create(mesh, &options, &model), AD_INVALID);
  assert_null(model);
  assert_non_null(strstr(ad_last_error(), "layers must be at least 1, is 0"));
  assert_non_null(strstr(ad_last_error(), "d_model 8 does not divide into 3 heads"));
  assert_non_null(strstr(ad_last_error(), "seq must be at least 1, is -4"));
  ad_mesh_destroy(mesh);
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  ad_gpt_options options = tiny(0);
  ad_model *model = NULL;
  long n = 1;
  for (;; n++) {
    ad_memory_fail_at(n);
    ad_status status = ad_gpt_create(mesh, &options, &model);
    ad_memory_fail_at(0);
    if (!status) break;
    assert_int_equal(status, AD_MEMORY);
    assert_null(model);
  }
  assert_true(n > 4);
  ad_model_destroy(model);
  ad_mesh_destroy(mesh);
}

static void products_are_counted_once_forward_and_twice_backward(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp=1", &mesh));
  double elements = 2 * (4 * 8 * 8 + 3 * 8 * 12) + 8 * VOCABULARY, attention = 2 * SEQ * 8;
  for (int tied = 0; tied <= 1; tied++) {
    ad_model *model = create(mesh, tied);
    assert_true(fabs(ad_model_flops(model, 3) - 3 * SEQ * 6 * (elements + attention)) < 1e-6);
    ad_model_destroy(model);
  }
  ad_mesh_destroy(mesh);
}

/* ---- on a tape ---- */

typedef struct fixture {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_model *model;
  ad_param_spec specs[PARAMS_MAX];
  ad_array values[PARAMS_MAX];
  const ad_array *list[PARAMS_MAX];
  ad_reducer *reducer;
  ad_tape *tape;
  int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
} fixture;

static void open_param(fixture *f, size_t i) {
  const ad_param_spec *param = ad_model_param(f->model, i);
  ad_contract f64 = {AD_F64, AD_F64, 0, AD_F64, AD_F64};
  f->specs[i] = *param;
  f->specs[i].contract = f64;
  must(ad_array_create(f->comm, AD_F64, &param->shape, &param->layout, &f->values[i]));
  must(ad_param_initialise(param, 5, 0, &f->values[i]));
  f->list[i] = &f->values[i];
}

// In place: its list points into itself->
static void open_fixture(fixture *f, int tied) {
  *f = (fixture){0};
  must(ad_comm_open_alone(&f->comm));
  must(ad_mesh_create("dp=1", &f->mesh));
  f->model = create(f->mesh, tied);
  for (size_t i = 0; i < ad_model_param_count(f->model); i++) open_param(f, i);
  must(ad_reducer_create(f->comm, f->specs, ad_model_param_count(f->model), NULL, &f->reducer));
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64, .reducer = f->reducer};
  must(ad_tape_create(f->comm, f->mesh, &options, &f->tape));
  for (uint64_t i = 0; i < BATCH * SEQ; i++) {
    f->tokens[i] = (int32_t)(ad_random_bits(1, 1, i) % VOCABULARY);
    f->targets[i] = i % 4 == 3 ? -1 : (int32_t)(ad_random_bits(1, 2, i) % VOCABULARY);
  }
}

static void close_fixture(fixture *f) {
  ad_tape_destroy(f->tape);
  ad_reducer_destroy(f->reducer);
  for (size_t i = 0; i < ad_model_param_count(f->model); i++) ad_array_destroy(f->comm, &f->values[i]);
  ad_model_destroy(f->model);
  ad_mesh_destroy(f->mesh);
  ad_comm_close(f->comm);
}

static ad_tensor *loss_of(fixture *f, int64_t rows) {
  ad_shape shape = {2, {rows, SEQ}};
  ad_array tokens = ad_array_describe(f->comm, AD_I32, &shape, ad_model_batch_layout(f->model));
  ad_array targets = tokens;
  tokens.data = f->tokens;
  targets.data = f->targets;
  ad_tape_reset(f->tape);
  return ad_model_loss(f->model, f->tape, f->list, &tokens, &targets);
}

static double shifted_loss(fixture *f, double by) {
  for (size_t i = 0; i < ad_model_param_count(f->model); i++) {
    double *data = f->values[i].data;
    for (size_t j = 0; j < ad_array_numel(&f->values[i]); j++) data[j] += by * ad_random_normal(9, i, j);
  }
  ad_tensor *loss = loss_of(f, BATCH);
  must(ad_tape_status(f->tape));
  return ad_tensor_scalar(loss);
}

static double slope_by_gradient(fixture *f, int64_t rows) {
  must(ad_reducer_begin_microbatch(f->reducer, AD_SYNC_ALL));
  must(ad_backward(f->tape, loss_of(f, rows)));
  must(ad_reducer_end_microbatch(f->reducer));
  must(ad_reducer_finish(f->reducer));
  double slope = 0;
  for (size_t i = 0; i < ad_model_param_count(f->model); i++) {
    const double *grad = ad_reducer_gradient(f->reducer, i)->data;
    assert_false(ad_reducer_is_absent(f->reducer, i));
    for (size_t j = 0; j < ad_array_numel(&f->values[i]); j++) slope += grad[j] * ad_random_normal(9, i, j);
  }
  return slope;
}

static void the_gradient_is_the_slope_of_the_loss(void **state) {
  for (int tied = 0; tied <= 1; tied++) {
    fixture f;
    open_fixture(&f, tied);
    double slope = slope_by_gradient(&f, BATCH), step = 1e-5;
    double ahead = shifted_loss(&f, step), behind = shifted_loss(&f, -2 * step);
    double difference = (ahead - behind) / (2 * step);
    assert_true(fabs(difference - slope) < 1e-7 * fabs(slope));
    close_fixture(&f);
  }
}

static void an_untrained_model_is_not_far_from_a_guess(void **state) {
  fixture f;
  open_fixture(&f, 0);
  double loss = shifted_loss(&f, 0) / 12;  // 3 of 15 targets do not count
  assert_true(loss > 0.8 * log(VOCABULARY) && loss < 1.6 * log(VOCABULARY));
  close_fixture(&f);
}

static void no_rows_give_every_parameter_a_zero_gradient(void **state) {
  fixture f;
  open_fixture(&f, 1);
  assert_true(slope_by_gradient(&f, 0) == 0);
  close_fixture(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameters_have_the_names_that_recipes_use),
      cmocka_unit_test(outputs_of_residual_branches_start_smaller),
      cmocka_unit_test(batches_are_cut_over_dp_alone),
      cmocka_unit_test(a_refusal_names_every_number_that_does_not_fit),
      cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
      cmocka_unit_test(products_are_counted_once_forward_and_twice_backward),
      cmocka_unit_test(the_gradient_is_the_slope_of_the_loss),
      cmocka_unit_test(an_untrained_model_is_not_far_from_a_guess),
      cmocka_unit_test(no_rows_give_every_parameter_a_zero_gradient),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
