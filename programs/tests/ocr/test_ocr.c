/* Tests the program ocr without running it: a decoder that does not fit its mesh is refused with numbers that would
 * fit; the arrays of a batch are listed microbatch by microbatch. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "ocr/ocr.h"
#include "program/program.h"
#include "says.h"

static char *text_paths[] = {(char[]){"/usr/share/common-licenses"}};

static ad_ocr_options tiny(void) {
  return (ad_ocr_options){.decoder = {.layers = 1,
                                      .d_model = 48,
                                      .heads = 4,
                                      .tied = 1,
                                      .rotary_base = 10000,
                                      .norm_epsilon = 1e-5,
                                      .vocabulary = 256,
                                      .data = {.seq = 8}},
                          .d_hidden = 20,
                          .encoder_layers = 1,
                          .encoder_d_model = 12,
                          .encoder_heads = 2,
                          .patch = 2,
                          .lines = {.text = text_paths, .text_count = 1, .chars = 4, .height = 6, .width = 8}};
}

static void refused(const ad_ocr_options *options, const char *model, int64_t ranks, const char *const *facts) {
  char encoder[16];
  snprintf(encoder, sizeof encoder, "dp=%d", (int)ranks);
  ad_program_setting setting = {
      .meshes = (const char *const[]){encoder, model}, .global_batch = 12, .microbatches = 1, .seed = 5};
  ad_program *program = NULL;
  ad_comm *comm;
  assert_int_equal(ad_comm_open_dry(0, ranks, &comm), AD_OK);
  setting.comm = comm;
  assert_int_equal(ad_program_create(ad_ocr(), options, &setting, &program), AD_INVALID);
  assert_says_all(facts);
  ad_comm_close(comm);
}

static void a_decoder_that_does_not_fit_its_mesh_is_refused(void **state) {
  ad_ocr_options options = tiny();
  refused(&options, "tp=3", 3, SAYS_FACTS("model.heads", "tp=3", "4", "tp", "3", "6"));
  refused(&options, "pp=2", 2, SAYS_FACTS("mesh.model", "pp=2"));
  options.decoder.heads = 5;
  refused(&options, "dp=1", 1, SAYS_FACTS("model.heads", "d_model", "48", "5", "4", "6"));
}

/* Backend dry draws no lines: each has as many tokens as it may, its characters and the end. */
static void a_plan_counts_the_characters_of_a_line_and_its_end(void **state) {
  for (int64_t chars = 1; chars <= 5; chars++) {
    for (int64_t microbatches = 1; microbatches <= 3; microbatches++) {
      ad_ocr_options options = tiny();
      ad_program_setting setting = {
          .meshes = (const char *const[]){"dp=1", "dp=1"}, .global_batch = 12, .microbatches = microbatches, .seed = 5};
      ad_program *program = NULL;
      ad_comm *comm;
      int64_t counts[3] = {0}, *counted[] = {counts};
      options.lines.chars = chars;
      assert_int_equal(ad_comm_open_dry(0, 1, &comm), AD_OK);
      setting.comm = comm;
      assert_int_equal(ad_program_create(ad_ocr(), &options, &setting, &program), AD_OK);
      assert_int_equal(ad_ocr()->read(ad_program_own(program), 0, AD_TRAINED_ON, counted), AD_OK);
      for (int64_t m = 0; m < microbatches; m++) assert_int_equal(counts[m], 12 / microbatches * (chars + 1));
      ad_program_destroy(program);
      ad_comm_close(comm);
    }
  }
}

/* Memory of a plan and the inputs of a dumped step are what this list has. */
static void each_microbatch_lists_its_patches_tokens_and_targets(void **state) {
  static const char *const words[] = {"patches", "tokens", "targets"};
  for (size_t microbatches = 1; microbatches <= 4; microbatches++) {
    ad_ocr_options options = tiny();
    ad_program_setting setting = {.meshes = (const char *const[]){"dp=1", "dp=1"},
                                  .global_batch = 12,
                                  .microbatches = (int64_t)microbatches,
                                  .seed = 5};
    ad_program *program = NULL;
    ad_comm *comm;
    char name[64], expected[64];
    assert_int_equal(ad_comm_open_dry(0, 1, &comm), AD_OK);
    setting.comm = comm;
    assert_int_equal(ad_program_create(ad_ocr(), &options, &setting, &program), AD_OK);
    for (size_t i = 0; i < 3 * microbatches; i++) {
      const ad_array *array = ad_program_batch_array(program, i, name, sizeof name);
      snprintf(expected, sizeof expected, "microbatch.%zu.%s", i / 3, words[i % 3]);
      assert_non_null(array);
      assert_string_equal(name, expected);
      assert_true(ad_array_bytes(array) > 0);
    }
    assert_null(ad_program_batch_array(program, 3 * microbatches, name, sizeof name));
    ad_program_destroy(program);
    ad_comm_close(comm);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_decoder_that_does_not_fit_its_mesh_is_refused),
                                     cmocka_unit_test(a_plan_counts_the_characters_of_a_line_and_its_end),
                                     cmocka_unit_test(each_microbatch_lists_its_patches_tokens_and_targets)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
