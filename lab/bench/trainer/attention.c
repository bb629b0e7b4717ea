/* Measures attention alone on each number of ranks, in every variant. A trial is a run of the program bench_attention
 * (attend.c); the trials of one sequence length take turns. */
#include "attention.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bench/programs.h"
#include "bench/row.h"
#include "bench/shared.h"

enum { TURNS = 5, QUICK_TURNS = 3, WIDTH = 512, CASES_MAX = 1 + 3 * BENCH_COUNTS_MAX };

/* ring: zigzag chunks, keys and values go around the ring; ring_plain: a ring too, but each rank has one contiguous
 * part of the sequence; gather: zigzag chunks, all-gather of keys and values first. On one rank all three are the same.
 * */
static const char *const variants[] = {"ring", "ring_plain", "gather"};

typedef struct attention_case {
  const char *variant;
  int ranks, turns;
  double seconds[TURNS], arithmetic[TURNS], balance[TURNS], exposed[TURNS];
} attention_case;

static void describe(const attention_case *c, int seq, char text[BENCH_MESSAGE]) {
  snprintf(text, BENCH_MESSAGE, "attention, %s, %d rank%s, %d tokens", c->variant, c->ranks, c->ranks == 1 ? "" : "s",
           seq);
}

/* Runs the program once and returns its result; NULL if it failed, after it has printed its message on standard
 * error. */
static json_t *ask(const attention_case *c, int seq) {
  char path[1024], line[1100];
  bench_peer_path("bench_attention", path, sizeof path);
  snprintf(line, sizeof line, "exec '%s' %s %d %d", path, c->variant, c->ranks, seq);
  FILE *output = popen(line, "r");
  if (!output) return fprintf(stderr, "addend bench: %s cannot be started: %s\n", path, strerror(errno)), NULL;
  json_t *answer = json_loadf(output, 0, NULL);
  pclose(output);
  return answer;
}

static ad_status take_turn(attention_case *c, int seq) {
  int turn = c->turns;
  json_t *answer = ask(c, seq);
  int status = json_unpack(answer, "{sF sF sF sF}", "seconds", &c->seconds[turn], "arithmetic_seconds",
                           &c->arithmetic[turn], "balance", &c->balance[turn], "exposed", &c->exposed[turn]);
  json_decref(answer);
  if (status) return AD_PEER_FAILED;
  c->turns++;
  return AD_OK;
}

static double median(double *values, int count) {
  bench_sort(values, count);
  return values[count / 2];
}

static json_t *row_of(attention_case *c, int seq) {
  bench_task task = {.op = "attention", .dtype = "f32", .memory = "ordinary"};
  task.bytes = (size_t)seq * WIDTH * sizeof(float);
  json_t *row = bench_row(&task, c->ranks, c->seconds, c->turns);
  json_object_set_new(row, "seq", json_integer(seq));
  json_object_set_new(row, "variant", json_string(c->variant));
  json_object_set_new(row, "arithmetic_seconds", json_real(median(c->arithmetic, c->turns)));
  json_object_set_new(row, "balance", json_real(median(c->balance, c->turns)));
  json_object_set_new(row, "exposed", json_real(median(c->exposed, c->turns)));
  return row;
}

static int list_cases(const bench_options *options, attention_case *cases) {
  static const int usual[] = {2, 4};
  const int *ranks = options->rank_count ? options->ranks : usual;
  int counts = options->rank_count ? options->rank_count : options->quick ? 1 : 2, n = 0;
  cases[n++] = (attention_case){.variant = variants[0], .ranks = 1};
  for (int i = 0; i < counts; i++)
    for (size_t k = 0; ranks[i] > 1 && k < sizeof variants / sizeof *variants; k++)
      cases[n++] = (attention_case){.variant = variants[k], .ranks = ranks[i]};
  return n;
}

static ad_status take_turns(const bench_options *options, attention_case *cases, int count, int seq) {
  int turns = options->quick ? QUICK_TURNS : TURNS;
  for (int i = 0; i < turns * count; i++) {
    char text[BENCH_MESSAGE];
    attention_case *c = &cases[i % count];
    describe(c, seq, text);
    if (options->progress) options->progress(text, i, turns * count);
    if (!take_turn(c, seq)) continue;
    fprintf(stderr, "addend bench: the program gave no result for %s\n", text);
    return AD_PEER_FAILED;
  }
  if (options->progress) options->progress("done", turns * count, turns * count);
  return AD_OK;
}

static ad_status measure(const bench_options *options, int seq, json_t *rows) {
  attention_case cases[CASES_MAX];
  int count = list_cases(options, cases);
  AD_TRY(take_turns(options, cases, count, seq));
  for (int i = 0; i < count; i++) json_array_append_new(rows, row_of(&cases[i], seq));
  return AD_OK;
}

ad_status bench_measure_attention(const bench_options *options, json_t *rows) {
  static const int usual[] = {2048, 8192}, quick[] = {256};
  const int *seq = options->quick ? quick : usual, count = options->quick ? 1 : 2;
  for (int i = 0; i < count; i++) {
    size_t bytes = (size_t)seq[i] * WIDTH * sizeof(float);
    if (!options->largest || bytes <= options->largest) AD_TRY(measure(options, seq[i], rows));
  }
  return AD_OK;
}
