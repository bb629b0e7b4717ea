/* One run of `addend bench`: programs are started for each number of ranks and duty, then cases are measured one by
 * one. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "attention.h"
#include "errors.h"
#include "library.h"
#include "machine.h"
#include "memory.h"
#include "products.h"
#include "rounds.h"
#include "row.h"

enum { CASES_MAX = 512, STARTUP_RANKS = 32, STARTUP_TRIES = 5 };

static void tell(const bench_options *options, const char *what, int done, int of) {
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
  for (int i = 0; i < bench_kind_count; i++) {
    orchestra->programs[i] = (bench_program){.process = -1};
    memset(orchestra->programs[i].rank, -1, sizeof orchestra->programs[i].rank);
    if ((bench_kinds[i].duties & (int)next->duty) && (peers || !bench_kinds[i].is_peer))
      bench_start(&bench_kinds[i], next->ranks, next->model, &orchestra->programs[i]);
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
    tell(options, text, i, count);
    assemble(&orchestra, &cases[i], options->peers);
    bench_measure(&orchestra, &cases[i], options->quick, rows);
  }
  dismiss(&orchestra);
  tell(options, "done", count, count);
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

/* The share and rate of matrix products in a step on one rank, from a program in which they are all timed. */
static json_t *measure_products(const bench_options *options, const char *dtype) {
  char path[1024], quoted[1100];
  snprintf(quoted, sizeof quoted, "exec '%s' %s%s", bench_peer_path("bench_gemm", path, sizeof path), dtype,
           options->quick ? " quick" : "");
  FILE *output = popen(quoted, "r");
  json_t *products = output ? json_loadf(output, 0, NULL) : NULL;
  if (output) pclose(output);
  return products ? products : json_null();
}

static int wants(const bench_options *options, const char *op) {
  return options->op ? !strcmp(options->op, op) : !options->quick;
}

/* The first failure counts, but for a request to stop, which counts before any. */
static void keep(ad_status *first, ad_status next) {
  if (!*first || next == AD_INTERRUPTED) *first = next;
}

ad_status bench_run(const bench_options *options, char **out) {
  ad_status status = AD_OK;
  json_t *rows = json_array();
  json_t *document = json_pack("{so sf so}", "machine", bench_machine(), "copy_gbps", bench_copy_gbps(), "rows", rows);
  measure_cases(options, rows);
  if (wants(options, "startup")) status = measure_startup(rows);
  if (wants(options, "attention") && status != AD_INTERRUPTED) keep(&status, bench_measure_attention(options, rows));
  if (wants(options, "products") && status != AD_INTERRUPTED) keep(&status, bench_measure_products(options, rows));
  if (wants(options, "errors") && status != AD_INTERRUPTED) keep(&status, bench_measure_errors(options, rows));
  if (wants(options, "memory") && status != AD_INTERRUPTED) {
    keep(&status, bench_measure_memory(options, rows));
    json_object_set_new(document, "activations", bench_activations(rows));
  }
  if (wants(options, "train_step") && status != AD_INTERRUPTED) {
    json_object_set_new(document, "products", measure_products(options, "f32"));
    json_object_set_new(document, "products_bf16", measure_products(options, "bf16"));
  }
  *out = json_dumps(document, JSON_REAL_PRECISION(6) | JSON_COMPACT);
  json_decref(document);
  return *out ? status : AD_MEMORY;
}
