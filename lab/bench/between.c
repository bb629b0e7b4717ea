/* Measures programs on hosts in turns: the seconds of a call, the processor seconds in it, and the bytes that the
 * hosts' network interfaces sent. */
#include "between.h"

#include <stdio.h>
#include <string.h>

#include "part.h"
#include "row.h"
#include "shared.h"

enum { ITERATIONS_MAX = 2000, ROUNDS = 5, QUICK_ROUNDS = 3, SIZES = 3 };
static const double TURN_SECONDS = 0.2, QUICK_TURN_SECONDS = 0.02, PATIENCE = 120, FIRST_PATIENCE = 600;
static const size_t sizes[SIZES] = {4 << 10, 1 << 20, 64 << 20};

/* An operation, and how its value moves; least_values derives the bytes that must leave each host. */
typedef struct between_op {
  const char *op, *storage;
  int sums, gathers; /* how often the value is reduce-scattered and all-gathered; neither: an all-to-all */
  int in_place;
  int trains; /* 1: needs the trainer, and the case's size is that of the model's parameters */
} between_op;

static const between_op ops[] = {
    {"all_reduce", "whole", 1, 1, 1, 0}, {"reduce_scatter", "whole", 1, 0, 0, 0}, {"all_gather", "whole", 0, 1, 0, 0},
    {"all_to_all", "whole", 0, 0, 0, 0}, {"sharded_step", "zero2", 1, 1, 1, 1},   {"sharded_step", "zero3", 1, 2, 1, 1},
    {"train_step", "zero2", 1, 1, 1, 1},
};
enum { OPS = sizeof ops / sizeof *ops };

static int is_there(const between_op *op) {
  return !op->trains || (bench_trainer.duties & (BENCH_SHARDED | BENCH_TRAINING));
}

const char *bench_between_op(int index) {
  for (int i = 0; i < OPS; i++)
    if (is_there(&ops[i]) && (!i || strcmp(ops[i].op, ops[i - 1].op) != 0) && !index--) return ops[i].op;
  return NULL;
}

/* ---- the least bytes that hosts can send, given the fixed tree of sums ---- */

static int is_on_one_host(int ranks, int first, int count) { return first / ranks == (first + count - 1) / ranks; }

/* Returns how many of the largest subtrees whose members are all on one host are on host `host`. The tree is that
 * over `count` members from member `first` on. */
static int parts_on(int ranks, int host, int first, int count) {
  if (is_on_one_host(ranks, first, count)) return first / ranks == host;
  int half = count / 2, lower = half + (count & (first + half) & 1);
  return parts_on(ranks, host, first, lower) + parts_on(ranks, host, first + lower, count - lower);
}

/* Returns the least amount that all hosts together must send, in multiples of the value's size. Reduce-scatter: each
 * host sends every other host one partial sum for each of its subtrees, of that host's slices. All-gather: each host
 * sends its slices to every other host once. All-to-all: each rank sends the blocks for ranks on other hosts. */
static double least_values(const between_op *op, bench_world world) {
  int members = world.hosts * world.ranks;
  double parts = 0, others = world.hosts - 1;
  for (int host = 0; host < world.hosts; host++) parts += parts_on(world.ranks, host, 0, members);
  if (!op->sums && !op->gathers) return world.ranks * others;
  return op->sums * parts * others / world.hosts + op->gathers * others;
}

/* ---- running the programs in turns ---- */

/* A program on the hosts, and its measurements of the present task, one for each round. */
typedef struct player {
  bench_program program;
  const bench_kind *kind;
  bench_task task;
  double seconds[BENCH_ROUNDS_MAX], busy[BENCH_ROUNDS_MAX], sent[BENCH_ROUNDS_MAX], waiting[BENCH_ROUNDS_MAX];
  int rounds; /* number of measurements so far; if it is 0 at the end, the program cannot do this task */
} player;

typedef struct stage {
  const bench_options *options;
  bench_hosts hosts;
  player players[BENCH_KINDS_MAX];
  int count;
} stage;

static int members_of(const stage *s) { return s->hosts.world.hosts * s->hosts.world.ranks; }
static int is_link(const bench_kind *kind) { return !strcmp(kind->name, "link"); }
static int is_own(const bench_kind *kind) { return !strncmp(kind->name, "addend", 6); }

/* Returns the player for addend. addend may run under Open MPI and under MPICH: the first one that is installed is
 * "addend", the other a peer. */
static player *own_player(stage *s) {
  for (int i = 0; i < s->count; i++)
    if (is_own(s->players[i].kind)) return &s->players[i];
  return NULL;
}

static int is_wanted(const stage *s, const bench_kind *kind) {
  if (!(kind->duties & BENCH_BETWEEN)) return 0;
  return s->options->peers || is_link(kind) || is_own(kind);
}

static void start_players(stage *s) {
  bench_scene scene = {.ranks = members_of(s), .model = &bench_small, .hosts = &s->hosts};
  for (int i = 0; i < bench_kind_count; i++) {
    player *next = &s->players[s->count];
    if (!is_wanted(s, &bench_kinds[i]) || (!s->options->peers && is_own(&bench_kinds[i]) && own_player(s))) continue;
    next->kind = &bench_kinds[i];
    bench_start(next->kind, &scene, &next->program);
    s->count += next->program.lives;
  }
}

/* Returns the task for one program. The program "link" does not know the operation: its task is to send the
 * operation's least bytes. */
static bench_task task_for(const stage *s, const player *p, const between_op *op, const bench_task *task) {
  bench_task own = *task;
  bench_world world = s->hosts.world;
  snprintf(own.memory, sizeof own.memory, "%s", is_own(p->kind) ? "comm" : "ordinary");
  if (!is_link(p->kind)) return own;
  snprintf(own.op, sizeof own.op, "link");
  int pairs = world.hosts > 1 ? world.hosts * (world.hosts - 1) : 1;
  own.bytes = (size_t)(least_values(op, world) * (double)task->bytes) / (size_t)pairs;
  return own;
}

static void choose_iterations(player *p, double turn) {
  double seconds = 0;
  for (p->task.iterations = 1; p->task.iterations <= 2 && seconds < turn; p->task.iterations++)
    seconds = bench_perform(&p->program, &p->task, PATIENCE);
  double fill = seconds > 0 ? turn / seconds : 1;
  p->task.iterations = fill < 1 ? 1 : fill > ITERATIONS_MAX ? ITERATIONS_MAX : (int)fill;
}

static void take_turn(const stage *s, player *p) {
  int64_t before = bench_hosts_sent(&s->hosts);
  double seconds = bench_perform(&p->program, &p->task, PATIENCE);
  int calls = p->task.iterations + bench_warm_ups(&p->task);
  if (seconds <= 0) return;
  p->sent[p->rounds] = (double)(bench_hosts_sent(&s->hosts) - before) / calls;
  p->busy[p->rounds] = p->program.busy;
  p->waiting[p->rounds] = p->program.waiting;
  p->seconds[p->rounds++] = seconds;
}

/* Lets all programs do the task once, to find those that can, then one after the other in each round. */
static void take_turns(stage *s, const between_op *op, const bench_task *task) {
  int rounds = s->options->quick ? QUICK_ROUNDS : ROUNDS, able[BENCH_KINDS_MAX];
  for (int i = 0; i < s->count; i++) {
    player *p = &s->players[i];
    p->rounds = 0;
    p->task = task_for(s, p, op, task);
    able[i] = bench_perform(&p->program, &p->task, FIRST_PATIENCE) >= 0;
    if (able[i]) choose_iterations(p, s->options->quick ? QUICK_TURN_SECONDS : TURN_SECONDS);
  }
  for (int round = 0; round < rounds; round++)
    for (int i = 0; i < s->count; i++)
      if (able[i]) take_turn(s, &s->players[i]);
}

/* ---- rows of the document ---- */

static double median(double *values, int count) { return bench_sort(values, count), values[count / 2]; }

static json_t *number(const player *p, double *values) {
  return p->rounds ? json_real(median(values, p->rounds)) : json_null();
}

static void add_player(json_t *row, player *p, const player *own) {
  const char *name = p->kind->name;
  if (is_link(p->kind)) json_object_set_new(row, "link_seconds", number(p, p->seconds));
  json_object_set_new(json_object_get(row, "sent_bytes"), p == own ? "addend" : name, number(p, p->sent));
  json_object_set_new(json_object_get(row, "processor_seconds"), p == own ? "addend" : name, number(p, p->busy));
  if (p != own && !is_link(p->kind)) json_object_set_new(json_object_get(row, "peers"), name, number(p, p->seconds));
}

/* Returns 1 if the operation's rows have the time that ranks wait: only training steps measure it. */
static int counts_waiting(const between_op *op) { return !strcmp(op->op, "train_step"); }

static json_t *row_of(stage *s, player *own, const between_op *op) {
  json_t *row = bench_row(&own->task, members_of(s), own->seconds, own->rounds);
  const char *qdisc = s->options->qdisc;
  json_t *more = json_pack("{ss ss si si so sI s{} s{} sn}", "backend", "mpi", "mpi", own->kind->words[0], "hosts",
                           s->hosts.world.hosts, "ranks_per_host", s->hosts.world.ranks, "qdisc",
                           qdisc ? json_string(qdisc) : json_null(), "least_bytes",
                           (json_int_t)(least_values(op, s->hosts.world) * (double)own->task.bytes), "sent_bytes",
                           "processor_seconds", "link_seconds");
  json_object_update(row, more);
  json_decref(more);
  if (counts_waiting(op)) json_object_set_new(row, "wait_seconds", number(own, own->waiting));
  for (int i = 0; i < s->count; i++) add_player(row, &s->players[i], own);
  return row;
}

static bench_task make_task(const stage *s, const between_op *op, size_t bytes) {
  size_t unit = (size_t)members_of(s) * sizeof(float);
  bench_task task = {.dtype = "f32",
                     .in_place = op->in_place,
                     .bytes = op->trains ? bench_trainer.numel(&bench_small) * sizeof(float) : bytes / unit * unit};
  snprintf(task.op, sizeof task.op, "%s", op->op);
  snprintf(task.storage, sizeof task.storage, "%s", op->storage);
  return task;
}

static ad_status measure(stage *s, const between_op *op, size_t bytes, json_t *rows) {
  player *own = own_player(s);
  bench_task task = make_task(s, op, bytes);
  take_turns(s, op, &task);
  if (own->rounds) {
    json_array_append_new(rows, row_of(s, own, op));
    return AD_OK;
  }
  fprintf(stderr,
          "addend bench: --hosts %dx%d: the ranks gave no result for %s of %zu bytes; run again with "
          "ADDEND_PEER_ERRORS=1 to see their errors\n",
          s->hosts.world.hosts, s->hosts.world.ranks, op->op, task.bytes);
  return AD_PEER_FAILED;
}

/* ---- all operations, sizes and worlds ---- */

static int is_chosen(const bench_options *options, const between_op *op, int size) {
  if (!is_there(op) || (options->op && strcmp(options->op, op->op) != 0)) return 0;
  if (op->trains) return !size && (options->op || !options->quick);
  if (options->quick && sizes[size] > 1 << 20) return 0;
  return !options->largest || sizes[size] <= options->largest;
}

static void report(const stage *s, const between_op *op, int size, int done) {
  char text[BENCH_MESSAGE];
  if (!s->options->progress) return;
  snprintf(text, sizeof text, "%d hosts of %d rank%s, %s, %zu bytes", s->hosts.world.hosts, s->hosts.world.ranks,
           s->hosts.world.ranks == 1 ? "" : "s", op->op, sizes[size]);
  s->options->progress(text, done, OPS * SIZES);
}

static ad_status measure_all(stage *s, json_t *rows) {
  ad_status first = AD_OK;
  if (!own_player(s)) {
    fprintf(stderr,
            "addend bench: for --hosts, ranks of backend mpi start neither under Open MPI nor under MPICH; set "
            "ADDEND_PEER_ERRORS=1 to see their errors\n");
    return AD_PEER_FAILED;
  }
  for (int i = 0; i < OPS; i++)
    for (int size = 0; size < SIZES; size++) {
      if (!is_chosen(s->options, &ops[i], size)) continue;
      report(s, &ops[i], size, i * SIZES + size);
      bench_keep(&first, measure(s, &ops[i], sizes[size], rows));
    }
  return first;
}

static ad_status measure_world(const bench_options *options, bench_world world, json_t *rows) {
  stage s = {.options = options};
  AD_TRY(bench_hosts_open(world, options->qdisc, &s.hosts));
  start_players(&s);
  ad_status status = measure_all(&s, rows);
  for (int i = 0; i < s.count; i++) bench_dismiss(&s.players[i].program);
  bench_hosts_close(&s.hosts);
  return status;
}

ad_status bench_measure_between(const bench_options *options, json_t *rows) {
  ad_status first = AD_OK;
  for (int i = 0; i < options->world_count && !first; i++) first = measure_world(options, options->worlds[i], rows);
  return first;
}
