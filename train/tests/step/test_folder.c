/* Tests what a training may do in a folder that an earlier run left: one row for each state of the folder, on both sides
 * of every number that is compared; and which files --overwrite removes. No run is trained. */
#include "says.h"
#include "world.h"

#include <dirent.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/memory.h"
#include "step/folder.h"

static char folder[64];

static const char *in_folder(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-folder-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  char command[96];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

static void write_file(const char *name, const char *text) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void make_inside(const char *name) { assert_int_equal(mkdir(in_folder(name), 0777), 0); }
static int is_there(const char *name) { return !access(in_folder(name), F_OK); }

/* A recipe of this many steps. */
static ad_recipe *recipe_of(int64_t steps, const char *lr) {
  char train[64];
  snprintf(train, sizeof train, ", global_batch: 4, warmup: 0, steps: %lld, lr: %s", (long long)steps, lr);
  return tiny_recipe("dp=2", "", train);
}

/* ---- what an earlier run left ---- */

typedef struct left {
  int64_t lines, total;                   /* lines of metrics.jsonl; steps of run.json, 0: there is no run.json */
  int64_t checkpoint;                     /* -1: there is none */
  int has_weights, is_finished, is_other; /* is_other: run.json has a recipe with another learning rate */
} left;

static void write_metrics(int64_t lines) {
  FILE *file = fopen(in_folder("metrics.jsonl"), "w");
  assert_non_null(file);
  for (int64_t i = 0; i < lines; i++) fprintf(file, "{\"step\":%lld}\n", (long long)i);
  fclose(file);
}

static void write_run(const left *of) {
  char *text;
  ad_recipe *recipe = recipe_of(of->total, of->is_other ? "0.5" : "0.01");
  must(ad_recipe_print(recipe, &text));
  json_t *run = json_pack("{s:I, s:s}", "steps", (json_int_t)of->total, "recipe", text);
  if (of->is_finished) json_object_set_new(run, "finished", json_string("2026-01-01T00:00:00Z"));
  assert_int_equal(json_dump_file(run, in_folder("run.json"), 0), 0);
  json_decref(run);
  ad_release(text);
  ad_recipe_destroy(recipe);
}

static void leave(const left *of) {
  char name[64];
  if (of->lines) write_metrics(of->lines);
  if (of->total) write_run(of);
  if (of->has_weights) write_file("weights.safetensors", "");
  if (of->checkpoint < 0) return;
  make_inside("checkpoints");
  snprintf(name, sizeof name, "checkpoints/step-%lld", (long long)of->checkpoint);
  make_inside(name);
}

/* ---- may a training begin, and from where ---- */

/* What a refusal advises beside its numbers. */
enum { MORE_STEPS = 1 /* a larger train.steps */, OWN_WEIGHTS = 2 /* model.weights of this run */ };

/* A refusal: the numbers of its message in their order; NULL: there is none. */
typedef struct refusal {
  const char *numbers;
  int advises;
} refusal;

/* A folder, and what a training of ten steps does with it. */
typedef struct row {
  const char *name;
  left left;
  refusal begins, resumes;
  int64_t is_over, finished; /* what a resumed training finds */
} row;

static const row rows[] = {
    {"nothing", {0, 0, -1, 0, 0, 0}, {0}, {0}, 0, 0},
    {"no step yet", {0, 10, -1, 0, 0, 0}, {0}, {0}, 0, 0},
    {"one step", {1, 10, -1, 0, 0, 0}, {"1 10", 0}, {0}, 0, 0},
    {"one step of one, no weights", {1, 1, -1, 0, 0, 0}, {"1 1", 0}, {0}, 0, 0},
    {"one step of one", {1, 1, -1, 1, 1, 0}, {"1", OWN_WEIGHTS}, {"1", OWN_WEIGHTS}, 0, 1},
    {"a checkpoint of no step", {0, 10, 0, 0, 0, 0}, {"0 10 0", 0}, {0}, 0, 0},
    {"a checkpoint of one step", {1, 10, 1, 0, 0, 0}, {"1 10 1", 0}, {0}, 0, 0},
    {"weights alone", {0, 0, -1, 1, 0, 0}, {"0 10", OWN_WEIGHTS}, {"0 10", OWN_WEIGHTS}, 0, 0},
    {"nine of ten", {9, 10, -1, 1, 0, 0}, {"9 10", OWN_WEIGHTS}, {"9 10", OWN_WEIGHTS}, 0, 0},
    {"ten of ten", {10, 10, -1, 1, 1, 0}, {"10", OWN_WEIGHTS}, {0}, 1, 10},
    {"ten of ten, not said to be finished", {10, 10, -1, 1, 0, 0}, {"10", OWN_WEIGHTS}, {0}, 1, 0},
    {"ten of ten, without weights", {10, 10, -1, 0, 1, 0}, {"10 10", 0}, {0}, 0, 0},
    {"ten of ten of another recipe", {10, 10, -1, 1, 1, 1}, {"10", OWN_WEIGHTS}, {"10", OWN_WEIGHTS}, 0, 10},
    {"eleven of eleven", {11, 11, -1, 1, 1, 0}, {"11", OWN_WEIGHTS}, {"11", OWN_WEIGHTS}, 0, 11},
    {"more steps in the checkpoint", {4, 10, 5, 0, 0, 0}, {"5 10 5", 0}, {0}, 0, 0},
    {"fewer steps in the checkpoint", {7, 10, 5, 0, 0, 0}, {"7 10 5", 0}, {0}, 0, 0},
    {"a checkpoint of nine", {9, 10, 9, 0, 0, 0}, {"9 10 9", 0}, {0}, 0, 0},
    {"a checkpoint of the last step", {10, 10, 10, 0, 0, 0}, {"10 10 10", MORE_STEPS}, {0}, 0, 0},
    {"a checkpoint of eleven", {11, 11, 11, 0, 0, 0}, {"11 11 11", MORE_STEPS}, {0}, 0, 0},
    {"finished, a checkpoint of five", {10, 10, 5, 1, 1, 0}, {"10 5", MORE_STEPS}, {0}, 1, 10},
    {"killed, with weights of before", {10, 10, 5, 1, 0, 0}, {"10 5", 0}, {0}, 0, 0},
    {"finished, a checkpoint of ten", {10, 10, 10, 1, 1, 0}, {"10 10", MORE_STEPS}, {0}, 0, 10},
    {"eleven, a checkpoint of five", {11, 11, 5, 1, 1, 0}, {"11 5", 0}, {"11 10 11", MORE_STEPS}, 0, 11},
    {"eleven, a checkpoint of ten", {11, 11, 10, 1, 1, 0}, {"11 10", MORE_STEPS}, {"11 10 11", MORE_STEPS}, 0, 11},
    {"eleven, a checkpoint of eleven", {11, 11, 11, 1, 1, 0}, {"11 11", MORE_STEPS}, {0}, 0, 11},
    {"eleven, a checkpoint of none", {11, 11, 0, 1, 1, 0}, {"11 0", 0}, {"11 10 11", MORE_STEPS}, 0, 11},
    {"eleven, killed", {11, 11, 5, 1, 0, 0}, {"11 5", 0}, {0}, 0, 0},
    {"eleven, without weights", {11, 11, 5, 0, 1, 0}, {"11 11 5", 0}, {0}, 0, 0},
};

/* Copies the numbers that stand alone in a message; each must agree with the word "step" or "steps" after it. */
static void numbers_of(const char *message, char *numbers) {
  for (const char *at = message; *at; at++) {
    size_t digits = strspn(at, "0123456789");
    if (!digits || at == message || at[-1] != ' ') continue;
    sprintf(strchr(numbers, 0), "%s%.*s", *numbers ? " " : "", (int)digits, at);
    const char *after = at + digits;
    if (!strncmp(after, " step", 5) && (after[5] == 's') != (digits != 1 || *at != '1')) fail_msg("%s", message);
    at = after - 1;
  }
}

/* Checks how a training that begins or resumes ends. */
static void ends_with(const ad_recipe *recipe, const row *of, int resumes) {
  const refusal *expected = resumes ? &of->resumes : &of->begins;
  ad_train_options options = {.size = sizeof options, .folder = folder, .resume = resumes};
  ad_status status = ad_run_folder_check(recipe, &options);
  const char *message = status ? ad_last_error() : "accepted";
  char numbers[128] = "", weights[128];
  snprintf(weights, sizeof weights, "model.weights=%s/weights.safetensors", folder);
  if (status) numbers_of(message, numbers);
  int advises = (strstr(message, "train.steps") ? MORE_STEPS : 0) | (strstr(message, weights) ? OWN_WEIGHTS : 0);
  if (status != (expected->numbers ? AD_INVALID : AD_OK) || advises != expected->advises ||
      strcmp(numbers, expected->numbers ? expected->numbers : "") != 0)
    fail_msg("%s, %s: %s", of->name, resumes ? "resumed" : "begun", message);
  if (status) says_or_fail(says_wrong(message, SAYS_FACTS(folder), __FILE__, __func__), __FILE__, __LINE__);
}

static void an_earlier_run_is_kept_or_resumes(void **state) {
  ad_recipe *recipe = recipe_of(10, "0.01");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    ad_resumption found;
    assert_int_equal(make_folder(NULL), 0);
    leave(&rows[i].left);
    ends_with(recipe, &rows[i], 0);
    ends_with(recipe, &rows[i], 1);
    must(ad_run_folder_resumption(recipe, folder, &found));
    if (found.newest != rows[i].left.checkpoint || found.is_over != rows[i].is_over ||
        found.finished != rows[i].finished)
      fail_msg("%s: newest %lld, over %lld, finished %lld", rows[i].name, (long long)found.newest,
               (long long)found.is_over, (long long)found.finished);
    assert_int_equal(remove_folder(NULL), 0);
  }
  ad_recipe_destroy(recipe);
}

/* ---- what prevents new files ---- */

static ad_status check(const ad_train_options *options) {
  ad_recipe *recipe = recipe_of(10, "0.01");
  ad_status status = ad_run_folder_check(recipe, options);
  ad_recipe_destroy(recipe);
  return status;
}

/* A folder in place of a result is refused before anything is trained, also with --overwrite, which removes files. */
static void a_folder_in_place_of_a_result_is_refused(void **state) {
  static const char *const results[] = {"weights.safetensors", "report.html",   "trace.json",    "run.json",
                                        "result.json",         "metrics.jsonl", "samples.jsonl", "validation.jsonl"};
  for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
    ad_train_options options = {.size = sizeof options, .folder = folder, .overwrite = 1};
    make_inside(results[i]);
    assert_int_equal(check(&options), AD_IO);
    assert_facts(ad_last_error(), in_folder(results[i]));
    options.overwrite = 0;
    if (i != 0 && strcmp(results[i], "metrics.jsonl")) assert_int_equal(check(&options), AD_IO);
    assert_int_equal(rmdir(in_folder(results[i])), 0);
    must(check(&options));
  }
  ad_train_options options = {.size = sizeof options, .folder = folder};
  assert_int_equal(mkfifo(in_folder("trace.json"), 0600), 0);  // it is no regular file: only --overwrite replaces it
  assert_int_equal(check(&options), AD_IO);
  options.overwrite = 1;
  must(check(&options));
}

static void checkpoints_must_be_a_folder_of_the_run(void **state) {
  ad_train_options options = {.size = sizeof options, .folder = folder};
  for (options.overwrite = 0; options.overwrite < 2; options.overwrite++) {
    write_file("checkpoints", "");
    assert_int_equal(check(&options), AD_INVALID);
    assert_facts(ad_last_error(), in_folder("checkpoints"));
    assert_int_equal(unlink(in_folder("checkpoints")), 0);
    assert_int_equal(symlink("/tmp", in_folder("checkpoints")), 0);
    assert_int_equal(check(&options), AD_INVALID);
    assert_facts(ad_last_error(), in_folder("checkpoints"));
    assert_int_equal(unlink(in_folder("checkpoints")), 0);
  }
}

static void a_dump_is_replaced_only_with_its_run(void **state) {
  ad_train_options options = {.size = sizeof options, .folder = folder, .dumps = 1, .dump_step = 3};
  make_inside("dump-2");
  must(check(&options));  // of another step
  make_inside("dump-3");
  assert_int_equal(check(&options), AD_INVALID);
  assert_facts(ad_last_error(), in_folder("dump-3"), "--overwrite");
  options.dumps = 0;
  must(check(&options));
  options.dumps = options.overwrite = 1;
  must(check(&options));
  make_inside("dump-3/notes");  // no name of a dump's file
  must(check(&options));
  make_inside("dump-3/rank00000.sum.safetensors");
  assert_int_equal(check(&options), AD_INVALID);
  assert_facts(ad_last_error(), in_folder("dump-3/rank00000.sum.safetensors"));
  options.dump_step = 2;
  must(check(&options));
  options.dump_step = 4;
  write_file("dump-4", "");  // no folder: it would not be removed
  assert_int_equal(check(&options), AD_INVALID);
  assert_facts(ad_last_error(), in_folder("dump-4"));
  assert_null(strstr(ad_last_error(), "--overwrite"));
}

/* ---- what --overwrite removes ---- */

#define TOKEN ".0123456789abcdef.tmp"
/* Files of an earlier run, by name. */
static const char *const removed[] = {
    "weights.safetensors",
    "report.html",
    "trace.json",
    "run.json",
    "result.json",
    "metrics.jsonl",
    "samples.jsonl",
    "validation.jsonl",
    "config.json",
    "step-1",
    "dump-0/rank00000.sum.safetensors",
    "dump-0/rank00003.addend.m0.safetensors",
    "dump-0/rank00003.addend.m12.safetensors",
    "dump-0/rank123456.sum.safetensors",
    "dump-0/encoder.rank00000.sum.safetensors",
    "dump-0/ranks.at00004.rank00001.addend.m1.safetensors",
    "dump-0/rank00000.sum.safetensors.0123456789abcdef.tmp",
    "dump-12/rank00000.sum.safetensors",
};
/* Files beside them that addend did not write, and that have the same look. */
static const char *const kept[] = {
    "check.json",
    "notes.txt",
    "vocabulary.json",
    "weights.safetensors.bak",
    "dump/rank00000.sum.safetensors",
    "dump-/rank00000.sum.safetensors",
    "dump-1x/rank00000.sum.safetensors",
    "dumps-1/rank00000.sum.safetensors",
    "dump-0/rank0000.sum.safetensors",
    "dump-0/xrank00000.sum.safetensors",
    "dump-0/rank.sum.safetensors",
    "dump-0/rank00000.addend.mx.safetensors",
    "dump-0/rank00000.addend.1.safetensors",
    "dump-0/rank00000.sum.sum.safetensors",
    "dump-0/rank00000.sum.safetensors.bak",
    "dump-0/rank00000.notes.safetensors",
    "dump-0/rank00000.sum.safetensors.mine.tmp",
    "dump-0/sum.safetensors",
};

static void put_all(const char *const *names, size_t count) {
  for (size_t i = 0; i < count; i++) {
    char inside[128];
    snprintf(inside, sizeof inside, "%s", names[i]);
    char *slash = strchr(inside, '/');
    if (slash) *slash = 0, mkdir(in_folder(inside), 0777);
    write_file(names[i], "");
  }
}

static void only_files_of_the_earlier_run_are_removed(void **state) {
  put_all(removed, sizeof removed / sizeof *removed);
  put_all(kept, sizeof kept / sizeof *kept);
  write_file("run.json", "{\"copied\": [\"config.json\", \"../notes\", 5, \".hidden\", \"step-1\"]}");
  write_file(".hidden", "");
  make_inside("checkpoints");
  for (int step = 1; step < 4; step++) {
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%d", step);
    make_inside(name);
    snprintf(name, sizeof name, "checkpoints/step-%d/index.json", step);
    write_file(name, "");
  }
  must(ad_run_folder_clear(folder));
  for (size_t i = 0; i < sizeof removed / sizeof *removed; i++)
    if (is_there(removed[i])) fail_msg("%s is there", removed[i]);
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
    if (!is_there(kept[i])) fail_msg("%s is gone", kept[i]);
  assert_true(is_there(".hidden"));
  assert_false(is_there("checkpoints"));
  assert_false(is_there("dump-12"));
  must(ad_run_folder_clear(folder));  // nothing is left to remove
}

/* What cannot be removed is reported by its path: here a folder has the name of a file. */
static void what_cannot_be_removed_is_reported(void **state) {
  static const char *const names[] = {"weights.safetensors", "validation.jsonl", "config.json"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    write_file("run.json", "{\"copied\": [\"config.json\", \"vocab.json\"]}");
    make_inside(names[i]);
    assert_int_equal(ad_run_folder_clear(folder), AD_IO);
    assert_facts(ad_last_error(), in_folder(names[i]));
    assert_int_equal(rmdir(in_folder(names[i])), 0);
    must(ad_run_folder_clear(folder));
    assert_false(is_there("run.json"));
  }
}

/* Files that a killed run had begun to write go; the others stay. */
static void unfinished_results_are_tidied_away(void **state) {
  put_all(removed, 8);
  write_file("weights.safetensors" TOKEN, "");
  write_file("validation.jsonl" TOKEN, "");
  write_file("notes.txt" TOKEN, "");
  must(ad_run_folder_tidy(folder));
  for (size_t i = 0; i < 8; i++) assert_true(is_there(removed[i]));
  assert_true(is_there("notes.txt" TOKEN));
  assert_false(is_there("weights.safetensors" TOKEN) || is_there("validation.jsonl" TOKEN));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_earlier_run_is_kept_or_resumes),
      cmocka_unit_test_setup_teardown(a_folder_in_place_of_a_result_is_refused, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(checkpoints_must_be_a_folder_of_the_run, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_dump_is_replaced_only_with_its_run, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(only_files_of_the_earlier_run_are_removed, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(what_cannot_be_removed_is_reported, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(unfinished_results_are_tidied_away, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
