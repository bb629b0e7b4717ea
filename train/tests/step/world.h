/* Small runs for the tests of training: a recipe as text, ranks as processes, and memory that they share
 * with the test. */
#ifndef TESTS_TRAIN_WORLD_H
#define TESTS_TRAIN_WORLD_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>
#include "addend/train.h"

#define must(call) assert_int_equal((call), AD_OK)

static inline ad_recipe *tiny_recipe(const char *mesh, const char *data, const char *train) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: tiny\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12%s}\nmesh: \"%s\"\ntrain: {seed: 4%s}\n",
           data, mesh, train);
  ad_recipe *recipe = NULL;
  ad_status status = ad_recipe_parse(text, "tiny.yaml", NULL, 0, &recipe);
  if (status) fail_msg("%s", ad_last_error());
  return recipe;
}

static inline void *shared_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  return memory;
}

/* Runs `function` on `ranks` ranks; *out gets the first error message. */
static inline ad_status launch(int64_t ranks, int (*function)(ad_comm *, void *), void *context,
                               ad_launch_result *out) {
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = function, .context = context};
  return ad_launch(&options, out);
}

/* Use this in a rank, where assertions do not work: a failed call ends the rank with its message. */
#define RANK_MUST(comm, call)                                  \
  do {                                                         \
    ad_status rank_must_status = (call);                       \
    if (rank_must_status) {                                    \
      ad_comm_fail((comm), rank_must_status, ad_last_error()); \
      return 1;                                                \
    }                                                          \
  } while (0)

#endif
