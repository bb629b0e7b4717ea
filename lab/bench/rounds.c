/* Lets the programs work in turns, and makes a row from their medians. */
#include "rounds.h"

#include <stdio.h>
#include <string.h>

#include "part.h"
#include "row.h"

enum { ENTRIES_MAX = BENCH_KINDS_MAX + 1, ITERATIONS_MAX = 5000 };
/* Seconds of a turn, and seconds to wait for an answer. The first answer takes longer: peers may compile code. */
static const double TURN_SECONDS = 0.05, QUICK_TURN_SECONDS = 0.01, PATIENCE = 60, FIRST_PATIENCE = 600;

/* A program, measured with one kind of memory. */
typedef struct entry {
  bench_program *program;
  const bench_kind *kind;
  bench_task task;
  double seconds[BENCH_ROUNDS_MAX], waiting[BENCH_ROUNDS_MAX], busy[BENCH_ROUNDS_MAX];
  int rounds;
  double median; /* seconds; -1: not measured */
} entry;

typedef struct turns {
  entry entries[ENTRIES_MAX];
  int count, rounds;
} turns;

static void enter(turns *t, bench_program *program, const bench_kind *kind, const bench_task *task,
                  const char *memory) {
  entry *next = &t->entries[t->count];
  *next = (entry){.program = program, .kind = kind, .task = *task, .median = -1};
  snprintf(next->task.memory, sizeof next->task.memory, "%s", memory);
  next->task.iterations = 0;
  if (bench_perform(program, &next->task, FIRST_PATIENCE) >= 0) t->count++;
}

static int is_addend(const bench_kind *kind) { return !strcmp(kind->name, "addend"); }
/* Returns 1 for addend with any backend: each backend has its own shared memory. */
static int has_own_memory(const bench_kind *kind) { return !strncmp(kind->name, "addend", 6); }

static const char *memory_of(const bench_kind *kind, const bench_case *measured) {
  if (*measured->task.memory) return measured->task.memory;
  return has_own_memory(kind) ? "comm" : "ordinary";
}

static void enter_all(turns *t, bench_orchestra *orchestra, const bench_case *measured) {
  for (int i = 0; i < bench_kind_count; i++) {
    bench_program *program = &orchestra->programs[i];
    if (!program->lives) continue;
    int both = is_addend(&bench_kinds[i]) && measured->duty == BENCH_COLLECTIVES;
    enter(t, program, &bench_kinds[i], &measured->task, memory_of(&bench_kinds[i], measured));
    if (both) enter(t, program, &bench_kinds[i], &measured->task, "ordinary");
  }
}

/* Chooses as many iterations as fill a turn. A task that fills a turn alone, such as a training step, is tried once. */
static void choose_iterations(turns *t, double turn_seconds) {
  for (int i = 0; i < t->count; i++) {
    bench_task *task = &t->entries[i].task;
    double seconds = 0;
    for (task->iterations = 1; task->iterations <= 2 && seconds < turn_seconds; task->iterations++)
      seconds = bench_perform(t->entries[i].program, task, PATIENCE);
    double fill = seconds > 0 ? turn_seconds / seconds : 1;
    task->iterations = fill < 1 ? 1 : fill > ITERATIONS_MAX ? ITERATIONS_MAX : (int)fill;
  }
}

static void take_turns(turns *t) {
  for (int round = 0; round < t->rounds; round++) {
    for (int i = 0; i < t->count; i++) {
      entry *e = &t->entries[i];
      double seconds = bench_perform(e->program, &e->task, PATIENCE);
      if (seconds <= 0) continue;
      e->waiting[e->rounds] = e->program->waiting;
      e->busy[e->rounds] = e->program->busy;
      e->seconds[e->rounds++] = seconds;
    }
  }
}

static void sort_out(turns *t) {
  for (int i = 0; i < t->count; i++) {
    entry *e = &t->entries[i];
    bench_sort(e->seconds, e->rounds);
    if (e->rounds) e->median = e->seconds[e->rounds / 2];
  }
}

/* Returns the fastest setting of the program with this name; NULL if it was not measured. */
static const entry *best(const turns *t, const char *name) {
  const entry *found = NULL;
  for (int i = 0; i < t->count; i++) {
    const entry *e = &t->entries[i];
    if (!strcmp(e->kind->name, name) && e->median > 0 && (!found || e->median < found->median)) found = e;
  }
  return found;
}

static json_t *number(const entry *e) { return e ? json_real(e->median) : json_null(); }

static void add_peers(const turns *t, json_t *row) {
  json_t *peers = json_object(), *settings = json_object();
  for (int i = 0; i < bench_kind_count; i++) {
    const char *name = bench_kinds[i].name;
    if (!bench_kinds[i].is_peer || json_object_get(peers, name)) continue;
    const entry *e = best(t, name);
    json_object_set_new(peers, name, number(e));
    if (e) json_object_set_new(settings, name, json_string(e->kind->setting));
  }
  json_object_set_new(row, "peers", peers);
  json_object_set_new(row, "peer_settings", settings);
}

static void add_model(json_t *row, const bench_model *model, double step_seconds) {
  json_object_set_new(row, "model", bench_model_words(model));
  json_object_set_new(row, "tokens_per_second", json_real(model->batch * model->seq / step_seconds));
}

static void add_variant(json_t *row, const bench_case *measured) {
  json_object_set_new(row, "op", json_string(measured->op));
  json_object_set_new(row, "variant", json_string(measured->task.op));
}

/* Adds the seconds that a rank spends posting and waiting for transfers between stages. */
static void add_transfers(json_t *row, entry *own) {
  bench_sort(own->waiting, own->rounds);
  json_object_set_new(row, "transfer_seconds", json_real(own->waiting[own->rounds / 2]));
}

/* Adds the processor seconds of all ranks, by program. */
static void add_processor_seconds(const turns *t, json_t *row) {
  json_t *each = json_object();
  for (int i = 0; i < t->count; i++) {
    const entry *e = &t->entries[i];
    double busy[BENCH_ROUNDS_MAX];
    memcpy(busy, e->busy, sizeof busy);
    bench_sort(busy, e->rounds);
    if (e->rounds) json_object_set_new(each, e->kind->name, json_real(busy[e->rounds / 2]));
  }
  json_object_set_new(row, "processor_seconds", each);
}

static json_t *row_of(const turns *t, const bench_case *measured, entry *own) {
  const entry *floor = best(t, "floor");
  json_t *row = bench_row(&own->task, measured->ranks, own->seconds, own->rounds);
  json_object_set_new(row, "floor_seconds", number(floor));
  json_object_set_new(row, "floor_ratio", floor ? json_real(own->median / floor->median) : json_null());
  if (measured->duty & (BENCH_TRAINING | BENCH_TENSOR | BENCH_HYBRID | BENCH_DECOMPOSITION | BENCH_TORCH_STEP |
                        BENCH_PIPELINE | BENCH_LEAVES))
    add_model(row, measured->model, own->median);
  if (measured->duty == BENCH_PIPELINE) add_transfers(row, own);
  if (measured->duty == BENCH_LEAVES) add_processor_seconds(t, row);
  if (measured->duty == BENCH_TRAINING) bench_trainer.add_products(row, measured);
  if (strcmp(measured->op, measured->task.op) != 0) add_variant(row, measured);
  add_peers(t, row);
  return row;
}

void bench_measure(bench_orchestra *orchestra, const bench_case *measured, int quick, json_t *rows) {
  turns t = {.rounds = measured->rounds};
  enter_all(&t, orchestra, measured);
  choose_iterations(&t, quick ? QUICK_TURN_SECONDS : TURN_SECONDS);
  take_turns(&t);
  sort_out(&t);
  for (int i = 0; i < t.count; i++)
    if (is_addend(t.entries[i].kind) && t.entries[i].median > 0)
      json_array_append_new(rows, row_of(&t, measured, &t.entries[i]));
}
