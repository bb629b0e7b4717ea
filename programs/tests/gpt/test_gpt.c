/* Tests the program gpt: the parameters that it declares, what it refuses, and that its gradient belongs
 * to its loss. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "gpt/gpt.h"
#include "base/memory.h"
#include "addend/helpers.h"
#include "addend/data.h"
#include "program/program.h"
#include "decoder/text_batch.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { SEQ = 5, BATCH = 3, PARAMS_MAX = 32 };

static char *text_paths[] = {(char[]){"/usr/share/common-licenses"}};
static double valid[] = {0.8};  // one of five targets does not count

static ad_gpt_options tiny(int tied) {
  return (ad_gpt_options){
      .decoder = {.layers = 2,
                  .d_model = 8,
                  .heads = 2,
                  .tied = tied,
                  .rotary_base = 10000,
                  .norm_epsilon = 1e-5,
                  .vocabulary = 256,
                  .data = {.text = text_paths, .text_count = 1, .seq = SEQ, .valid = valid, .valid_count = 1}},
      .d_hidden = 12};
}

/* A program that borrows its options and its comm from this struct. */
typedef struct made {
  ad_gpt_options options;
  ad_comm *comm;
  ad_program *program;
} made;

static ad_status try(made *m, const char *mesh, int64_t batch, int64_t microbatches) {
  ad_program_setting setting = {.comm = m->comm,
                                .meshes = (const char *const[]){mesh},
                                .global_batch = batch,
                                .microbatches = microbatches,
                                .seed = 5};
  return ad_program_create(ad_gpt(), &m->options, &setting, &m->program);
}

/* Creates the program in *m, whose address must stay the same: the program points into it. */
static void create(made *m, const char *mesh, int64_t ranks, int tied) {
  *m = (made){.options = tiny(tied)};
  must(ad_comm_open_dry(0, ranks, &m->comm));
  must(try(m, mesh, BATCH, 1));
}

static void destroy(made *m) {
  ad_program_destroy(m->program);
  ad_comm_close(m->comm);
}

static size_t param_count(const made *m) { return ad_program_module(m->program, 0)->param_count; }
static const ad_param_spec *param_at(const made *m, size_t i) { return &ad_program_module(m->program, 0)->params[i]; }

static int count_matching(const made *m, const char *pattern) {
  int count = 0;
  for (size_t i = 0; i < param_count(m); i++) count += !fnmatch(pattern, param_at(m, i)->name, 0);
  return count;
}

static void parameters_have_the_names_that_recipes_use(void **state) {
  made untied, tied;
  create(&untied, "dp=2", 2, 0);
  create(&tied, "dp=2", 2, 1);
  assert_int_equal(param_count(&untied), 1 + 2 * 9 + 2);
  assert_int_equal(param_count(&tied), 1 + 2 * 9 + 1);
  assert_string_equal(param_at(&untied, 0)->name, "embedding.weight");
  assert_string_equal(param_at(&untied, 20)->name, "head.weight");
  assert_int_equal(count_matching(&untied, "*.norm.*"), 5);
  assert_int_equal(count_matching(&untied, "blocks.*.attn.wo"), 2);
  for (size_t i = 0; i < param_count(&untied); i++) {
    const ad_param_spec *param = param_at(&untied, i);
    assert_int_equal(param->decays, fnmatch("*.norm.*", param->name, 0) && strcmp(param->name, "embedding.weight"));
  }
  destroy(&untied);
  destroy(&tied);
}

/* Expected values are those of model.h for the tiny model: 2 layers, d_model 8, d_hidden 12. */
static void shapes_and_initial_values_are_those_of_the_header(void **state) {
  const double of_model = 1 / sqrt(8), of_hidden = 1 / sqrt(12), output = 1 / sqrt(2 * 2);
  const struct {
    const char *pattern;
    int64_t rows, columns; /* columns 0: the parameter is a vector */
    double mean, deviation;
  } table[] = {
      {"embedding.weight", 256, 8, 0, of_model},
      {"blocks.?.norm.*", 8, 0, 1, 0},
      {"blocks.?.attn.w[qkv]", 8, 8, 0, of_model},
      {"blocks.?.attn.wo", 8, 8, 0, of_model * output},
      {"blocks.?.mlp.gate", 8, 12, 0, of_model},
      {"blocks.?.mlp.up", 8, 12, 0, of_model},
      {"blocks.?.mlp.down", 12, 8, 0, of_hidden * output},
      {"final.norm.weight", 8, 0, 1, 0},
      {"head.weight", 8, 256, 0, of_model},
  };
  made m;
  create(&m, "dp=1", 1, 0);
  size_t seen = 0;
  for (size_t i = 0; i < param_count(&m); i++) {
    const ad_param_spec *param = param_at(&m, i);
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
      if (fnmatch(table[row].pattern, param->name, 0)) continue;
      seen++;
      assert_int_equal(param->shape.ndim, table[row].columns ? 2 : 1);
      assert_int_equal(param->shape.dim[0], table[row].rows);
      if (table[row].columns) assert_int_equal(param->shape.dim[1], table[row].columns);
      assert_true(param->mean == table[row].mean);
      assert_true(fabs(param->deviation - table[row].deviation) < 1e-15);
    }
  }
  assert_int_equal(seen, param_count(&m));
  destroy(&m);
}

static void assert_shape(const made *m, const char *name, int64_t rows, int64_t columns, double deviation) {
  for (size_t i = 0; i < param_count(m); i++) {
    const ad_param_spec *param = param_at(m, i);
    if (strcmp(param->name, name)) continue;
    assert_int_equal(param->shape.dim[0], rows);
    assert_int_equal(param->shape.ndim > 1 ? param->shape.dim[1] : 0, columns);
    assert_true(fabs(param->deviation - deviation) < 1e-15);
    return;
  }
  fail_msg("%s is not there", name);
}

/* Tests widths that differ from the defaults: 2 heads of 6 elements, one key head, 300 tokens. */
static void assert_widths(int tied) {
  made m = {.options = tiny(tied)};
  m.options.decoder.head_dim = 6;
  m.options.decoder.kv_heads = 1;
  m.options.decoder.vocabulary = 300;
  m.options.decoder.qk_norm = 1;
  must(ad_comm_open_dry(0, 1, &m.comm));
  must(try(&m, "dp=1", BATCH, 1));
  assert_shape(&m, "embedding.weight", 300, 8, 1 / sqrt(8));
  assert_shape(&m, "blocks.1.attn.wq", 8, 12, 1 / sqrt(8));
  assert_shape(&m, "blocks.1.attn.wk", 8, 6, 1 / sqrt(8));
  assert_shape(&m, "blocks.1.attn.wv", 8, 6, 1 / sqrt(8));
  assert_shape(&m, "blocks.1.attn.wo", 12, 8, 1 / sqrt(12) / 2);
  assert_shape(&m, "blocks.1.attn.q_norm", 6, 0, 0);
  if (!tied) assert_shape(&m, "head.weight", 8, 300, 1 / sqrt(8));
  double elements = 2 * (8 * 12 + 2 * 8 * 6 + 12 * 8 + 3 * 8 * 12) + 8 * 300, attention = 2 * SEQ * 12;
  double flops = ad_gpt()->account.flops(ad_program_own(m.program), 3);
  assert_true(fabs(flops - 3 * SEQ * 6 * (elements + attention)) < 1e-6);
  assert_true(fabs(ad_program_loss(m.program, 0)->uniform - log(300)) < 1e-15);
  destroy(&m);
}

static void heads_and_vocabulary_have_widths_of_their_own(void **state) {
  assert_widths(0);
  assert_widths(1);
}

/* "1": the product has a bias, in the order of `products`. */
static void each_word_of_biases_names_its_products(void **state) {
  static const char *const products[] = {"wq_bias",   "wk_bias", "wv_bias",  "wo_bias",
                                         "gate_bias", "up_bias", "down_bias"};
  static const char *const wanted[] = {[AD_BIAS_NONE] = "0000000",
                                       [AD_BIAS_QKV] = "1110000",
                                       [AD_BIAS_ATTENTION] = "1111000",
                                       [AD_BIAS_MLP] = "0000111",
                                       [AD_BIAS_ALL] = "1111111"};
  for (int bias = AD_BIAS_NONE; bias <= AD_BIAS_ALL; bias++) {
    made m = {.options = tiny(0)};
    m.options.decoder.bias = bias;
    must(ad_comm_open_dry(0, 1, &m.comm));
    must(try(&m, "dp=1", BATCH, 1));
    for (size_t k = 0; k < 7; k++) {
      size_t count = 0;
      for (size_t i = 0; i < param_count(&m); i++)
        count += !strcmp(strrchr(param_at(&m, i)->name, '.') + 1, products[k]);
      assert_int_equal(count, wanted[bias][k] == '1' ? 2 : 0);
    }
    destroy(&m);
  }
}

/* d_hidden defaults to 8/3 of d_model, rounded up to a multiple of 16. */
static void without_a_width_of_the_mlp_it_is_eight_thirds_rounded_up(void **state) {
  static const int64_t widths[][2] = {{2, 16}, {6, 16}, {8, 32}, {12, 32}, {16, 48}, {48, 128}, {50, 144}, {256, 688}};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    made m = {.options = tiny(0)};
    m.options.d_hidden = 0;
    m.options.decoder.d_model = widths[i][0];
    m.options.decoder.heads = 1;
    must(ad_comm_open_dry(0, 1, &m.comm));
    must(try(&m, "dp=1", BATCH, 1));
    assert_string_equal(param_at(&m, 7)->name, "blocks.0.mlp.gate");
    assert_int_equal(param_at(&m, 7)->shape.dim[1], widths[i][1]);
    destroy(&m);
  }
}

static void outputs_of_residual_branches_start_smaller(void **state) {
  made m;
  create(&m, "dp=1", 1, 0);
  double wq = param_at(&m, 2)->deviation, wo = param_at(&m, 5)->deviation;
  assert_string_equal(param_at(&m, 5)->name, "blocks.0.attn.wo");
  assert_true(fabs(wo / wq - 0.5) < 1e-12);  // output projections have the factor 1/sqrt(2 * 2 layers)
  destroy(&m);
}

static void batches_are_cut_over_dp_and_zigzag_over_cp(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_replicate=3 dp_shard=2 cp=2 tp=2", &mesh));
  ad_layout layout = ad_text_batch_layout(mesh), counted = ad_text_count_layout(mesh);
  assert_int_equal(layout.type[AD_DP_REPLICATE], AD_S(0));
  assert_int_equal(layout.type[AD_DP_SHARD], AD_S(0));
  assert_int_equal(layout.depth[AD_DP_SHARD], 1);
  assert_int_equal(layout.type[AD_CP], AD_S_ZIGZAG(1));
  assert_int_equal(counted.type[AD_CP], AD_P);
  assert_int_equal(layout.type[AD_TP], AD_I);
  assert_int_equal(counted.type[AD_DP_REPLICATE], AD_P);
  assert_int_equal(counted.type[AD_DP_SHARD], AD_P);
  assert_int_equal(counted.type[AD_TP], AD_I);
  ad_mesh_destroy(mesh);
}

static void a_refusal_names_every_number_that_does_not_fit(void **state) {
  made m = {.options = tiny(0)};
  must(ad_comm_open_dry(0, 2, &m.comm));
  m.options.decoder.layers = 0;
  m.options.decoder.heads = 3;
  m.options.decoder.data.seq = -4;
  assert_int_equal(try(&m, "ep=2", BATCH, 1), AD_INVALID);
  assert_null(m.program);
  assert_says("model.layers", "1", "0");
  assert_says("model.heads", "d_model", "8", "3");
  assert_says("data.seq", "1", "-4");
  assert_says("ep=2");
  ad_comm_close(m.comm);
}

/* Checks that gpt refuses these options on this mesh with these facts. The sentence is in its own list, which is
 * named after the mesh and the first two facts. */
static void assert_refused(ad_gpt_options options, const char *mesh, int64_t ranks, const char *const *facts) {
  made m = {.options = options};
  char list[128];
  snprintf(list, sizeof list, "%s: %s, %s", mesh, facts[0], facts[1]);
  must(ad_comm_open_dry(0, ranks, &m.comm));
  assert_int_equal(try(&m, mesh, BATCH, 1), AD_INVALID);
  assert_says_in(list, ad_last_error(), facts);
  ad_comm_close(m.comm);
}

static void sizes_that_tp_or_cp_do_not_fit_are_refused_with_those_that_would(void **state) {
  ad_gpt_options options = tiny(0);
  options.decoder.d_model = 48;
  options.decoder.heads = 4;
  assert_refused(options, "tp=3", 3, SAYS_FACTS("model.heads", "tp=3", "4", "tp", "3", "6"));
  options.decoder.d_model = 8;
  options.decoder.heads = 2;
  assert_refused(options, "tp=3", 3, SAYS_FACTS("model.heads", "d_model 8", "6"));
  options.decoder.heads = 4;
  options.decoder.kv_heads = 3;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.kv_heads", "4", "3", "2"));
  options.decoder.kv_heads = 0;
  options.d_hidden = 3;
  assert_refused(options, "tp=4", 4, SAYS_FACTS("model.d_hidden", "tp=4", "MLP", "3", "4"));
  options.decoder.data.seq = 10;
  assert_refused(options, "cp=2", 2, SAYS_FACTS("data.seq", "cp=2", "4", "10", "8", "12"));
  options.decoder.data.seq = 3;
  assert_refused(options, "cp=4", 4, SAYS_FACTS("data.seq", "cp=4", "3", "8"));
}

static void heads_of_a_given_width_need_not_divide_the_stream(void **state) {
  ad_gpt_options options = tiny(0);
  options.decoder.heads = 5;
  options.decoder.head_dim = 6;
  assert_refused(options, "tp=3", 3, SAYS_FACTS("model.heads", "tp=3", "5", "tp", "3", "6"));
  options.decoder.heads = 10;
  options.decoder.kv_heads = 5;
  assert_refused(options, "tp=3", 3, SAYS_FACTS("model.heads", "tp=3", "10", "tp", "15"));
  options.decoder.head_dim = 5;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.head_dim", "5", "4", "6"));
  options.decoder.head_dim = 1;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.head_dim", "1", "2", "4"));
}

static void options_of_larger_families_are_refused_where_they_mean_nothing(void **state) {
  ad_gpt_options options = tiny(0);
  double scaling[] = {8, 4, 4, 64};
  options.decoder.rotary_scaling = scaling;
  options.decoder.rotary_scaling_count = 3;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.rotary_scaling", "original_positions", "3"));
  options.decoder.rotary_scaling_count = 4;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.rotary_scaling", "high_freq_factor", "low_freq_factor", "4"));
  scaling[0] = 0;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.rotary_scaling", "0"));
  options = tiny(0);
  options.decoder.vocabulary = 255;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.vocabulary", "255", "data.text", "256"));
  options.decoder.vocabulary = 256;
  options.decoder.bias = AD_BIAS_ALL + 1;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.bias", "0", "5"));
  options.decoder.bias = 0;
  options.decoder.norm_epsilon = 0;
  assert_refused(options, "dp=1", 1, SAYS_FACTS("model.norm_epsilon", "0"));
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
  made m = {.options = tiny(0)};
  must(ad_comm_open_dry(0, 1, &m.comm));
  long n = 1;
  for (;; n++) {
    ad_memory_fail_at(n);
    ad_status status = try(&m, "dp=1", BATCH, 1);
    assert_true(reports_allocation(n, status));
    if (!status) break;
    assert_null(m.program);
  }
  assert_true(n > 4);
  destroy(&m);
}

static void products_are_counted_once_forward_and_twice_backward(void **state) {
  double elements = 2 * (4 * 8 * 8 + 3 * 8 * 12) + 8 * AD_VOCABULARY_BYTES, attention = 2 * SEQ * 8;
  for (int tied = 0; tied <= 1; tied++) {
    made m;
    create(&m, "dp=1", 1, tied);
    double flops = ad_gpt()->account.flops(ad_program_own(m.program), 3);
    assert_true(fabs(flops - 3 * SEQ * 6 * (elements + attention)) < 1e-6);
    destroy(&m);
  }
}

/* ---- loss and gradient on a tape ---- */

typedef struct fixture {
  made made;
  ad_param_spec specs[PARAMS_MAX];
  ad_array values[PARAMS_MAX];
  const ad_array *list[PARAMS_MAX];
  ad_parameters params;
  ad_reducer *reducer;
  ad_tape *tape;
  ad_submitted_loss loss;
  int64_t counted[2 * BATCH]; /* tokens that count in each microbatch */
} fixture;

static void open_param(fixture *f, size_t i) {
  const ad_param_spec *param = param_at(&f->made, i);
  ad_precision_policy f64 = {AD_F64, AD_F64, 0, AD_F64, AD_F64};
  f->specs[i] = *param;
  f->specs[i].policy = f64;
  must(ad_array_create(f->made.comm, AD_F64, &param->shape, &param->layout, &f->values[i]));
  must(ad_param_initialise(param, 5, 0, &f->values[i]));
  f->list[i] = &f->values[i];
}

/* Opens *f, whose address must stay the same: its list points into it. */
static void open_fixture(fixture *f, int tied, int64_t microbatches) {
  *f = (fixture){.made = {.options = tiny(tied)}};
  made *m = &f->made;
  must(ad_comm_open_alone(&m->comm));
  must(try(m, "dp=1", BATCH, microbatches));
  for (size_t i = 0; i < param_count(m); i++) open_param(f, i);
  must(ad_reducer_create(m->comm, f->specs, param_count(m), NULL, &f->reducer));
  f->params =
      (ad_parameters){.size = sizeof(ad_parameters), .values = f->list, .count = param_count(m), .reducer = f->reducer};
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F64};
  must(ad_tape_create(m->comm, ad_program_mesh(m->program, 0), &options, &f->tape));
  must(ad_gpt()->open(ad_program_own(m->program)));
  must(ad_gpt()->read(ad_program_own(m->program), 0, 0, (int64_t *const[]){f->counted}));
}

static void close_fixture(fixture *f) {
  ad_tape_destroy(f->tape);
  ad_reducer_destroy(f->reducer);
  for (size_t i = 0; i < param_count(&f->made); i++) ad_array_destroy(f->made.comm, &f->values[i]);
  destroy(&f->made);
}

/* Runs forward of the first microbatch. */
static ad_tensor *loss_of(fixture *f) {
  ad_phase_run at = {.program = f->made.program, .tape = f->tape, .parameters = &f->params, .losses = &f->loss};
  f->loss = (ad_submitted_loss){0};
  ad_tape_reset(f->tape);
  must(ad_program_phase(f->made.program, 0)->run(ad_program_own(f->made.program), &at));
  return f->loss.numerator;
}

static double shifted_loss(fixture *f, double by) {
  for (size_t i = 0; i < param_count(&f->made); i++) {
    double *data = f->values[i].data;
    for (size_t j = 0; j < ad_array_numel(&f->values[i]); j++) data[j] += by * ad_random_normal(9, i, j);
  }
  ad_tensor *loss = loss_of(f);
  must(ad_tape_status(f->tape));
  return ad_tensor_scalar(loss);
}

static double slope_by_gradient(fixture *f) {
  must(ad_reducer_begin_microbatch(f->reducer, AD_SYNC_ALL));
  must(ad_backward(f->tape, loss_of(f)));
  must(ad_reducer_end_microbatch(f->reducer));
  must(ad_reducer_finish(f->reducer));
  double slope = 0;
  for (size_t i = 0; i < param_count(&f->made); i++) {
    const double *grad = ad_reducer_gradient(f->reducer, i)->data;
    assert_false(ad_reducer_is_absent(f->reducer, i));
    for (size_t j = 0; j < ad_array_numel(&f->values[i]); j++) slope += grad[j] * ad_random_normal(9, i, j);
  }
  return slope;
}

static void the_gradient_is_the_slope_of_the_loss(void **state) {
  for (int tied = 0; tied <= 1; tied++) {
    fixture f;
    open_fixture(&f, tied, 1);
    double slope = slope_by_gradient(&f), step = 2e-6;
    double ahead = shifted_loss(&f, step), behind = shifted_loss(&f, -2 * step);
    double difference = (ahead - behind) / (2 * step);
    assert_true(fabs(difference - slope) < 1e-7 * fabs(slope));
    close_fixture(&f);
  }
}

static void what_a_batch_is_read_from_is_reported(void **state) {
  fixture f;
  char is[64], wanted[64];
  ad_text_data *data;
  open_fixture(&f, 0, 2);
  must(ad_text_data_open((const char *const *)text_paths, 1, SEQ, 0, &data));
  snprintf(wanted, sizeof wanted, "%lld bytes", (long long)ad_text_data_bytes(data));
  const void *own = ad_program_own(f.made.program);
  assert_string_equal(ad_gpt()->account.fact(own, 0, is, sizeof is), "text");
  assert_string_equal(is, wanted);
  assert_string_equal(ad_gpt()->account.fact(own, 1, is, sizeof is), "batch");
  assert_string_equal(is, "3 samples of 5 tokens in 2 microbatches");
  ad_text_data_close(data);
  close_fixture(&f);
}

static void an_untrained_model_is_not_far_from_a_guess(void **state) {
  fixture f;
  open_fixture(&f, 0, 1);
  assert_int_equal(f.counted[0], BATCH * (SEQ - 1));
  double loss = shifted_loss(&f, 0) / (double)f.counted[0];
  assert_true(loss > 0.8 * log(AD_VOCABULARY_BYTES) && loss < 1.6 * log(AD_VOCABULARY_BYTES));
  close_fixture(&f);
}

static void no_rows_give_every_parameter_a_zero_gradient(void **state) {
  fixture f;
  open_fixture(&f, 1, 2 * BATCH);  // the first microbatch has no row
  assert_int_equal(f.counted[0], 0);
  assert_true(slope_by_gradient(&f) == 0);
  close_fixture(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameters_have_the_names_that_recipes_use),
      cmocka_unit_test(shapes_and_initial_values_are_those_of_the_header),
      cmocka_unit_test(without_a_width_of_the_mlp_it_is_eight_thirds_rounded_up),
      cmocka_unit_test(outputs_of_residual_branches_start_smaller),
      cmocka_unit_test(batches_are_cut_over_dp_and_zigzag_over_cp),
      cmocka_unit_test(a_refusal_names_every_number_that_does_not_fit),
      cmocka_unit_test(sizes_that_tp_or_cp_do_not_fit_are_refused_with_those_that_would),
      cmocka_unit_test(heads_of_a_given_width_need_not_divide_the_stream),
      cmocka_unit_test(options_of_larger_families_are_refused_where_they_mean_nothing),
      cmocka_unit_test(heads_and_vocabulary_have_widths_of_their_own),
      cmocka_unit_test(each_word_of_biases_names_its_products),
      cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
      cmocka_unit_test(products_are_counted_once_forward_and_twice_backward),
      cmocka_unit_test(the_gradient_is_the_slope_of_the_loss),
      cmocka_unit_test(what_a_batch_is_read_from_is_reported),
      cmocka_unit_test(an_untrained_model_is_not_far_from_a_guess),
      cmocka_unit_test(no_rows_give_every_parameter_a_zero_gradient),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
