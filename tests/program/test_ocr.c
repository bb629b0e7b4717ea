/* Tests the program ocr without running it: a decoder that does not fit its mesh is refused with numbers that would
 * fit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "program/ocr/ocr.h"
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_decoder_that_does_not_fit_its_mesh_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
