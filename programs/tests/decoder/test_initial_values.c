/* Tests shapes, initial values and weight decay of the parameters of moe, ocr and decompose, on backend dry, against
 * the programs' headers. Those of gpt are in test_gpt.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <fnmatch.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>
#include "moe/moe.h"
#include "ocr/ocr.h"
#include "decompose/model.h"
#include "program/program.h"

static void must(ad_status status) {
  if (status) fail_msg("%s", ad_last_error());
}

/* Expected values of the parameters whose name "module.name" matches the pattern. */
typedef struct wanted {
  const char *pattern;
  ad_shape shape;
  double mean, deviation;
  int decays;
} wanted;

static char *text_paths[] = {(char[]){"/usr/share/common-licenses"}};

static const wanted *find(const wanted *table, size_t rows, const char *name) {
  for (size_t i = 0; i < rows; i++)
    if (!fnmatch(table[i].pattern, name, 0)) return &table[i];
  fail_msg("nothing is known of %s", name);
  return NULL;
}

static void assert_param(const ad_param_spec *param, const wanted *row, const char *name) {
  int is_so = ad_shape_equal(&param->shape, &row->shape) && param->mean == row->mean && param->decays == row->decays;
  if (!is_so || fabs(param->deviation - row->deviation) > 1e-15)
    fail_msg("%s: mean %g, deviation %g, decays %d", name, param->mean, param->deviation, param->decays);
}

static void assert_params(ad_program *program, const wanted *table, size_t rows, size_t count) {
  size_t seen = 0;
  char name[128];
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++, seen++) {
      ad_program_param_name(program, m, i, name, sizeof name);
      assert_param(ad_program_param(program, m, i), find(table, rows, name), name);
    }
  }
  assert_int_equal(seen, count);
}

static ad_program *create(const ad_program_kind *kind, const void *options, const char *const *meshes, ad_comm **comm) {
  ad_program_setting setting = {.meshes = meshes, .global_batch = 4, .microbatches = 1, .seed = 5};
  ad_program *program;
  must(ad_comm_open_dry(0, 1, comm));
  setting.comm = *comm;
  must(ad_program_create(kind, options, &setting, &program));
  return program;
}

static void assert_program(const ad_program_kind *kind, const void *options, const char *const *meshes,
                           const wanted *table, size_t rows, size_t count) {
  ad_comm *comm;
  ad_program *program = create(kind, options, meshes, &comm);
  assert_params(program, table, rows, count);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

#define ASSERT_PROGRAM(kind, options, meshes, table, count) \
  assert_program((kind), (options), (meshes), (table), sizeof(table) / sizeof *(table), (count))

/* The model: 2 layers, d_model 8, 6 experts with hidden width 10, a shared expert with 5. */
static void of_a_mixture_of_experts(void **state) {
  const double of_model = 1 / sqrt(8), output = 1 / sqrt(2 * 2);
  const wanted table[] = {
      {"embedding.weight", {2, {256, 8}}, 0, of_model, 0},
      {"blocks.?.norm.*", {1, {8}}, 1, 0, 0},
      {"blocks.?.attn.w[qkv]", {2, {8, 8}}, 0, of_model, 1},
      {"blocks.?.attn.wo", {2, {8, 8}}, 0, of_model * output, 1},
      {"blocks.?.moe.router", {2, {8, 6}}, 0, of_model, 1},
      {"blocks.?.moe.gate", {3, {6, 8, 10}}, 0, of_model, 1},
      {"blocks.?.moe.up", {3, {6, 8, 10}}, 0, of_model, 1},
      {"blocks.?.moe.down", {3, {6, 10, 8}}, 0, 1 / sqrt(10) * output, 1},
      {"blocks.?.moe.shared.gate", {2, {8, 5}}, 0, of_model, 1},
      {"blocks.?.moe.shared.up", {2, {8, 5}}, 0, of_model, 1},
      {"blocks.?.moe.shared.down", {2, {5, 8}}, 0, 1 / sqrt(5) * output, 1},
      {"final.norm.weight", {1, {8}}, 1, 0, 0},
      {"head.weight", {2, {8, 256}}, 0, of_model, 1},
  };
  const ad_moe_options options = {.decoder = {.layers = 2,
                                              .d_model = 8,
                                              .heads = 2,
                                              .rotary_base = 10000,
                                              .norm_epsilon = 1e-5,
                                              .vocabulary = 256,
                                              .data = {.text = text_paths, .text_count = 1, .seq = 4}},
                                  .experts = 6,
                                  .top_k = 2,
                                  .expert_hidden = 10,
                                  .shared_experts = 5};
  ASSERT_PROGRAM(ad_moe(), &options, (const char *const[]){"dp=1"}, table, 1 + 2 * 13 + 2);
}

/* The model: an encoder of 3 layers with d_model 12, so 32 inside its MLPs, and patches of 6 * 2 pixels; a decoder of
 * one layer. */
static void of_a_reader_of_pictures(void **state) {
  const double of_encoder = 1 / sqrt(12), of_model = 1 / sqrt(8), inner = 1 / sqrt(2 * 3), output = 1 / sqrt(2);
  const wanted table[] = {
      {"encoder.patch.weight", {2, {12, 12}}, 0, 1 / sqrt(12), 1},
      {"encoder.blocks.?.norm.*", {1, {12}}, 1, 0, 0},
      {"encoder.blocks.?.attn.w[qkv]", {2, {12, 12}}, 0, of_encoder, 1},
      {"encoder.blocks.?.attn.wo", {2, {12, 12}}, 0, of_encoder * inner, 1},
      {"encoder.blocks.?.mlp.gate", {2, {12, 32}}, 0, of_encoder, 1},
      {"encoder.blocks.?.mlp.up", {2, {12, 32}}, 0, of_encoder, 1},
      {"encoder.blocks.?.mlp.down", {2, {32, 12}}, 0, 1 / sqrt(32) * inner, 1},
      {"encoder.final.norm.weight", {1, {12}}, 1, 0, 0},
      {"encoder.projection.weight", {2, {12, 8}}, 0, of_encoder, 1},
      {"model.embedding.weight", {2, {256, 8}}, 0, of_model, 0},
      {"model.blocks.?.norm.*", {1, {8}}, 1, 0, 0},
      {"model.blocks.?.attn.w[qkv]", {2, {8, 8}}, 0, of_model, 1},
      {"model.blocks.?.attn.wo", {2, {8, 8}}, 0, of_model * output, 1},
      {"model.blocks.?.mlp.gate", {2, {8, 20}}, 0, of_model, 1},
      {"model.blocks.?.mlp.up", {2, {8, 20}}, 0, of_model, 1},
      {"model.blocks.?.mlp.down", {2, {20, 8}}, 0, 1 / sqrt(20) * output, 1},
      {"model.final.norm.weight", {1, {8}}, 1, 0, 0},
  };
  const ad_ocr_options options = {.decoder = {.layers = 1,
                                              .d_model = 8,
                                              .heads = 2,
                                              .tied = 1,
                                              .rotary_base = 10000,
                                              .norm_epsilon = 1e-5,
                                              .vocabulary = 256,
                                              .data = {.seq = 8}},
                                  .d_hidden = 20,
                                  .encoder_layers = 3,
                                  .encoder_d_model = 12,
                                  .encoder_heads = 2,
                                  .patch = 2,
                                  .lines = {.text = text_paths, .text_count = 1, .chars = 4, .height = 6, .width = 8}};
  ASSERT_PROGRAM(ad_ocr(), &options, ((const char *const[]){"dp=1", "dp=1"}), table, 2 + 3 * 9 + 1 + 1 + 9 + 1);
}

/* The two component matrices of each target matrix are gathered together (one unit), and no others with them. */
static void assert_components_of_a_matrix_are_a_unit(const ad_decompose_options *options) {
  ad_comm *comm;
  ad_program *program = create(ad_decompose(), options, (const char *const[]){"dp=1", "block=1 dp=1", "dp=1"}, &comm);
  assert_int_equal(ad_program_module(program, 1)->param_count, 4);
  for (size_t i = 0; i < 4; i++) assert_int_equal(ad_program_param(program, 1, i)->unit, i / 2);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

/* Two sites of a target with d_model 8 and d_hidden 20; an importance network of 3 layers with d_model 12. */
static void of_a_decomposition(void **state) {
  const double of_network = 1 / sqrt(12), inner = 1 / sqrt(2 * 3);
  const wanted table[] = {
      {"ci.input.weight", {2, {28, 12}}, 0, 1 / sqrt(28), 1},
      {"ci.blocks.?.norm.*", {1, {12}}, 1, 0, 0},
      {"ci.blocks.?.attn.w[qkv]", {2, {12, 12}}, 0, of_network, 1},
      {"ci.blocks.?.attn.wo", {2, {12, 12}}, 0, of_network * inner, 1},
      {"ci.blocks.?.mlp.gate", {2, {12, 32}}, 0, of_network, 1},
      {"ci.blocks.?.mlp.up", {2, {12, 32}}, 0, of_network, 1},
      {"ci.blocks.?.mlp.down", {2, {32, 12}}, 0, 1 / sqrt(32) * inner, 1},
      {"ci.final.norm.weight", {1, {12}}, 1, 0, 0},
      {"ci.output.weight", {2, {12, 5 + 7}}, 0, of_network, 1},
      {"blocks.blocks.0.attn.wo.V", {2, {8, 5}}, 0, 1 / sqrt(8), 0},
      {"blocks.blocks.0.attn.wo.U", {2, {5, 8}}, 0, 1 / sqrt(5), 0},
      {"blocks.blocks.0.mlp.down.V", {2, {20, 7}}, 0, 1 / sqrt(20), 0},
      {"blocks.blocks.0.mlp.down.U", {2, {7, 8}}, 0, 1 / sqrt(7), 0},
  };
  char *matches[] = {(char[]){"*.attn.wo"}, (char[]){"*.mlp.down"}};
  int64_t components[] = {5, 7};
  const ad_decompose_options options = {.target = {{.layers = 1,
                                                    .d_model = 8,
                                                    .heads = 2,
                                                    .tied = 1,
                                                    .rotary_base = 100,
                                                    .norm_epsilon = 1e-5,
                                                    .vocabulary = 256,
                                                    .data = {.text = text_paths, .text_count = 1, .seq = 4}},
                                                   20},
                                        .importance_layers = 3,
                                        .importance_d_model = 12,
                                        .importance_heads = 2,
                                        .matches = matches,
                                        .match_count = 2,
                                        .components = components,
                                        .components_count = 2,
                                        .faithfulness = 1,
                                        .stochastic = 1,
                                        .sparsity = 1,
                                        .adversarial = 1,
                                        .divergence = (char[]){"mse"},
                                        .power = 1,
                                        .epsilon = 1e-6,
                                        .anneal_to = 1,
                                        .ascent_rule = (char[]){"adam"},
                                        .ascent_scope = (char[]){"sample"},
                                        .ascent_bounds = (char[]){"clamp"},
                                        .ascent_epsilon = 1e-8,
                                        .target_batch = 1};
  ASSERT_PROGRAM(ad_decompose(), &options, ((const char *const[]){"dp=1", "block=1 dp=1", "dp=1"}), table,
                 1 + 3 * 9 + 2 + 4);
  assert_components_of_a_matrix_are_a_unit(&options);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(of_a_mixture_of_experts),
      cmocka_unit_test(of_a_reader_of_pictures),
      cmocka_unit_test(of_a_decomposition),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
