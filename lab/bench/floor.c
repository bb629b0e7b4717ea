/* The floor (floor.h): its processes, buffers, barriers and collectives, without any code of the library;
 * floor_kernels.c has its loops. Collectives add f32 whatever the dtype of the task, since only the time for the bytes
 * counts. */
#include "floor.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "floor_kernels.h"
#include "pools.h"
#include "routes.h"
#include "sides.h"
#include "worker.h"

enum { SMALLEST_BUFFER = 64 << 20, SLOT_BYTES = 16 << 10, LINE = 64, HUGE_PAGE = 2 << 20 };

/* A rank's buffers. Collectives use two. A sharded step has the gradients of the backward (PRODUCED), the bucket, and
 * for the rank's own shard the gradient's sum, master weights, stored weights (VALUE) and moments. COPY, the unsharded
 * parameters, is used on rank 0 only, for all ranks. */
enum { PRODUCED, BUCKET, SUM, MASTER, VALUE, COPY, FIRST, SECOND, BUFFERS };
enum { SENT, PLACED, BACK };                                         /* the buffers' use in an exchange */
enum { SOURCE, DESTINATION, DESTINATION_GRADIENT, SOURCE_GRADIENT }; /* the buffers' use in a bridge */

/* ZeRO 3 gathers the parameters in as many pieces as the measured model has layers. */
enum { PIECES = 16 };

typedef struct flag {
  _Alignas(LINE) atomic_ulong count;
} flag;

/* A slot for SLOTS. Each rank alternates between two slots, so that slow ranks can still read the previous one. */
typedef struct slot {
  flag full;
  _Alignas(LINE) char bytes[SLOT_BYTES];
} slot;

typedef struct desk {
  flag arrived;
  slot slots[2];
} desk;

typedef struct floor_rank {
  char *mapping;
  int rank, ranks, spins;
  bench_floor_way way;
  unsigned long barriers, turns;
  bench_routes routes; /* the last exchange's */
  bench_sides sides;   /* the last bridge's */
  size_t given;        /* buffers that floor_alloc has given to the worker: 0 to 2 */
  size_t buffer_bytes; /* address space of a buffer; pages take memory only once they are used */
} floor_rank;

static size_t desks_bytes(int ranks) { return ((size_t)ranks * sizeof(desk) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }
static size_t mapping_bytes(int ranks, size_t buffer_bytes) {
  return desks_bytes(ranks) + (size_t)ranks * BUFFERS * buffer_bytes;
}
static desk *desk_of(const floor_rank *self, int rank) { return (desk *)self->mapping + rank; }

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void wait_until(const floor_rank *self, atomic_ulong *count, unsigned long value) {
  for (int i = 0; atomic_load_explicit(count, memory_order_acquire) < value; i++) {
    if (i < self->spins)
      relax();
    else
      sched_yield();
  }
}

static int barrier(void *context) {
  floor_rank *self = context;
  atomic_store_explicit(&desk_of(self, self->rank)->arrived.count, ++self->barriers, memory_order_release);
  for (int i = 0; i < self->ranks; i++) wait_until(self, &desk_of(self, i)->arrived.count, self->barriers);
  return 0;
}

/* Returns buffer `which` of rank `rank`. */
static void *buffer_of(const floor_rank *self, int rank, size_t which) {
  return self->mapping + desks_bytes(self->ranks) + ((size_t)rank * BUFFERS + which) * self->buffer_bytes;
}

static void *floor_alloc(void *context, const bench_task *task, size_t bytes) {
  floor_rank *self = context;
  if (bytes > self->buffer_bytes || self->given == 2) return NULL;
  return memset(buffer_of(self, self->rank, self->given++), 0, bytes);
}

static void floor_free(void *context, const bench_task *task, void *memory) { ((floor_rank *)context)->given = 0; }

/* Returns the address in the buffers of rank `rank` that corresponds to `own` in this rank's buffers. */
static void *at(const floor_rank *self, const void *own, int rank) {
  return (char *)(uintptr_t)own + (rank - self->rank) * (ptrdiff_t)(BUFFERS * self->buffer_bytes);
}

static void all_reduce_slices(floor_rank *self, const bench_task *task, const void *in, void *out) {
  size_t numel = task->bytes / sizeof(float), first = numel * (size_t)self->rank / (size_t)self->ranks;
  size_t end = numel * ((size_t)self->rank + 1) / (size_t)self->ranks;
  const float *from[BENCH_RANKS_MAX];
  float *to[BENCH_RANKS_MAX];
  for (int i = 0; i < self->ranks; i++)
    from[i] = (const float *)at(self, in, i) + first, to[i] = (float *)at(self, out, i) + first;
  bench_floor_sum(from, self->ranks, to, self->ranks, end - first);
}

static void reduce_scatter_slices(floor_rank *self, const bench_task *task, const void *in, void *out) {
  size_t block = task->bytes / sizeof(float) / (size_t)self->ranks;
  const float *from[BENCH_RANKS_MAX];
  float *to = out;
  for (int i = 0; i < self->ranks; i++) from[i] = (const float *)at(self, in, i) + block * (size_t)self->rank;
  bench_floor_sum(from, self->ranks, &to, 1, block);
}

static void all_gather_slices(floor_rank *self, const bench_task *task, const void *in, void *out) {
  size_t block = task->bytes / (size_t)self->ranks;
  for (int i = 0; i < self->ranks; i++) {
    // In place, each rank's own block is at the rank's own position of its `out`, so the distance between the blocks of
    // two ranks differs from that between their buffers.
    const char *from = task->in_place ? (char *)at(self, out, i) + block * (size_t)i : (char *)at(self, in, i);
    if (!task->in_place || i != self->rank) bench_floor_copy((char *)out + block * (size_t)i, from, block);
  }
}

static int run_slices(void *context, const bench_task *task, const void *in, void *out) {
  floor_rank *self = context;
  barrier(self);
  if (!strcmp(task->op, "all_reduce"))
    all_reduce_slices(self, task, in, out);
  else if (!strcmp(task->op, "reduce_scatter"))
    reduce_scatter_slices(self, task, in, out);
  else
    all_gather_slices(self, task, in, out);
  return barrier(self);
}

/* Copies `in` to this rank's slot and waits until all ranks have filled theirs; slots[i] is then rank i's data. */
static void show_slot(floor_rank *self, const void *in, size_t bytes, const void *slots[]) {
  unsigned long turn = ++self->turns;
  slot *own = &desk_of(self, self->rank)->slots[turn % 2];
  memcpy(own->bytes, in, bytes);
  atomic_store_explicit(&own->full.count, turn, memory_order_release);
  for (int i = 0; i < self->ranks; i++) {
    slot *other = &desk_of(self, i)->slots[turn % 2];
    wait_until(self, &other->full.count, turn);
    slots[i] = other->bytes;
  }
}

static int run_slots(void *context, const bench_task *task, const void *in, void *out) {
  floor_rank *self = context;
  int scatters = !strcmp(task->op, "reduce_scatter"), gathers = !strcmp(task->op, "all_gather");
  size_t block = task->bytes / (size_t)self->ranks, bytes = gathers ? block : task->bytes;
  if (bytes > SLOT_BYTES) return 1;
  const void *slots[BENCH_RANKS_MAX];
  show_slot(self, in, bytes, slots);
  if (gathers) {
    for (int i = 0; i < self->ranks; i++) memcpy((char *)out + block * (size_t)i, slots[i], block);
    return 0;
  }
  const float *from[BENCH_RANKS_MAX];
  float *to = out;
  size_t first = scatters ? block * (size_t)self->rank : 0;
  for (int i = 0; i < self->ranks; i++) from[i] = (const float *)slots[i] + first / sizeof(float);
  bench_floor_sum(from, self->ranks, &to, 1, (scatters ? block : task->bytes) / sizeof(float));
  return 0;
}

static int is_narrow(const bench_task *task) { return bench_element(task->dtype) < sizeof(float); }

/* Copies this rank's gradients into its bucket, converted to the bucket's dtype. */
static void fill_bucket(floor_rank *self, const bench_task *task, size_t numel) {
  void *bucket = buffer_of(self, self->rank, BUCKET), *produced = buffer_of(self, self->rank, PRODUCED);
  if (is_narrow(task))
    bench_floor_narrow(bucket, produced, numel);
  else
    bench_floor_copy(bucket, produced, numel * sizeof(float));
}

/* Copies gradients into a bucket and, if the bucket is of a narrower dtype, back out of it as f32. */
static int run_copy_in(floor_rank *self, const bench_task *task) {
  size_t numel = task->bytes / bench_element(task->dtype);
  if (self->way == BENCH_FLOOR_SLOTS) return 1;
  fill_bucket(self, task, numel);
  if (is_narrow(task)) bench_floor_widen(buffer_of(self, self->rank, SUM), buffer_of(self, self->rank, BUCKET), numel);
  return 0;
}

/* The task "reducer": copies gradients into buckets (unless in place) and all-reduces the buckets in place. */
static int run_gradients(floor_rank *self, const bench_task *task) {
  char *bucket = buffer_of(self, self->rank, BUCKET);
  if (task->bytes > self->buffer_bytes || self->way == BENCH_FLOOR_SLOTS) return 1;
  if (!task->in_place) bench_floor_copy(bucket, buffer_of(self, self->rank, PRODUCED), task->bytes);
  barrier(self);
  all_reduce_slices(self, task, bucket, bucket);
  return barrier(self);
}

/* ---- the exchange of expert parallelism: rows to the experts' ranks and back ---- */

static float *row_of(const floor_rank *self, int rank, size_t which, size_t row) {
  return (float *)buffer_of(self, rank, which) + row * BENCH_WIDTH;
}

static void copy_placed(const floor_rank *self) {
  for (int n = 0; n < self->routes.count; n++) {
    const bench_run *run = &self->routes.runs[n];
    bench_floor_copy(row_of(self, self->rank, PLACED, run->placed), row_of(self, run->rank, SENT, run->sent),
                     run->rows * BENCH_ROW_BYTES);
  }
}

/* Writes the results into the senders' memory: the rank with the experts knows where the rows came from. */
static void copy_back(const floor_rank *self) {
  for (int n = 0; n < self->routes.count; n++) {
    const bench_run *run = &self->routes.runs[n];
    bench_floor_copy(row_of(self, run->rank, BACK, run->sent), row_of(self, self->rank, PLACED, run->placed),
                     run->rows * BENCH_ROW_BYTES);
  }
}

static int hold_routes(floor_rank *self, size_t rows) {
  if (self->routes.sent == rows) return 0;
  bench_routes_make(rows, self->rank, self->ranks, &self->routes);
  if (self->routes.received * BENCH_ROW_BYTES > self->buffer_bytes) return 1;
  bench_rows_sign(buffer_of(self, self->rank, SENT), &self->routes);
  return 0;
}

/* Exchanges rows: reads each row once from its sender's memory and writes it once, and likewise on the way back. */
static int run_exchange(floor_rank *self, const bench_task *task) {
  if (self->way == BENCH_FLOOR_SLOTS || hold_routes(self, task->bytes / BENCH_ROW_BYTES)) return 1;
  barrier(self);
  copy_placed(self);
  int placed = task->iterations || bench_rows_are_placed(buffer_of(self, self->rank, PLACED), &self->routes);
  copy_back(self);
  barrier(self);
  return !placed || (!task->iterations && !bench_rows_are_back(buffer_of(self, self->rank, BACK), &self->routes));
}

/* ---- a batch over a bridge ---- */

/* Concatenates the parts of a batch of the two ranks of a pair, `numel` elements each, on this rank. */
static void gather_pair(const floor_rank *self, int to, int from, size_t numel) {
  int first = self->rank / 2 * 2;
  for (int i = 0; i < 2; i++)
    bench_floor_copy((float *)buffer_of(self, self->rank, (size_t)to) + numel * (size_t)i,
                     buffer_of(self, first + i, (size_t)from), numel * sizeof(float));
}

/* Makes one batch of the parts of the two ranks of a pair, on both ranks. In backward, each rank sums both gradients
 * of its own part. */
static void fan_in(const floor_rank *self) {
  size_t own = self->sides.source.numel, before = self->sides.source.first - self->sides.destination.first;
  float *to = buffer_of(self, self->rank, SOURCE_GRADIENT);
  const float *from[2];
  for (int i = 0; i < 2; i++)
    from[i] = (const float *)buffer_of(self, self->rank / 2 * 2 + i, DESTINATION_GRADIENT) + before;
  gather_pair(self, DESTINATION, SOURCE, own);
  bench_floor_sum(from, 2, &to, 1, own);
}

static void fan_out(const floor_rank *self) {
  size_t own = self->sides.destination.numel, before = self->sides.destination.first - self->sides.source.first;
  bench_floor_copy(buffer_of(self, self->rank, DESTINATION),
                   (const float *)buffer_of(self, self->rank, SOURCE) + before, own * sizeof(float));
  gather_pair(self, SOURCE_GRADIENT, DESTINATION_GRADIENT, own);
}

static int hold_sides(floor_rank *self, const bench_task *task) {
  bench_sides sides;
  if (bench_sides_make(task, self->rank, self->ranks, &sides) || task->bytes > self->buffer_bytes) return 1;
  if (self->sides.bytes == sides.bytes && self->sides.direction == sides.direction) return 0;
  self->sides = sides;
  bench_side_fill(buffer_of(self, self->rank, SOURCE), &sides.source);
  bench_side_fill(buffer_of(self, self->rank, DESTINATION_GRADIENT), &sides.destination);
  return 0;
}

/* The task "bridge": reads and writes each number once; gradients are read directly from the other rank's memory. */
static int run_bridge(floor_rank *self, const bench_task *task) {
  const bench_sides *sides = &self->sides;
  if (self->way == BENCH_FLOOR_SLOTS || hold_sides(self, task) || sides->direction == BENCH_EQUAL) return 1;
  barrier(self);
  if (sides->direction == BENCH_FAN_IN)
    fan_in(self);
  else
    fan_out(self);
  barrier(self);
  if (task->iterations) return 0;
  return !bench_side_holds(buffer_of(self, self->rank, DESTINATION), &sides->destination, 1) ||
         !bench_side_holds(buffer_of(self, self->rank, SOURCE_GRADIENT), &sides->source, bench_sides_addends(sides));
}

/* ---- an exchange between pools ---- */

/* Ranks [first, first + count). */
typedef struct ranks_of {
  int first, count;
} ranks_of;

/* Sets *from and *to to the ranks of the pool that sends and of the pool that receives. */
static void find_pools(const bench_pools *pools, bench_exchanged exchanged, ranks_of *from, ranks_of *to) {
  const ranks_of ci = {0, pools->ci}, blocks = {pools->ci, pools->blocks * pools->per_block};
  const ranks_of adv = {blocks.first + blocks.count, pools->adv};
  const ranks_of givers[BENCH_EXCHANGED] = {ci, ci, blocks, adv, blocks, adv};
  const ranks_of receivers[BENCH_EXCHANGED] = {blocks, adv, ci, ci, adv, blocks};
  *from = givers[exchanged];
  *to = receivers[exchanged];
}

/* Copies `bytes` to this rank, in equal parts from all ranks `from`. */
static void take_share(const floor_rank *self, ranks_of from, size_t bytes) {
  char *to = buffer_of(self, self->rank, DESTINATION);
  for (int i = 0; i < from.count; i++) {
    size_t first = bytes * (size_t)i / (size_t)from.count, end = bytes * (size_t)(i + 1) / (size_t)from.count;
    bench_floor_copy(to + first, (const char *)buffer_of(self, from.first + i, SOURCE) + first, end - first);
  }
}

/* Runs an exchange between pools: reads and writes each byte that a rank must get once. Gradients from pool adv go
 * only to the first rank of each block. */
static int run_transfer(floor_rank *self, const bench_task *task) {
  bench_pools pools = bench_pools_of(self->ranks);
  bench_exchanged exchanged;
  ranks_of from, to;
  if (self->way == BENCH_FLOOR_SLOTS || bench_exchanged_parse(task->storage, &exchanged)) return 1;
  find_pools(&pools, exchanged, &from, &to);
  int every = exchanged == BENCH_ADV_BLOCKS ? pools.per_block : 1, own = self->rank - to.first;
  size_t share = task->bytes / (size_t)(to.count / every);
  if (share > self->buffer_bytes) return 1;
  barrier(self);
  if (own >= 0 && own < to.count && own % every == 0) take_share(self, from, share);
  barrier(self);
  return 0;
}

/* ---- a sharded step ---- */

typedef struct part {
  size_t first, numel;
} part;

static part cut(size_t numel, size_t index, size_t parts) {
  size_t first = numel * index / parts;
  return (part){first, numel * (index + 1) / parts - first};
}

static part own_part(const floor_rank *self, size_t numel) {
  return cut(numel, (size_t)self->rank, (size_t)self->ranks);
}

/* Returns buffer `which` as floats: this rank's own or, for COPY, that of rank 0. */
static float *floats(const floor_rank *self, size_t which) {
  return buffer_of(self, which == COPY ? 0 : self->rank, which);
}

/* Sums all ranks' buckets into this rank's own part. */
static void reduce_scatter_buckets(floor_rank *self, const bench_task *task, size_t numel) {
  part own = own_part(self, numel);
  const float *wide[BENCH_RANKS_MAX];
  const uint16_t *narrow[BENCH_RANKS_MAX];
  float *sum = floats(self, SUM);
  barrier(self);
  for (int i = 0; i < self->ranks; i++) {
    wide[i] = (const float *)buffer_of(self, i, BUCKET) + own.first;
    narrow[i] = (const uint16_t *)buffer_of(self, i, BUCKET) + own.first;
  }
  if (is_narrow(task))
    bench_floor_sum_narrow(narrow, self->ranks, sum, own.numel);
  else
    bench_floor_sum(wide, self->ranks, &sum, 1, own.numel);
  barrier(self);
}

/* Updates this rank's shard by Muon without its products: the direction goes from shards to the ranks that have whole
 * matrices, each of which has as many elements as a shard, and the results come back. */
static void update_by_muon(floor_rank *self, part own) {
  float *direction = floats(self, SECOND);
  bench_floor_direction(floats(self, FIRST), floats(self, SUM), direction, own.numel);
  barrier(self);
  int next = (self->rank + 1) % self->ranks, last = (self->rank + self->ranks - 1) % self->ranks;
  bench_floor_copy(floats(self, VALUE), buffer_of(self, next, SECOND), own.numel * sizeof(float));
  barrier(self);
  bench_floor_apply(floats(self, MASTER), (const float *)buffer_of(self, last, VALUE), own.numel);
  barrier(self);
}

/* Updates this rank's shard (tasks "update" and "muon") and rounds it to the dtype in which it is stored. */
static void update_own(floor_rank *self, const bench_task *task, size_t numel) {
  part own = own_part(self, numel);
  float *master = floats(self, MASTER);
  if (!strcmp(task->op, "muon")) update_by_muon(self, own);
  if (!strcmp(task->op, "update"))
    bench_floor_update(master, floats(self, FIRST), floats(self, SECOND), floats(self, SUM), own.numel);
  if (is_narrow(task)) bench_floor_narrow((uint16_t *)(void *)floats(self, VALUE), master, own.numel);
}

/* Writes this rank's shard into the common unsharded copy, piece by piece, with a barrier after each. */
static void gather(floor_rank *self, const bench_task *task, size_t numel, size_t pieces) {
  part own = own_part(self, numel);
  for (size_t i = 0; i < pieces; i++) {
    part piece = cut(own.numel, i, pieces);
    float *copy = floats(self, COPY) + own.first + piece.first;
    if (is_narrow(task))
      bench_floor_widen(copy, (const uint16_t *)(void *)floats(self, VALUE) + piece.first, piece.numel);
    else
      bench_floor_copy(copy, floats(self, MASTER) + piece.first, piece.numel * sizeof(float));
    barrier(self);
  }
}

static int run_sharded(floor_rank *self, const bench_task *task) {
  size_t numel = task->bytes / bench_element(task->dtype);
  int releases = bench_releases(task);
  for (int pass = 0; releases && pass < 2; pass++) gather(self, task, numel, PIECES);
  if (!task->in_place) fill_bucket(self, task, numel);
  reduce_scatter_buckets(self, task, numel);
  update_own(self, task, numel);
  if (!releases) gather(self, task, numel, 1);
  return 0;
}

static int run(void *context, const bench_task *task, const void *in, void *out) {
  floor_rank *self = context;
  if (!strcmp(task->op, "copy_in")) return run_copy_in(self, task);
  if (!strcmp(task->op, "reducer")) return run_gradients(self, task);
  if (!strcmp(task->op, "sharded_step") || !strcmp(task->op, "update") || !strcmp(task->op, "muon"))
    return run_sharded(self, task);
  if (!strcmp(task->op, "exchange")) return run_exchange(self, task);
  if (!strcmp(task->op, "bridge")) return run_bridge(self, task);
  if (!strcmp(task->op, "decompose_exchange")) return run_transfer(self, task);
  if (!bench_is_collective(task->op)) return 1;
  return self->way == BENCH_FLOOR_SLOTS ? run_slots(context, task, in, out) : run_slices(context, task, in, out);
}

static int be_rank(const char *address, floor_rank *self) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  self->spins =
      self->ranks <= cores ? 1 << 14 : 1 << 5;  // with more ranks than cores, the awaited rank may need this core
  bench_team team = {.self = self,
                     .rank = self->rank,
                     .ranks = self->ranks,
                     .only_f32 = 1,
                     .alloc = floor_alloc,
                     .free = floor_free,
                     .run = run,
                     .barrier = barrier};
  return bench_work(address, &team);
}

int bench_floor(const char *address, int ranks, bench_floor_way way, size_t numel) {
  size_t needed = numel * sizeof(float) > SMALLEST_BUFFER ? numel * sizeof(float) : SMALLEST_BUFFER;
  size_t buffer_bytes = (needed + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, bytes = mapping_bytes(ranks, buffer_bytes);
  char *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return 1;
  (void)madvise(mapping, bytes, MADV_HUGEPAGE);  // has an effect if the system allows it for shared memory
  for (int rank = 0; rank < ranks; rank++) {
    floor_rank self = {.mapping = mapping, .rank = rank, .ranks = ranks, .way = way, .buffer_bytes = buffer_bytes};
    if (fork() == 0) _exit(be_rank(address, &self));
  }
  int status = 0, failed = 0;
  while (wait(&status) > 0) failed |= status;
  munmap(mapping, bytes);
  return failed != 0;
}
