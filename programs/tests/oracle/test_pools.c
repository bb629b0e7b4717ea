/* Tests three steps of `decompose` against PyTorch (generate_pools.py): a check's dump (audit/docs/dumps.md), on pools
 * of several sizes, is compared with a fixture that was written from the documents alone: initial values, batches,
 * masks, the sources and their ascent, losses, gradients, norms, clips and updates. Only this test sees what a
 * distributed run shares with its reference. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "addend/check.h"
#include "numbers.h"

enum { STEPS = 3, PATH = 256, NAME = 192 };
/* The bounds of training.h. A parameter whose numbers are all tiny beside others of its kind is measured relative to
 * those. */
static const double bound = 1e-12, smallest_scale = 1e-6;

#define must(call) assert_int_equal((call), AD_OK)

/* A fixture, and the dump that is compared with it. */
typedef struct judged {
  const char *name, *mesh, *folder;
  ad_safetensors *expected;
  double worst;
} judged;

static ad_safetensors *opened(const judged *of, const char *file) {
  char path[PATH];
  ad_safetensors *out;
  snprintf(path, sizeof path, "%s/%s.safetensors", of->folder, file);
  must(ad_safetensors_open(path, &out));
  return out;
}

static double *as_numbers(const ad_safetensor *tensor, size_t *n) {
  size_t size = tensor->dtype == AD_F64 ? sizeof(double) : sizeof(int32_t);
  *n = tensor->bytes / size;
  double *out = calloc(*n + 1, sizeof *out);
  assert_non_null(out);
  for (size_t i = 0; i < *n; i++)
    out[i] = tensor->dtype == AD_F64 ? ((const double *)tensor->data)[i] : ((const int32_t *)tensor->data)[i];
  return out;
}

/* The largest magnitude in all tensors whose names begin with `kind`. */
static double largest_of(const judged *of, const char *kind) {
  double most = 0;
  for (size_t i = 0; i < ad_safetensors_count(of->expected); i++) {
    const ad_safetensor *tensor = ad_safetensors_at(of->expected, i);
    size_t n;
    if (strncmp(tensor->name, kind, strlen(kind)) != 0) continue;
    double *values = as_numbers(tensor, &n);
    most = fmax(most, largest(values, n));
    free(values);
  }
  return most;
}

static void judge_numbers(judged *of, const char *name, const double *found, const double *expected, size_t n,
                          double scale) {
  double size = fmax(largest(expected, n), smallest_scale * scale);
  double difference = worst_difference(found, expected, n), error = difference == 0 ? 0 : difference / size;
  if (!(error < bound)) fail_msg("%s, %s: %s is off by %.3g", of->name, of->mesh, name, error);
  of->worst = fmax(of->worst, error);
}

static void judge_tensor(judged *of, const char *name, const ad_safetensor *found, double scale) {
  const ad_safetensor *expected = ad_safetensors_find(of->expected, name);
  size_t n, count;
  if (!expected) fail_msg("%s, %s: %s is not expected", of->name, of->mesh, name);
  assert_true(ad_shape_equal(&found->shape, &expected->shape) && found->dtype == expected->dtype);
  double *values = as_numbers(found, &n), *right = as_numbers(expected, &count);
  assert_int_equal(n, count);
  judge_numbers(of, name, values, right, n, scale);
  free(values);
  free(right);
}

static size_t expected_of(const judged *of, const char *kind) {
  size_t count = 0;
  for (size_t i = 0; i < ad_safetensors_count(of->expected); i++)
    count += !strncmp(ad_safetensors_at(of->expected, i)->name, kind, strlen(kind));
  return count;
}

/* Checks that the file has all tensors that are expected of its kind, and no others. */
static void judge_file(judged *of, const char *file, const char *kind) {
  ad_safetensors *found = opened(of, file);
  char name[NAME];
  double scale = largest_of(of, kind);
  assert_int_equal(ad_safetensors_count(found), expected_of(of, kind));
  for (size_t i = 0; i < ad_safetensors_count(found); i++) {
    const ad_safetensor *tensor = ad_safetensors_at(found, i);
    snprintf(name, sizeof name, "%s%s", kind, tensor->name);
    judge_tensor(of, name, tensor, scale);
  }
  ad_safetensors_close(found);
}

/* Checks what the metadata of a step's gradients say of the step. */
static void judge_reported(judged *of, int step) {
  char file[64], kind[32];
  snprintf(file, sizeof file, "step-%d.gradients", step);
  snprintf(kind, sizeof kind, "%d.told:", step);
  ad_safetensors *found = opened(of, file);
  for (size_t i = 0; i < ad_safetensors_count(of->expected); i++) {
    const ad_safetensor *expected = ad_safetensors_at(of->expected, i);
    if (strncmp(expected->name, kind, strlen(kind)) != 0) continue;
    const char *text = ad_safetensors_metadata(found, expected->name + strlen(kind));
    assert_non_null(text);
    double value = strtod(text, NULL), right;
    memcpy(&right, expected->data, sizeof right);
    judge_numbers(of, expected->name, &value, &right, 1, 0);
  }
  ad_safetensors_close(found);
}

static void judge_step(judged *of, int step) {
  static const char *const kinds[] = {"inputs", "weights", "states", "gradients"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    char file[64], kind[32];
    snprintf(file, sizeof file, "step-%d.%s", step, kinds[i]);
    snprintf(kind, sizeof kind, "%d.%s:", step, kinds[i]);
    judge_file(of, file, kind);
  }
  judge_reported(of, step);
}

static void check(const judged *of) {
  char path[PATH];
  const char *sets[] = {of->mesh, "precision={param: f64, compute: f64}"};
  ad_recipe *recipe;
  char *document;
  int holds = 0;
  snprintf(path, sizeof path, FIXTURES "%s/recipe.yaml", of->name);
  must(ad_recipe_read(path, sets, 2, &recipe));
  ad_check_options options = {.size = sizeof options, .steps = STEPS, .dtype = AD_F64, .dump = of->folder};
  must(ad_check(recipe, &options, &holds, &document));
  assert_true(holds);
  free(document);
  ad_recipe_destroy(recipe);
}

static void remove_folder(const char *folder) {
  char command[PATH];
  snprintf(command, sizeof command, "rm -r '%s'", folder);
  assert_int_equal(system(command), 0);
}

static void steps_on(const char *name, const char *mesh) {
  char folder[] = "/tmp/addend-pools-XXXXXX", path[PATH];
  judged of = {.name = name, .mesh = mesh, .folder = mkdtemp(folder)};
  assert_non_null(of.folder);
  snprintf(path, sizeof path, FIXTURES "%s/expected.safetensors", name);
  must(ad_safetensors_open(path, &of.expected));
  check(&of);
  judge_file(&of, "constants", "constants:");
  for (int step = 0; step < STEPS; step++) judge_step(&of, step);
  printf("%s, %s: worst error %.1e\n", name, mesh, of.worst);
  ad_safetensors_close(of.expected);
  remove_folder(folder);
}

static void every_default_is_that_of_the_manual_page(void **state) {
  steps_on("pools-plain", "mesh={ci: dp=1, blocks: block=1 dp=1, adv: dp=1}");
  steps_on("pools-plain", "mesh={ci: dp=2, blocks: block=1 dp=3, adv: dp=1}");
}

static void everything_at_once_is_as_in_pytorch(void **state) {
  steps_on("pools-everything", "mesh={ci: dp=1, blocks: block=1 dp=1, adv: dp=1}");
  steps_on("pools-everything", "mesh={ci: dp=2, blocks: block=2 dp=2, adv: dp=3}");
}

static void sources_that_samples_share_are_as_in_pytorch(void **state) {
  steps_on("pools-shared-sigmoid", "mesh={ci: dp=1, blocks: block=1 dp=1, adv: dp=1}");
  steps_on("pools-shared-sigmoid", "mesh={ci: dp=3, blocks: block=2 dp=1, adv: dp=2}");
  steps_on("pools-shared-adam", "mesh={ci: dp=1, blocks: block=1 dp=1, adv: dp=1}");
  steps_on("pools-shared-adam", "mesh={ci: dp=1, blocks: block=3 dp=1, adv: dp=2}");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_default_is_that_of_the_manual_page),
      cmocka_unit_test(everything_at_once_is_as_in_pytorch),
      cmocka_unit_test(sources_that_samples_share_are_as_in_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
