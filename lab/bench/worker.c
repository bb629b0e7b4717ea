/* A measured rank: receives tasks from the conductor, runs them with the team's functions, and answers with seconds. */
#include "worker.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

double bench_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

size_t bench_element(const char *dtype) {
  if (!strcmp(dtype, "bf16") || !strcmp(dtype, "f16")) return 2;
  return strcmp(dtype, "f64") ? 4 : 8;
}

int bench_is_collective(const char *op) {
  return !strcmp(op, "all_reduce") || !strcmp(op, "reduce_scatter") || !strcmp(op, "all_gather") ||
         !strcmp(op, "all_to_all");
}

int bench_warm_ups(const bench_task *task) { return task->iterations > 1 ? 1 + task->iterations / 10 : 0; }

int bench_releases(const bench_task *task) { return !strcmp(task->storage, "zero3"); }

void bench_task_print(const bench_task *task, char line[BENCH_MESSAGE]) {
  snprintf(line, BENCH_MESSAGE, "%s %s %s %s %zu %d %d", task->op, task->dtype, task->memory, task->storage,
           task->bytes, task->in_place, task->iterations);
}

int bench_task_read(const char *line, bench_task *out) {
  return sscanf(line, "%31s %31s %31s %31s %zu %d %d", out->op, out->dtype, out->memory, out->storage, &out->bytes,
                &out->in_place, &out->iterations) != 7;
}

/* The buffers of the last task, kept as long as the next tasks need the same ones. */
typedef struct buffers {
  bench_task task;
  size_t in_bytes, out_bytes; /* 0: no separate buffer, since the task is in place */
  char *in_memory, *out_memory;
  const void *in; /* the operation's pointers; in place, one points into the buffer of the other */
  void *out;
} buffers;

typedef struct worker {
  const bench_team *team;
  int conductor;
  double busy;    /* processor seconds in one iteration of the last timed task */
  double waiting; /* seconds of waiting in one iteration, as the program counts them */
  buffers held;
} worker;

static void *take(const bench_team *team, const bench_task *task, size_t bytes) {
  if (!bytes) return NULL;
  if (team->alloc) return team->alloc(team->self, task, bytes);
  void *memory = malloc(bytes);
  if (memory) memset(memory, 0, bytes);
  return memory;
}

static void give(const bench_team *team, const bench_task *task, void *memory) {
  if (memory && team->alloc)
    team->free(team->self, task, memory);
  else
    free(memory);
}

static void let_go(worker *self) {
  give(self->team, &self->held.task, self->held.in_memory);
  give(self->team, &self->held.task, self->held.out_memory);
  self->held = (buffers){0};
}

static void measure_buffers(const bench_team *team, buffers *held) {
  const bench_task *task = &held->task;
  size_t block = task->bytes / (size_t)team->ranks;
  int scatters = !strcmp(task->op, "reduce_scatter"), gathers = !strcmp(task->op, "all_gather");
  held->in_bytes = gathers ? (task->in_place ? 0 : block) : task->bytes;
  held->out_bytes = task->in_place && !gathers ? 0 : scatters ? block : task->bytes;
}

static void point(const bench_team *team, buffers *held) {
  size_t own = held->task.bytes / (size_t)team->ranks * (size_t)team->rank;
  int scatters = !strcmp(held->task.op, "reduce_scatter");
  held->in = held->in_memory ? held->in_memory : held->out_memory + own;
  held->out = held->out_memory ? held->out_memory : held->in_memory + (scatters ? own : 0);
}

static int same_buffers(const bench_task *a, const bench_task *b) {
  return !strcmp(a->op, b->op) && !strcmp(a->memory, b->memory) && a->bytes == b->bytes && a->in_place == b->in_place;
}

static int hold_buffers(worker *self, const bench_task *task) {
  buffers *held = &self->held;
  if (!bench_is_collective(task->op)) return let_go(self), 0;
  if (same_buffers(&held->task, task)) return 0;
  let_go(self);
  held->task = *task;
  measure_buffers(self->team, held);
  held->in_memory = take(self->team, task, held->in_bytes);
  held->out_memory = take(self->team, task, held->out_bytes);
  if ((held->in_bytes && !held->in_memory) || (held->out_bytes && !held->out_memory)) return let_go(self), 1;
  point(self->team, held);
  return 0;
}

static int run_once(const worker *self, const bench_task *task) {
  return self->team->run(self->team->self, task, self->held.in, self->held.out);
}

/* Returns the processor seconds of all threads of this process so far. */
static double processor_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double take_waited(const worker *self) { return self->team->waited ? self->team->waited(self->team->self) : 0; }

/* Returns the seconds of one iteration, or -1 if the task cannot be done. */
static double time_task(worker *self, const bench_task *task) {
  if (self->team->barrier(self->team->self)) return -1;
  for (int i = 0; i < bench_warm_ups(task); i++)
    if (run_once(self, task)) return -1;
  if (self->team->barrier(self->team->self)) return -1;
  (void)take_waited(self);
  double start = bench_now(), started = processor_now();
  for (int i = 0; i < task->iterations; i++)
    if (run_once(self, task)) return -1;
  double seconds = (bench_now() - start) / task->iterations;
  self->busy = (processor_now() - started) / task->iterations;
  self->waiting = take_waited(self) / task->iterations;
  return seconds;
}

/* Returns element i of a rank's input: small integers, exact in every dtype. f16 results are checked by tests, not
 * here. */
static float addend_of(int rank, size_t i) { return (float)(rank + 1) * (float)(1 + i % 3); }

static void write_number(const char *dtype, void *memory, size_t i, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (bench_element(dtype) == 4)
    ((float *)memory)[i] = value;
  else
    ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
}

static float read_number(const char *dtype, const void *memory, size_t i) {
  if (bench_element(dtype) == 4) return ((const float *)memory)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)memory)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void fill(const worker *self, const bench_task *task) {
  const bench_team *team = self->team;
  size_t numel = task->bytes / bench_element(task->dtype), block = numel / (size_t)team->ranks;
  int gathers = !strcmp(task->op, "all_gather");
  void *in = (void *)(uintptr_t)self->held.in;
  size_t first = gathers ? block * (size_t)team->rank : 0, count = gathers ? block : numel;
  for (size_t i = 0; i < count; i++) write_number(task->dtype, in, i, addend_of(team->rank, first + i));
}

static float expected(const bench_team *team, const bench_task *task, size_t block, size_t i) {
  if (!strcmp(task->op, "all_gather")) return addend_of((int)(i / block), i);
  if (!strcmp(task->op, "all_to_all")) return addend_of((int)(i / block), block * (size_t)team->rank + i % block);
  return addend_of(team->ranks * (team->ranks + 1) / 2 - 1, i);
}

static int is_right(const worker *self, const bench_task *task) {
  const bench_team *team = self->team;
  size_t numel = task->bytes / bench_element(task->dtype), block = numel / (size_t)team->ranks;
  int scatters = !strcmp(task->op, "reduce_scatter");
  size_t first = scatters ? block * (size_t)team->rank : 0, count = scatters ? block : numel;
  for (size_t i = 0; i < count; i++)
    if (read_number(task->dtype, self->held.out, i) != expected(team, task, block, first + i)) return 0;
  return 1;
}

/* Checks a result; a program that gives wrong numbers is not measured. */
static double look_at_result(const worker *self, const bench_task *task) {
  int is_f32 = !strcmp(task->dtype, "f32"), is_f16 = !strcmp(task->dtype, "f16");
  int looks = bench_is_collective(task->op) && !is_f16 && (is_f32 || !self->team->only_f32);
  if (looks) fill(self, task);
  if (self->team->barrier(self->team->self) || run_once(self, task)) return -1;
  return looks && !is_right(self, task) ? -1 : 0;
}

static double do_task(worker *self, const bench_task *task) {
  if (hold_buffers(self, task)) return -1;
  return task->iterations ? time_task(self, task) : look_at_result(self, task);
}

unsigned bench_socket_name(const char *address, struct sockaddr_un *out) {
  size_t length = strlen(address), start = address[0] == '/' ? 0 : 1;
  *out = (struct sockaddr_un){.sun_family = AF_UNIX};
  if (start + length > sizeof out->sun_path - 1) return 0;
  memcpy(out->sun_path + start, address, length);
  return (unsigned)(offsetof(struct sockaddr_un, sun_path) + start + length + (start ? 0 : 1));
}

static int join(const char *address) {
  struct sockaddr_un name;
  socklen_t size = bench_socket_name(address, &name);
  int conductor = size ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
  if (conductor < 0) return -1;
  if (!connect(conductor, (struct sockaddr *)&name, size)) return conductor;
  close(conductor);
  return -1;
}

static int report(int conductor, const char *line) { return send(conductor, line, strlen(line) + 1, MSG_NOSIGNAL) < 0; }

static int serve(worker *self) {
  char line[BENCH_MESSAGE];
  snprintf(line, sizeof line, "%d", self->team->rank);
  if (report(self->conductor, line)) return 1;
  while (recv(self->conductor, line, sizeof line, 0) > 0) {
    bench_task task;
    line[sizeof line - 1] = 0;
    if (bench_task_read(line, &task)) return 1;
    double seconds = do_task(self, &task);
    snprintf(line, sizeof line, "%.9g %.9g %.9g", seconds, self->busy, self->waiting);
    if (report(self->conductor, line)) return 1;
  }
  return 0;
}

static void bind_to_core(int rank, int ranks) {
  cpu_set_t allowed, own;
  if (sched_getaffinity(0, sizeof allowed, &allowed) || ranks > CPU_COUNT(&allowed)) return;
  CPU_ZERO(&own);
  for (int core = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &allowed) && rank-- == 0) CPU_SET(core, &own);
  (void)sched_setaffinity(0, sizeof own, &own);  // if this fails, the scheduler chooses the core
}

int bench_work(const char *address, const bench_team *team) {
  worker self = {.team = team, .conductor = join(address)};
  if (self.conductor < 0) return 1;
  bind_to_core(team->rank, team->ranks);
  int status = serve(&self);
  let_go(&self);
  close(self.conductor);
  return status;
}

void *bench_ordinary_alloc(size_t bytes) {
  const size_t page = (size_t)2 << 20;
  size_t whole = (bytes + page - 1) / page * page;
  void *memory = aligned_alloc(page, whole);
  if (memory) (void)madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}
