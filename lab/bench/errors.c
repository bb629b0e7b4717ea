/* One rank makes a mistake while the others wait for it in a collective; each rank notes the time at which it gets the
 * error. After an error a world cannot be used, so every trial starts a new one. */
#include "errors.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "library.h"
#include "row.h"

enum { TRIALS = 101, QUICK_TRIALS = 5, CULPRIT = 1, NUMEL = 256 };
/* Longest wait in seconds before the mistake is made. Waiting ranks look for circles of waits only from time to
 * time, and sleep longer the longer they wait. So trials make the mistake after waits of different lengths. */
static const double LONGEST_WAIT = 0.1;

typedef enum mistake_kind { MISMATCH, DEATH, CIRCLE, MISTAKES } mistake_kind;

typedef struct mistake {
  const char *name;
  ad_status error; /* the error that every other rank gets */
  int least_ranks; /* circles need several groups, so more than two ranks */
} mistake;

static const mistake mistakes[MISTAKES] = {
    [MISMATCH] = {"mismatch", AD_MISMATCH, 2},
    [DEATH] = {"death", AD_RANK_DIED, 2},
    [CIRCLE] = {"circle", AD_CYCLE, 3},
};

typedef struct error_case {
  mistake_kind kind;
  int ranks;
} error_case;

/* Times in memory that all ranks share. */
typedef struct sighting {
  double made;                   /* when the mistake was made */
  double known[BENCH_RANKS_MAX]; /* when each rank got the error; 0: it did not get it */
} sighting;

typedef struct trial {
  error_case of;
  double wait; /* seconds that the other ranks wait before the mistake */
  sighting *seen;
} trial;

/* ---- what a rank does ---- */

/* Makes the mistake. `pair` is the group of ranks 0 and 1, for a circle of waits. */
static ad_status err(ad_comm *comm, const trial *t, ad_collective call, const ad_group *pair) {
  if (t->of.kind == MISMATCH) call.count--;
  if (t->of.kind == CIRCLE) call.group = *pair;
  usleep((useconds_t)(t->wait * 1e6));
  t->seen->made = bench_now();
  if (t->of.kind == DEATH) kill(getpid(), SIGKILL);
  return ad_comm_run(comm, &call);
}

static ad_status call_all(ad_comm *comm, const trial *t, const ad_group *everyone, const ad_group *pair) {
  static float values[NUMEL];
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = *everyone, .in = values, .out = values, .count = NUMEL};
  call.dtype = AD_F32;
  call.site = AD_HERE;
  AD_TRY(ad_comm_barrier(comm, everyone));
  if (ad_comm_rank(comm) == CULPRIT) return err(comm, t, call, pair);
  ad_status status = ad_comm_run(comm, &call);
  if (status == mistakes[t->of.kind].error) t->seen->known[ad_comm_rank(comm)] = bench_now();
  return status;
}

static ad_status call_on(ad_comm *comm, const trial *t, const ad_mesh *all, const ad_mesh *two) {
  ad_group everyone = ad_mesh_group(all, AD_AXES_ALL, ad_comm_rank(comm)), pair = ad_mesh_group(two, AD_AXES_ALL, 0);
  return call_all(comm, t, &everyone, &pair);
}

static ad_status take_part(ad_comm *comm, const trial *t) {
  char text[64];
  ad_mesh *all, *two;
  snprintf(text, sizeof text, "dp=%lld", (long long)ad_comm_size(comm));
  AD_TRY(ad_mesh_create(text, &all));
  ad_status status = ad_mesh_create_pool("dp=2", 0, &two);
  if (!status) {
    status = call_on(comm, t, all, two);
    ad_mesh_destroy(two);
  }
  ad_mesh_destroy(all);
  return status;
}

static int be_rank(ad_comm *comm, void *context) {
  const trial *t = context;
  ad_status status = take_part(comm, t);
  return status != mistakes[t->of.kind].error;
}

/* ---- running trials ---- */

static void report(const error_case *of, const char *words) {
  fprintf(stderr, "addend bench: errors, %s, %d ranks: %s\n", mistakes[of->kind].name, of->ranks, words);
}

/* Sets *seconds to the seconds from the mistake until the last other rank got the error; fails if a rank did not get
 * it. */
static ad_status judge(const trial *t, double *seconds) {
  *seconds = 0;
  for (int rank = 0; rank < t->of.ranks; rank++) {
    double own = t->seen->known[rank] - t->seen->made;
    if (rank == CULPRIT) continue;
    if (t->seen->known[rank] == 0) return report(&t->of, "a rank did not get the error"), AD_PEER_FAILED;
    if (own > *seconds) *seconds = own;
  }
  return AD_OK;
}

static ad_status run_trial(trial *t, double *seconds) {
  ad_launch_options options = {.size = sizeof options, .ranks = t->of.ranks, .function = be_rank, .context = t};
  ad_launch_result result = {.size = sizeof result};
  *t->seen = (sighting){0};
  ad_status status = ad_launch(&options, &result);
  if (status && !(t->of.kind == DEATH && status == AD_RANK_DIED && result.rank == CULPRIT)) {
    report(&t->of, ad_last_error());
    return status;
  }
  return judge(t, seconds);
}

static ad_status run_trials(const error_case *of, int trials, sighting *seen, double *seconds) {
  for (int i = 0; i < trials; i++) {
    trial t = {.of = *of, .wait = LONGEST_WAIT * (i + 0.5) / trials, .seen = seen};
    AD_TRY(run_trial(&t, &seconds[i]));
  }
  return AD_OK;
}

static ad_status measure(const error_case *of, int trials, json_t *rows) {
  double seconds[TRIALS];
  sighting *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (seen == MAP_FAILED) return report(of, strerror(errno)), AD_MEMORY;
  ad_status status = run_trials(of, trials, seen, seconds);
  munmap(seen, sizeof *seen);
  if (status) return status;
  bench_task task = {.op = "errors", .dtype = "f32", .memory = "ordinary", .bytes = NUMEL * sizeof(float)};
  json_t *row = bench_row(&task, of->ranks, seconds, trials);
  json_object_set_new(row, "mistake", json_string(mistakes[of->kind].name));
  json_array_append_new(rows, row);
  return AD_OK;
}

/* ---- all mistakes and numbers of ranks ---- */

enum { CASES_MAX = BENCH_COUNTS_MAX * MISTAKES };

/* Lists the cases; returns how many there are. */
static int list_cases(const bench_options *options, error_case *cases) {
  static const int usual[] = {2, 3, 4, 8};
  const int *ranks = options->rank_count ? options->ranks : usual;
  int counts = options->rank_count ? options->rank_count : options->quick ? 2 : 4, n = 0;
  for (int kind = 0; kind < MISTAKES; kind++)
    for (int i = 0; i < counts; i++)
      if (ranks[i] >= mistakes[kind].least_ranks) cases[n++] = (error_case){(mistake_kind)kind, ranks[i]};
  return n;
}

ad_status bench_measure_errors(const bench_options *options, json_t *rows) {
  ad_status first = AD_OK;
  error_case cases[CASES_MAX];
  int count = list_cases(options, cases);
  for (int i = 0; i < count && first != AD_INTERRUPTED; i++) {
    char text[BENCH_MESSAGE];
    snprintf(text, sizeof text, "errors, %s, %d ranks", mistakes[cases[i].kind].name, cases[i].ranks);
    if (options->progress) options->progress(text, i, count);
    ad_status status = measure(&cases[i], options->quick ? QUICK_TRIALS : TRIALS, rows);
    if (!first || status == AD_INTERRUPTED) first = status;
  }
  if (options->progress) options->progress("done", count, count);
  return first;
}
