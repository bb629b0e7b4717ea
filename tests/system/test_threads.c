/* Tests a program that uses addend from several threads at the same time: each thread has its own last error, and
 * tables that are filled on first use are filled once. Mostly for the thread sanitizer. A rank of a world is one
 * thread. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "addend/layout.h"
#include "addend/mesh.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "addend/helpers.h"

enum { THREADS = 4, ROUNDS = 200, NUMEL = 67 };

typedef struct worker {
  pthread_t thread;
  int number;
  const char *wrong; /* the first thing that was wrong; NULL: none */
} worker;

/* Runs `function` in all threads at the same time; fails with what the first thread found. */
static void run_in_threads(void *(*function)(void *)) {
  worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.number = i};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, function, &workers[i]), 0);
  }
  const char *wrong = NULL;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(workers[i].thread, NULL);
    if (!wrong) wrong = workers[i].wrong;
  }
  if (wrong) fail_msg("%s", wrong);
}

static void *fail_in_own_words(void *context) {
  worker *self = context;
  char text[64], axis[32];
  snprintf(axis, sizeof axis, "axis%d", self->number);
  snprintf(text, sizeof text, "%s=2", axis);
  for (int i = 0; i < ROUNDS && !self->wrong; i++) {
    ad_mesh *mesh = NULL;
    if (ad_mesh_create(text, &mesh) != AD_INVALID) self->wrong = "a mesh with an unknown axis was accepted";
    if (!strstr(ad_last_error(), axis)) self->wrong = "the last error does not name this thread's axis";
  }
  return NULL;
}

static void each_thread_has_its_own_last_error(void **state) { run_in_threads(fail_in_own_words); }

static void *build_and_print(void *context) {
  worker *self = context;
  char text[64], printed[64];
  snprintf(text, sizeof text, "dp_replicate=%d tp=2", self->number + 2);
  for (int i = 0; i < ROUNDS && !self->wrong; i++) {
    ad_mesh *mesh = NULL;
    ad_layout layout;
    if (ad_mesh_create(text, &mesh) || ad_layout_parse(mesh, "dp_replicate=R tp=S1", &layout))
      self->wrong = "a mesh or layout was refused";
    else if (strcmp(ad_layout_print(&layout, printed, sizeof printed), "dp_replicate=R tp=S1") != 0)
      self->wrong = "a layout prints as another";
    ad_mesh_destroy(mesh);
  }
  return NULL;
}

static void meshes_and_layouts_of_threads_are_apart(void **state) { run_in_threads(build_and_print); }

static void *cast_there_and_back(void *context) {
  worker *self = context;
  double values[NUMEL], back[NUMEL];
  float narrow[NUMEL];
  for (int i = 0; i < NUMEL; i++) values[i] = (float)ad_random_normal(1, (uint64_t)self->number, (uint64_t)i);
  for (int i = 0; i < ROUNDS && !self->wrong; i++) {
    ad_cast(narrow, AD_F32, values, AD_F64, NUMEL);
    ad_cast(back, AD_F64, narrow, AD_F32, NUMEL);
    if (memcmp(values, back, sizeof values) != 0) self->wrong = "f32 values changed on the way through f64";
  }
  return NULL;
}

static void kernels_are_chosen_once_whoever_comes_first(void **state) { run_in_threads(cast_there_and_back); }

static void ignore(void *context, ad_log_level level, const char *message) {}

static void *set_and_log(void *context) {
  for (int i = 0; i < ROUNDS; i++) {
    ad_set_log(ignore, context);
    ad_log(AD_LOG_INFO, "round %d", i);
  }
  return NULL;
}

static void the_log_may_be_set_while_others_log(void **state) {
  ad_set_log(ignore, NULL);
  run_in_threads(set_and_log);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernels_are_chosen_once_whoever_comes_first),
      cmocka_unit_test(each_thread_has_its_own_last_error),
      cmocka_unit_test(meshes_and_layouts_of_threads_are_apart),
      cmocka_unit_test(the_log_may_be_set_while_others_log),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
