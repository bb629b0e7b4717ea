/* Tests that `addend diff` with several threads gives the same document, the same message and the same order as with
 * one. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/diff.h"
#include "addend/safetensors.h"
#include "base/error.h"
#include "solve/known.h"
#include "read/threads.h"
#include "says.h"

static const int numbers[] = {1, 2, 5, 16};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

/* ---- the loop that runs tasks on several threads ---- */

enum { THINGS = 200 };
typedef struct scene {
  atomic_int begun[THINGS], running, most;
  size_t reported, fails, fails_too; /* fails, fails_too: numbers of tasks that fail; THINGS: none fails */
} scene;

static ad_status each(void *context, size_t index) {
  scene *own = context;
  int running = atomic_fetch_add(&own->running, 1) + 1;
  if (running > atomic_load(&own->most)) atomic_store(&own->most, running);
  atomic_fetch_add(&own->begun[index], 1);
  usleep(index % 7 ? 50 : 2000); /* some tasks end long after the tasks behind them */
  atomic_fetch_sub(&own->running, 1);
  return index == own->fails || index == own->fails_too ? ad_fail(AD_INVALID, "thing %zu", index) : AD_OK;
}

static void reported(void *context, size_t index) {
  scene *own = context;
  assert_int_equal(index, own->reported);
  assert_int_equal(atomic_load(&own->begun[index]), 1);
  own->reported++;
}

static void each_thing_is_done_once_and_reported_in_order(void **state) {
  for (int n = 0; n < NUMBERS; n++) {
    scene own = {.fails = THINGS, .fails_too = THINGS};
    assert_int_equal(ad_work_do(&(ad_work){THINGS, each, reported, &own}, numbers[n]), AD_OK);
    assert_int_equal(own.reported, THINGS);
    for (int i = 0; i < THINGS; i++) assert_int_equal(atomic_load(&own.begun[i]), 1);
    assert_true(atomic_load(&own.most) <= numbers[n]);
    assert_true(numbers[n] == 1 || atomic_load(&own.most) > 1);
  }
  assert_int_equal(ad_work_do(&(ad_work){0, each, reported, NULL}, 4), AD_OK);
}

/* Task 7 takes long: it fails after task 8 has failed, and after task 6. */
static void the_first_that_fails_is_what_is_returned(void **state) {
  for (int n = 0; n < NUMBERS; n++)
    for (size_t first = 6; first <= 7; first++) {
      char message[16];
      scene own = {.fails = first, .fails_too = first + 1};
      snprintf(message, sizeof message, "thing %zu", first);
      assert_int_equal(ad_work_do(&(ad_work){THINGS, each, reported, &own}, numbers[n]), AD_INVALID);
      assert_string_equal(ad_last_error(), message);
      assert_int_equal(own.reported, first);
      assert_int_equal(atomic_load(&own.begun[THINGS - 1]), 0);
    }
}

/* ---- dumps with different bugs ---- */

enum { MISTAKES = 9 };
typedef enum mistake { RIGHT, LEFT_OUT, HALF, TWICE, FACTOR, OWN, ANY, TERM, LAST } mistake;

typedef struct ad_job {
  int ranks, microbatches, params, elements;
  int unsummed; /* so many of the last parameters are in no sum */
} ad_job;

static char folder[] = "/tmp/addend_threads_XXXXXX";

/* A pseudo-random number between -1 and 1. */
static float noise(uint64_t seed) {
  uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (float)((double)(z >> 11) * 0x1p-52 - 1);
}

static float addend_of(const ad_job *job, int param, int rank, int microbatch, int element) {
  uint64_t at = (uint64_t)((rank * job->microbatches + microbatch) * job->params + param);
  return noise(at * (uint64_t)job->elements + (uint64_t)element);
}

/* How often the addend of a rank and microbatch counts in the sum of `holder`. */
static double count_of(const ad_job *job, int param, int holder, int rank, int microbatch) {
  switch ((mistake)(param % MISTAKES)) {
    case LEFT_OUT:
      return rank != param % job->ranks;
    case HALF:
      return rank < job->ranks / 2;
    case TWICE:
      return 2;
    case FACTOR:
      return 1 + (param + 0.5) / job->params;
    case OWN:
      return rank == holder;
    case ANY:
      return 1 + 0.5 * noise((uint64_t)(rank * 1000 + microbatch));
    case LAST:
      return microbatch == job->microbatches - 1;
    default:
      return 1;
  }
}

static void make_sum(const ad_job *job, int param, int holder, float *out) {
  for (int i = 0; i < job->elements; i++) {
    double sum = param % MISTAKES == TERM ? 3 * noise((uint64_t)(i + 12345)) : 0;
    for (int rank = 0; rank < job->ranks; rank++)
      for (int m = 0; m < job->microbatches; m++)
        sum += count_of(job, param, holder, rank, m) * addend_of(job, param, rank, m, i);
    out[i] = (float)(sum / job->ranks);
  }
}

static const char *path_of(const ad_job *job, int rank, int microbatch, char *buffer, size_t size) {
  int is_sum = microbatch == job->microbatches;
  snprintf(buffer, size, "%s/%03d.%s%02d.safetensors", folder, rank, is_sum ? "s" : "a", microbatch);
  return buffer;
}

enum { PARAMS_MAX = 40 };

static void write_file(const ad_job *job, int rank, int microbatch, const float *values) {
  char names[PARAMS_MAX][16], mesh[32], number[16], of[16], expect[32], path[128];
  ad_safetensor tensors[PARAMS_MAX];
  ad_safetensors_writer *writer;
  int is_sum = microbatch == job->microbatches;
  const char *metadata[] = {"addend.version",
                            "1",
                            "addend.kind",
                            is_sum ? "sum" : "addend",
                            "addend.mesh",
                            mesh,
                            "addend.rank",
                            number,
                            "addend.expect",
                            expect,
                            "addend.microbatch",
                            of,
                            NULL};
  if (is_sum) metadata[10] = NULL;
  snprintf(mesh, sizeof mesh, "dp=%d fsdp=2", job->ranks / 2);
  snprintf(number, sizeof number, "%d", rank);
  snprintf(of, sizeof of, "%d", microbatch);
  snprintf(expect, sizeof expect, "%.17g", 1.0 / job->ranks);
  int params = is_sum ? job->params - job->unsummed : job->params;
  for (int p = 0; p < params; p++) {
    snprintf(names[p], sizeof names[p], "p%02d", p);
    tensors[p] = (ad_safetensor){.name = names[p], .dtype = AD_F32, .shape = {1, {job->elements}}};
  }
  path_of(job, rank, microbatch, path, sizeof path);
  assert_int_equal(ad_safetensors_create(path, tensors, (size_t)params, metadata, &writer), AD_OK);
  for (int p = 0; p < params; p++) assert_int_equal(ad_safetensors_add(writer, values + p * job->elements), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
}

static void write_dump(const ad_job *job) {
  size_t count = (size_t)job->params * (size_t)job->elements;
  float *sums = malloc(count * sizeof *sums), *values = malloc(count * sizeof *values);
  assert_non_null(sums);
  assert_non_null(values);
  for (int rank = 0; rank < job->ranks; rank++) {
    for (int p = 0; p < job->params; p++)
      if (!rank || p % MISTAKES == OWN) make_sum(job, p, rank, sums + p * job->elements);
    write_file(job, rank, job->microbatches, sums);
    for (int m = 0; m < job->microbatches; m++) {
      for (int p = 0; p < job->params; p++)
        for (int i = 0; i < job->elements; i++) values[p * job->elements + i] = addend_of(job, p, rank, m, i);
      write_file(job, rank, m, values);
    }
  }
  free(sums);
  free(values);
}

static void remove_dump(const ad_job *job) {
  char path[128];
  for (int rank = 0; rank < job->ranks; rank++)
    for (int m = 0; m <= job->microbatches; m++) unlink(path_of(job, rank, m, path, sizeof path));
}

/* ---- documents with one and with several threads ---- */

typedef struct telling {
  int64_t params;
  pthread_t thread;
} telling;

static void progress(void *context, const char *what, int64_t done, int64_t of) {
  telling *own = context;
  char name[16];
  assert_true(pthread_equal(pthread_self(), own->thread));
  if (!strcmp(what, "files")) return;
  snprintf(name, sizeof name, "p%02d", (int)own->params);
  assert_string_equal(what, name);
  assert_int_equal(done, ++own->params);
}

static char *document_with(const ad_job *job, int threads) {
  telling own = {.thread = pthread_self()};
  ad_diff_options options = {.size = sizeof options, .threads = threads, .progress = progress, .context = &own};
  const char *whole[] = {folder};
  char *json = NULL;
  int holds = -1;
  assert_int_equal(ad_diff(whole, 1, &options, &holds, &json), AD_OK);
  assert_int_equal(holds, 0);
  assert_int_equal(own.params, job->params);
  return json;
}

/* Checks that `times` parameters have this kind of verdict. */
static void expect_kind(const char *json, const char *kind, int times) {
  char words[64];
  int found = 0;
  snprintf(words, sizeof words, "\"kind\": \"%s\",\n   \"axis\"", kind);
  for (const char *at = json; (at = strstr(at, words)); at++) found++;
  if (found != times) fail_msg("%d parameters are %s, not %d", found, kind, times);
}

/* Checks that the numbers of threads from numbers[first] on give one document; `kind` and `times` show that the dump
 * has the intended bug. */
static void expect_one_document(const ad_job *job, int first, const char *kind, int times) {
  write_dump(job);
  char *alone = document_with(job, 0);
  expect_kind(alone, kind, times);
  for (int n = first; n < NUMBERS; n++) {
    char *json = document_with(job, numbers[n]);
    assert_string_equal(json, alone);
    free(json);
  }
  free(alone);
  remove_dump(job);
}

static void few_addends_give_the_same_document(void **state) {
  expect_one_document(&(ad_job){6, 2, 40, 30, 0}, 0, "own_only", 4);
}

/* Each parameter is fitted, and later parameters try the counts that earlier ones had. */
static void many_addends_give_the_same_document(void **state) {
  _Static_assert(96 > AD_KNOWN_MANY, "so that what was found of others is tried");
  expect_one_document(&(ad_job){48, 2, 36, 110, 0}, 0, "own_only", 4);
}

/* There are more parameters to fit than fits allowed, so the order decides which are left out. Parameters that the
 * counts of others explain need no fit. */
static void what_is_not_fitted_is_the_same(void **state) {
#if defined(AD_SANITIZED)
  int first = NUMBERS - 1; /* a sanitizer takes half a minute for each document */
#else
  int first = 0;
#endif
  expect_one_document(&(ad_job){64, 16, 36, 1040, 0}, first, "not_fitted", 7);
}

/* ---- errors in parameters ---- */

static void is_refused(const char *reference) {
  const char *whole[] = {folder};
  char first[AD_MESSAGE_MAX] = "";
  for (int n = 0; n < NUMBERS; n++) {
    ad_diff_options options = {.size = sizeof options, .threads = numbers[n], .reference = reference};
    char *json = NULL;
    int holds = -1;
    assert_int_equal(ad_diff(whole, 1, &options, &holds, &json), AD_INVALID);
    assert_null(json);
    if (!n) snprintf(first, sizeof first, "%s", ad_last_error());
    assert_string_equal(ad_last_error(), first);
  }
}

/* The message names these, one after another. */
static void are_in_order(const char *const *names) {
  const char *rest = ad_last_error();
  for (; *names; names++) {
    const char *at = strstr(rest, *names);
    if (!at) {
      fail_msg("%s is not in its place in: %s", *names, ad_last_error());
      return;
    }
    rest = at + 1;
  }
}

static void overwrite(const ad_job *job, int rank, float value) {
  char path[128];
  FILE *file = fopen(path_of(job, rank, 0, path, sizeof path), "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, -(long)sizeof value, SEEK_END), 0);
  assert_int_equal(fwrite(&value, sizeof value, 1, file), 1);
  assert_int_equal(fclose(file), 0);
}

static void files_that_cannot_be_read_are_named_in_order(void **state) {
  const ad_job job = {12, 1, 9, 20, 0};
  const char *const names[] = {"004.a00.safetensors", "p08[19]", "nan", "006.a00.safetensors",
                               "009.a00.safetensors", "p08[19]", "inf", NULL};
  char path[128];
  write_dump(&job);
  overwrite(&job, 4, (float)NAN);
  overwrite(&job, 9, (float)INFINITY);
  assert_int_equal(truncate(path_of(&job, 6, 0, path, sizeof path), 30), 0);
  is_refused(NULL);
  are_in_order(names);
  assert_listed();
  remove_dump(&job);
}

/* The parameter's addends are in no sum that is judged, but their values are checked all the same. */
static void a_value_of_a_parameter_without_a_sum_is_looked_at(void **state) {
  const ad_job job = {12, 2, 9, 20, 2};
  write_dump(&job);
  overwrite(&job, 7, (float)INFINITY);
  is_refused(NULL);
  assert_says("007.a00.safetensors", "p08[19]");
  remove_dump(&job);
}

/* An error that is found only when its parameter is judged. */
static void the_first_parameter_that_fails_is_named(void **state) {
  const ad_job job = {12, 1, 36, 20, 0};
  const ad_safetensor tensors[] = {{.name = "p05", .dtype = AD_F32, .shape = {1, {2}}},
                                   {.name = "p06", .dtype = AD_F32, .shape = {1, {3}}}};
  const float values[3] = {0};
  char path[64];
  ad_safetensors_writer *writer;
  snprintf(path, sizeof path, "%s.reference", folder);
  assert_int_equal(ad_safetensors_create(path, tensors, 2, NULL, &writer), AD_OK);
  for (int i = 0; i < 2; i++) assert_int_equal(ad_safetensors_add(writer, values), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
  write_dump(&job);
  is_refused(path);
  assert_says("p05", "f32 [2]");
  remove_dump(&job);
  assert_int_equal(unlink(path), 0);
}

static int make_folder(void **state) { return !mkdtemp(folder); }
static int remove_folder(void **state) { return rmdir(folder); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_thing_is_done_once_and_reported_in_order),
      cmocka_unit_test(the_first_that_fails_is_what_is_returned),
      cmocka_unit_test(few_addends_give_the_same_document),
      cmocka_unit_test(many_addends_give_the_same_document),
      cmocka_unit_test(what_is_not_fitted_is_the_same),
      cmocka_unit_test(files_that_cannot_be_read_are_named_in_order),
      cmocka_unit_test(a_value_of_a_parameter_without_a_sum_is_looked_at),
      cmocka_unit_test(the_first_parameter_that_fails_is_named),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
