/* Tests a whole training: the files that it writes, and how it ends early. */
#include "ranks.h"
#include "says.h"
#include "world.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "files/file.h"
#include "step/validation.h"

enum { RANKS = 2, STEPS = 5 };

typedef struct job {
  const ad_recipe *recipe;
  const char *folder;
  int interrupts;
  char (*messages)[256]; /* one message a rank, in shared memory; "" if the training succeeded */
  int *progressed, *turned;
  rlim_t room; /* limit on the bytes of each file that the first rank writes; 0: none */
} job;

static void count_progress(void *context, const ad_step_report *report, int64_t steps, double tokens_per_second,
                           double seconds_left) {
  const job *j = context;
  int sane = steps == STEPS && tokens_per_second > 0 && seconds_left >= 0 && report->loss > 0;
  *j->progressed += sane;
}

static void count_turns(void *context, const char *what, const char *its_folder, int64_t steps) {
  const job *j = context;
  *j->turned += !strcmp(what, "train") && !strcmp(its_folder, j->folder) && steps == STEPS;
}

/* Acts as a disk that is full as soon as a file has this many bytes. */
static void limit_files(rlim_t bytes) {
  struct rlimit limit;
  signal(SIGXFSZ, SIG_IGN);
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  if (setrlimit(RLIMIT_FSIZE, &limit)) abort();
}

static int train(ad_comm *comm, void *context) {
  job *j = context;
  int64_t rank = ad_comm_rank(comm);
  ad_train_options options = {
      .size = sizeof options, .folder = j->folder, .progress = count_progress, .turns_to = count_turns};
  options.context = context;
  if (j->room && rank == 0) limit_files(j->room);
  if (j->interrupts && rank == 1) ad_train_interrupt();
  ad_status status = ad_train(comm, j->recipe, &options);
  if (status) snprintf(j->messages[rank], sizeof j->messages[rank], "%s: %s", ad_status_name(status), ad_last_error());
  return 0;
}

static char folder[64], file[128];

static const char *in_folder(const char *name) {
  snprintf(file, sizeof file, "%s/%s", folder, name);
  return file;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-train-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  static const char *const names[] = {
      "deep er/metrics.jsonl", "deep er/trace.json",       "deep er/run.json",
      "deep er/report.html",   "deep er/check.json",       "deep er/weights.safetensors",
      "deep er/.lock",         "deep er/validation.jsonl", "blocked"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_folder(names[i]));
  rmdir(in_folder("deep er"));
  return rmdir(folder);
}

static job run_with(const char *at, int interrupts, rlim_t room) {
  char where[128];
  snprintf(where, sizeof where, "%s", in_folder(at));
  ad_recipe *recipe =
      tiny_recipe("dp=2", ", validation: 0.1", ", global_batch: 4, microbatches: 2, steps: 5, lr: 1e-2");
  job j = {
      recipe, where, interrupts, shared_memory(RANKS * 256), shared_memory(sizeof(int)), shared_memory(sizeof(int)),
      room};
  ad_launch_result result = {.size = sizeof result};
  ad_status status = launch(RANKS, train, &j, &result);
  if (status) fail_msg("%s", result.message);
  ad_recipe_destroy(recipe);
  return j;
}

static job run_in(const char *at, int interrupts) { return run_with(at, interrupts, 0); }

static void release(job *j) {
  munmap(j->messages, RANKS * 256);
  munmap(j->progressed, sizeof(int));
  munmap(j->turned, sizeof(int));
}

static void put(const char *name, const char *text) {
  FILE *out = fopen(in_folder(name), "w");
  assert_non_null(out);
  fputs(text, out);
  fclose(out);
}

static char *whole_file(const char *name) {
  FILE *in = fopen(in_folder(name), "r");
  assert_non_null(in);
  char *text = calloc(1, 1 << 22);
  size_t size = fread(text, 1, (1 << 22) - 1, in);
  assert_true(size < (1 << 22) - 1);
  fclose(in);
  return text;
}

static int metrics_lines(void) {
  FILE *in = fopen(in_folder("deep er/metrics.jsonl"), "r");
  char line[2048];
  int count = 0;
  assert_non_null(in);
  for (; fgets(line, sizeof line, in); count++) {
    json_t *object = json_loads(line, 0, NULL);
    assert_non_null(object);
    assert_int_equal(json_integer_value(json_object_get(object, "step")), count);
    assert_true(json_real_value(json_object_get(object, "loss")) > 1);
    assert_int_equal(json_integer_value(json_object_get(object, "tokens")), 4 * 12);
    assert_true(json_number_value(json_object_get(object, "tokens_per_second")) > 0);
    assert_int_equal(json_object_get(object, "validation_before") != NULL, count == 0);
    double waited = json_number_value(json_object_get(object, "wait_seconds"));
    double reducing = json_number_value(json_object_get(object, "reduction_seconds"));
    assert_true(waited >= 0 && reducing > 0 && waited <= reducing + 1e-6);  // written times are rounded to microseconds
    json_decref(object);
  }
  fclose(in);
  return count;
}

static int events_of(const json_t *trace, int rank, const char *name, const char *phase) {
  const json_t *events = json_object_get(trace, "traceEvents");
  int count = 0;
  for (size_t i = 0; i < json_array_size(events); i++) {
    const json_t *event = json_array_get(events, i);
    const char *its_name = json_string_value(json_object_get(event, "name"));
    count += json_integer_value(json_object_get(event, "pid")) == rank && !strncmp(its_name, name, strlen(name)) &&
             !strcmp(json_string_value(json_object_get(event, "ph")), phase);
  }
  return count;
}

/* Trace times count in microseconds from the start of the training; a time of day would be far larger. */
static void times_count_from_the_begin(const json_t *trace) {
  const json_t *events = json_object_get(trace, "traceEvents");
  for (size_t i = 0; i < json_array_size(events); i++) {
    const json_t *time = json_object_get(json_array_get(events, i), "ts");
    if (time) assert_true(json_number_value(time) > 0 && json_number_value(time) < 1e6 * RANK_HANGS);
  }
}

static void the_trace_has_all_ranks(void) {
  json_t *trace = json_load_file(in_folder("deep er/trace.json"), 0, NULL);
  assert_non_null(trace);
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(events_of(trace, rank, "forward", "X"), 2 * STEPS);
    assert_int_equal(events_of(trace, rank, "backward", "X"), 2 * STEPS);
    assert_int_equal(events_of(trace, rank, "bucket", "b"), STEPS);
    assert_int_equal(events_of(trace, rank, "bucket", "e"), STEPS);
    assert_int_equal(events_of(trace, rank, "wait for bucket", "X"), STEPS);
    static const char *const once[] = {"step", "read batch", "loss and norm", "update"};
    for (size_t i = 0; i < 4; i++) assert_int_equal(events_of(trace, rank, once[i], "X"), STEPS);
  }
  times_count_from_the_begin(trace);
  json_decref(trace);
}

static const char check_json[] =
    "{\"recipe\":\"tiny\",\"world\":3,\"mesh\":\"dp=3\",\"dtype\":\"f64\",\"params\":[{\"name\":\"blocks.0.<wq>\","
    "\"layout\":\"dp_shard=R\",\"reduced_over\":\"dp_shard\",\"ratio\":1.0,\"max_rel_err\":2e-16,\"bound\":1e-12,"
    "\"replicas_equal\":true,\"cause\":null}],\"summary\":{\"pass\":true},\"mutants\":[{\"name\":\"local-count\","
    "\"killed_by\":\"number\",\"param\":\"w\",\"ratio\":0.5,\"cause\":null,\"message\":null}],\"survivors\":0}";

static void run_json_says(const char *key, const char *expected) {
  json_t *run = json_load_file(in_folder("deep er/run.json"), 0, NULL);
  char *value = json_dumps(json_object_get(run, key), JSON_ENCODE_ANY | JSON_COMPACT);
  assert_string_equal(value ? value : "", expected);
  free(value);
  json_decref(run);
}

static void run_json_reports_the_run(void) {
  run_json_says("name", "\"tiny\"");
  run_json_says("kind", "\"gpt\"");
  run_json_says("backend", "\"shm\"");
  run_json_says("ranks", "2");
  run_json_says("mesh", "\"dp=2\"");
  run_json_says("steps", "5");
  json_t *run = json_load_file(in_folder("deep er/run.json"), 0, NULL);
  assert_non_null(strstr(json_string_value(json_array_get(json_object_get(run, "command"), 0)), "test_step_train"));
  assert_non_null(strstr(json_string_value(json_object_get(run, "recipe")), "global_batch: 4"));
  assert_true(json_number_value(json_object_get(run, "flops_per_step")) > 0);
  assert_true(json_is_string(json_object_get(run, "finished")));
  assert_int_equal(json_array_size(json_object_get(run, "starts")), 1);
  json_decref(run);
}

static void training_writes_metrics_trace_and_report(void **state) {
  assert_int_equal(mkdir(in_folder("deep er"), 0777), 0);
  put("deep er/check.json", check_json);
  job j = run_in("deep er", 0);
  for (int rank = 0; rank < RANKS; rank++) assert_string_equal(j.messages[rank], "");
  assert_int_equal(*j.progressed, STEPS);
  assert_int_equal(*j.turned, 1);
  assert_int_equal(metrics_lines(), STEPS);
  the_trace_has_all_ranks();
  run_json_reports_the_run();
  char *page = whole_file("deep er/report.html");
  assert_non_null(strstr(page, "blocks.0.\\u003cwq>"));
  assert_non_null(strstr(page, "local-count"));
  assert_non_null(strstr(page, "\"pass\":true"));
  assert_non_null(strstr(page, "</html>"));
  assert_null(strstr(page, "http-equiv=\"refresh"));
  free(page);
  release(&j);
}

static void a_folder_that_cannot_be_made_is_an_error_on_all_ranks(void **state) {
  put("blocked", "a file stands here");
  job j = run_in("blocked/run", 0);
  for (int rank = 0; rank < RANKS; rank++) {
    assert_text_says(j.messages[rank], "io", in_folder("blocked"));
  }
  assert_int_equal(*j.progressed, 0);
  release(&j);
}

/* The limit leaves room for five steps, but not for what a run reserves for its first minute. */
static void a_disk_that_will_be_full_soon_shows_before_the_first_step(void **state) {
  job j = run_with("deep er", 0, 1 << 15);
  for (int rank = 0; rank < RANKS; rank++) {
    assert_text_says(j.messages[rank], "io", in_folder("deep er/metrics.jsonl"));
  }
  assert_int_equal(*j.progressed, 0);
  release(&j);
}

static void an_interrupt_of_one_rank_stops_all_after_the_step_with_files_written(void **state) {
  job j = run_in("deep er", 1);
  for (int rank = 0; rank < RANKS; rank++) {
    assert_text_says(j.messages[rank], "step 0", "5");
  }
  assert_int_equal(metrics_lines(), 1);
  run_json_says("finished", "");
  run_json_says("steps", "5");
  char *page = whole_file("deep er/report.html");
  assert_non_null(strstr(page, "\"metrics\":[{\"step\":0,"));
  assert_null(strstr(page, "{\"step\":1,"));
  free(page);
  // the recipe asks for no checkpoints
  assert_int_equal(access(in_folder("deep er/checkpoints/step-1/index.json"), F_OK), 0);
  must(ad_folder_remove(in_folder("deep er/checkpoints/step-1")));
  must(ad_folder_remove(in_folder("deep er/checkpoints")));
  release(&j);
}

/* ---- when things are due ---- */

enum { STEPS_MAX = 16 };

/* What a training reported, by step: bits of steps. Bit 0 is the time before the first step. */
typedef struct heard {
  unsigned progressed, evaluated, compared;
  int64_t steps, asks_after; /* steps of the run; the step after which a checkpoint is asked for, -1: none */
  double last_seconds_left;
  int wrong_rate;
} heard;

static void hear_progress(void *context, const ad_step_report *report, int64_t steps, double tokens_per_second,
                          double seconds_left) {
  heard *h = context;
  h->progressed |= 2U << report->step;
  h->steps = steps;
  h->last_seconds_left = seconds_left;
  if (report->step == h->asks_after) ad_train_checkpoint();
  if (report->step > 1) return;  // later numbers are smoothed
  double rate = (double)report->count / report->seconds, left = (double)(steps - 1 - report->step) * report->seconds;
  h->wrong_rate |= fabs(tokens_per_second - rate) > 1e-9 * rate || fabs(seconds_left - left) > 1e-9 * left;
}

static void hear_evaluated(void *context, int64_t step, const ad_evaluation *evaluation) {
  if (evaluation->samples == 5 && evaluation->loss > 1) ((heard *)context)->evaluated |= 1U << (step + 1);
}

static void hear_compared(void *context, int64_t step, const ad_validation_change *since_first,
                          const ad_validation_change *since_best) {
  int is_right = since_first->since == AD_BEFORE_FIRST_STEP && since_best->since >= AD_BEFORE_FIRST_STEP &&
                 since_best->since < step;
  if (is_right) ((heard *)context)->compared |= 1U << (step + 1);
}

/* The steps whose lines have this key, as bits. */
static unsigned lines_with(const char *key) {
  unsigned found = 0;
  char line[2048];
  FILE *in = fopen(in_folder("metrics.jsonl"), "r");
  assert_non_null(in);
  while (fgets(line, sizeof line, in)) {
    json_t *object = json_loads(line, 0, NULL);
    if (json_object_get(object, key)) found |= 2U << json_integer_value(json_object_get(object, "step"));
    json_decref(object);
  }
  fclose(in);
  return found;
}

/* The numbers of steps after which there are checkpoints, as bits. */
static unsigned checkpoints_there(void) {
  unsigned found = 0;
  for (int step = 0; step <= STEPS_MAX; step++) {
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%d/index.json", step);
    if (!access(in_folder(name), F_OK)) found |= 1U << step;
  }
  return found;
}

#define ALL_OF(steps) ((1U << (steps)) - 1)
static const struct due {
  int64_t steps, evaluates, saves, asks_after;
  unsigned measured, evaluated, saved; /* bits of steps, of the numbers of steps that were taken */
} dues[] = {
    /* memory and, if the recipe does not say when, the loss are measured at a tenth of the steps, and at the last */
    {9, 0, 0, -1, ALL_OF(9), ALL_OF(9), 0},
    {10, 0, 0, -1, 0x355, 0x355, 0},
    {13, 0, 0, -1, 0x1555, 0x1555, 0},
    {12, 5, 5, -1, 0xd55, 0xa10, 1U << 5 | 1U << 10 | 1U << 12},
    {12, 12, 12, -1, 0xd55, 0x800, 1U << 12},
    {12, 13, 11, -1, 0xd55, 0x800, 1U << 11 | 1U << 12},
    {4, 1, 1, -1, ALL_OF(4), ALL_OF(4), 0x1e},
    {6, 6, 0, 2, ALL_OF(6), 0x20, 1U << 4}, /* the step that is taken when somebody asks is the last before it */
    {6, 6, 4, 0, ALL_OF(6), 0x20, 1U << 2 | 1U << 4 | 1U << 6},
};

static heard train_alone(const struct due *of) {
  heard h = {.asks_after = of->asks_after};
  ad_comm *comm;
  char train[256];
  snprintf(train, sizeof train,
           ", global_batch: 4, warmup: 0, lr: 1e-3, steps: %d}\nevaluate: {samples: 5, every: %d}\n"
           "checkpoint: {keep: 9, every: %d",
           (int)of->steps, (int)of->evaluates, (int)of->saves);
  ad_recipe *recipe = tiny_recipe("dp=1", ", validation: 0.1", train);
  ad_train_options options = {.size = sizeof options,
                              .folder = folder,
                              .context = &h,
                              .progress = hear_progress,
                              .evaluated = hear_evaluated,
                              .compared = hear_compared};
  must(ad_comm_open_alone(&comm));
  if (ad_train(comm, recipe, &options)) fail_msg("%s", ad_last_error());
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
  return h;
}

static void it_measures_evaluates_and_saves_when_that_is_due(void **state) {
  for (size_t i = 0; i < sizeof dues / sizeof *dues; i++) {
    const struct due *of = &dues[i];
    char command[96];
    assert_int_equal(make_folder(NULL), 0);
    heard h = train_alone(of);
    assert_int_equal(h.steps, of->steps);
    assert_int_equal(h.progressed, ALL_OF(of->steps) << 1);
    assert_false(h.wrong_rate);
    assert_true(h.last_seconds_left == 0);
    assert_int_equal(h.evaluated, of->evaluated << 1 | 1);
    assert_int_equal(h.compared, of->evaluated << 1);
    assert_int_equal(lines_with("step"), ALL_OF(of->steps) << 1);
    assert_int_equal(lines_with("validation_loss"), of->evaluated << 1);
    assert_int_equal(lines_with("validation_since_first"), of->evaluated << 1);
    assert_int_equal(lines_with("pss_rank_bytes"), of->measured << 1);
    assert_int_equal(lines_with("validation_before"), 2);
    if (checkpoints_there() != of->saved) fail_msg("case %zu: checkpoints %x", i, checkpoints_there());
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
  }
}

/* A dump is of a step that is taken, and it is asked for once. */
static void a_dump_is_of_a_step_that_is_taken(void **state) {
  static const struct {
    int64_t step;
    const char *in_environment; /* ADDEND_DUMP_STEP; NULL: options ask */
    ad_status status;
  } cases[] = {{-1, NULL, AD_INVALID}, {0, NULL, AD_OK}, {4, NULL, AD_OK},    {5, NULL, AD_INVALID},
               {7, "0", AD_OK},        {7, "4", AD_OK},  {0, "5", AD_INVALID}};
  ad_recipe *recipe = tiny_recipe("dp=1", "", ", global_batch: 4, warmup: 0, lr: 1e-3, steps: 5");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_train_options options = {
        .size = sizeof options, .folder = folder, .dumps = !cases[i].in_environment, .dump_step = cases[i].step};
    if (cases[i].in_environment)
      setenv("ADDEND_DUMP", folder, 1), setenv("ADDEND_DUMP_STEP", cases[i].in_environment, 1);
    ad_status status = ad_train_make_folder(recipe, &options);
    if (status != cases[i].status) fail_msg("case %zu: %s", i, status ? ad_last_error() : "accepted");
    if (status) assert_facts(ad_last_error(), cases[i].step < 0 ? "-1" : "5", "0", "4");
    options.dumps = 1;
    if (cases[i].in_environment) assert_int_equal(ad_train_make_folder(recipe, &options), AD_INVALID);
    unsetenv("ADDEND_DUMP"), unsetenv("ADDEND_DUMP_STEP");
  }
  ad_recipe_destroy(recipe);
  unlink(in_folder(".lock"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(training_writes_metrics_trace_and_report, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_made_is_an_error_on_all_ranks, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(a_disk_that_will_be_full_soon_shows_before_the_first_step, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(an_interrupt_of_one_rank_stops_all_after_the_step_with_files_written, make_folder,
                                      remove_folder),
      cmocka_unit_test(it_measures_evaluates_and_saves_when_that_is_due),
      cmocka_unit_test_setup_teardown(a_dump_is_of_a_step_that_is_taken, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
