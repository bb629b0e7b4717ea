/* Tests what a decomposition refuses: patterns that match no matrix, and weights that are not the target's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "gpt/gpt.h"
#include "decompose/model.h"
#include "addend/safetensors.h"
#include "decompose/target.h"
#include "program/program.h"
#include "says.h"

static char *text_paths[] = {(char[]){"/usr/share/common-licenses"}};

static ad_gpt_options target(void) {
  return (ad_gpt_options){.decoder = {.layers = 2,
                                      .d_model = 8,
                                      .heads = 2,
                                      .tied = 1,
                                      .rotary_base = 10000,
                                      .norm_epsilon = 1e-5,
                                      .vocabulary = 256,
                                      .data = {.text = text_paths, .text_count = 1, .seq = 4}},
                          .d_hidden = 12};
}

static void a_pattern_without_a_matrix_is_reported_with_the_first_and_the_last(void **state) {
  char *matches[] = {(char[]){"head.*"}};
  int64_t components[] = {3};
  const ad_decompose_options options = {.target = target(),
                                        .importance_layers = 1,
                                        .importance_d_model = 8,
                                        .importance_heads = 2,
                                        .matches = matches,
                                        .match_count = 1,
                                        .components = components,
                                        .components_count = 1,
                                        .stochastic = 1,
                                        .divergence = (char[]){"mse"},
                                        .power = 1,
                                        .epsilon = 1e-6,
                                        .anneal_to = 1,
                                        .ascent_rule = (char[]){"adam"},
                                        .ascent_scope = (char[]){"sample"},
                                        .ascent_bounds = (char[]){"clamp"},
                                        .ascent_epsilon = 1e-8,
                                        .target_batch = 1};
  ad_program_setting setting = {
      .meshes = (const char *const[]){"dp=1", "block=1 dp=1", "dp=1"}, .global_batch = 4, .microbatches = 1, .seed = 5};
  ad_program *program = NULL;
  ad_comm *comm;
  assert_int_equal(ad_comm_open_dry(0, 1, &comm), AD_OK);
  setting.comm = comm;
  assert_int_equal(ad_program_create(ad_decompose(), &options, &setting, &program), AD_INVALID);
  assert_says("sites", "blocks.0.attn.wq", "blocks.1.mlp.down");
  ad_comm_close(comm);
}

static void weights_of_another_model_are_no_targets(void **state) {
  const float ones[4] = {1, 1, 1, 1};
  const ad_safetensor other = {"w", AD_F32, {2, {2, 2}}, NULL, 0};
  const ad_gpt_options options = target();
  char path[] = "/tmp/addend-decompose-XXXXXX";
  ad_safetensors_writer *writer;
  assert_int_equal(close(mkstemp(path)), 0);
  assert_int_equal(ad_safetensors_create(path, &other, 1, NULL, &writer), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, ones), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
  assert_int_equal(ad_target_check_file(&options, path), AD_INVALID);
  assert_says("embedding.weight");
  unlink(path);
  assert_int_equal(ad_target_check_file(&options, path), AD_IO);
  assert_says(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_pattern_without_a_matrix_is_reported_with_the_first_and_the_last),
      cmocka_unit_test(weights_of_another_model_are_no_targets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
