/* One run of `addend bench`: starts the programs (addend and peers) for each number of ranks and kind of task, and
 * measures one case after another. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "between.h"
#include "errors.h"
#include "library.h"
#include "machine.h"
#include "part.h"
#include "rounds.h"
#include "row.h"
#include "shared.h"

enum { CASES_MAX = 512, STARTUP_RANKS = 32, STARTUP_TRIES = 5 };

static void report(const bench_options *options, const char *what, int done, int of) {
  if (options->progress) options->progress(what, done, of);
}

static void dismiss(bench_orchestra *orchestra) {
  for (int i = 0; orchestra->ranks && i < bench_kind_count; i++) bench_dismiss(&orchestra->programs[i]);
  orchestra->ranks = 0;
}

static void assemble(bench_orchestra *orchestra, const bench_case *next, int peers) {
  if (orchestra->ranks == next->ranks && orchestra->duty == next->duty && orchestra->model == next->model) return;
  dismiss(orchestra);
  orchestra->ranks = next->ranks;
  orchestra->duty = next->duty;
  orchestra->model = next->model;
  bench_scene scene = {.ranks = next->ranks, .model = next->model};
  for (int i = 0; i < bench_kind_count; i++) {
    orchestra->programs[i] = (bench_program){.process = -1};
    memset(orchestra->programs[i].rank, -1, sizeof orchestra->programs[i].rank);
    if ((bench_kinds[i].duties & (int)next->duty) && (peers || !bench_kinds[i].is_peer))
      bench_start(&bench_kinds[i], &scene, &orchestra->programs[i]);
  }
}

static void describe(const bench_case *c, char text[BENCH_MESSAGE]) {
  snprintf(text, BENCH_MESSAGE, "%.31s %.31s %.31s, %zu bytes, %d rank%s", c->task.op, c->task.dtype, c->task.storage,
           c->task.bytes, c->ranks, c->ranks == 1 ? "" : "s");
}

static void measure_cases(const bench_options *options, json_t *rows) {
  static bench_case cases[CASES_MAX];
  bench_orchestra orchestra = {0};
  int count = bench_cases(options, cases, CASES_MAX);
  for (int i = 0; i < count; i++) {
    char text[BENCH_MESSAGE];
    describe(&cases[i], text);
    report(options, text, i, count);
    assemble(&orchestra, &cases[i], options->peers);
    bench_measure(&orchestra, &cases[i], options->quick, rows);
  }
  dismiss(&orchestra);
  report(options, "done", count, count);
}

static ad_status measure_startup(json_t *rows) {
  double seconds[STARTUP_TRIES];
  for (int i = 0; i < STARTUP_TRIES; i++) {
    ad_status status = bench_startup(STARTUP_RANKS, &seconds[i]);
    if (!status) continue;
    fprintf(stderr, "addend bench: startup, %d ranks: %s\n", STARTUP_RANKS, ad_last_error());
    return status;
  }
  bench_task task = {.op = "startup", .memory = "comm"};
  json_array_append_new(rows, bench_row(&task, STARTUP_RANKS, seconds, STARTUP_TRIES));
  return AD_OK;
}

static json_t *describe_machine(void) {
  json_t *machine = bench_machine();
  if (bench_trainer.add_machine) bench_trainer.add_machine(machine);
  return machine;
}

static ad_status measure_here(const bench_options *options, json_t *document, json_t *rows) {
  ad_status status = AD_OK;
  measure_cases(options, rows);
  if (bench_wants(options, "startup")) status = measure_startup(rows);
  if (bench_wants(options, "errors") && status != AD_INTERRUPTED)
    bench_keep(&status, bench_measure_errors(options, rows));
  if (bench_trainer.measure && status != AD_INTERRUPTED)
    bench_keep(&status, bench_trainer.measure(options, document, rows));
  return status;
}

ad_status bench_run(const bench_options *options, char **out) {
  ad_status status;
  json_t *rows = json_array();
  json_t *document =
      json_pack("{so sf so}", "machine", describe_machine(), "copy_gbps", bench_copy_gbps(), "rows", rows);
  if (options->world_count)
    status = bench_measure_between(options, rows);
  else
    status = measure_here(options, document, rows);
  *out = json_dumps(document, JSON_REAL_PRECISION(6) | JSON_COMPACT);
  json_decref(document);
  return *out ? status : AD_MEMORY;
}
