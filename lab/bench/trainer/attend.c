/* The program bench_attention: times attention alone, forward and backward, on the ranks of one world, and how much of
 * this time ranks compute or wait. The linker's --wrap sends attention's arithmetic, and all calls that may wait for
 * other ranks, through this file. Usage: bench_attention ring|ring_plain|gather RANKS SEQ. Prints one JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>

#include "measured.h"

enum { HEADS = 8, HEAD_DIM = 64, WARM = 1, TIMED = 1 };

/* ---- timing arithmetic and waiting ---- */

static double arithmetic; /* processor seconds in attention's arithmetic */
static double waiting;    /* seconds inside calls that may wait for other ranks */

static double processor_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

typedef struct attention_forward attention_forward; /* the library's types, only passed on */
typedef struct attention_backward attention_backward;
typedef struct attention_part attention_part;

void __real_ad_attention_add(const attention_forward *at, const attention_part *part);
void __wrap_ad_attention_add(const attention_forward *at, const attention_part *part);
void __real_ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v);
void __wrap_ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v);
ad_status __real_ad_comm_run_at(ad_comm *comm, const ad_collective *collective, const char *site);
ad_status __wrap_ad_comm_run_at(ad_comm *comm, const ad_collective *collective, const char *site);
ad_status __real_ad_comm_wait(ad_comm *comm, ad_request *request);
ad_status __wrap_ad_comm_wait(ad_comm *comm, ad_request *request);

void __wrap_ad_attention_add(const attention_forward *at, const attention_part *part) {
  double start = processor_seconds();
  __real_ad_attention_add(at, part);
  arithmetic += processor_seconds() - start;
}

void __wrap_ad_attention_back(const attention_backward *at, const attention_part *part, void *d_k, void *d_v) {
  double start = processor_seconds();
  __real_ad_attention_back(at, part, d_k, d_v);
  arithmetic += processor_seconds() - start;
}

ad_status __wrap_ad_comm_run_at(ad_comm *comm, const ad_collective *collective, const char *site) {
  double start = bench_now();
  ad_status status = __real_ad_comm_run_at(comm, collective, site);
  waiting += bench_now() - start;
  return status;
}

ad_status __wrap_ad_comm_wait(ad_comm *comm, ad_request *request) {
  double start = bench_now();
  ad_status status = __real_ad_comm_wait(comm, request);
  waiting += bench_now() - start;
  return status;
}

/* ---- what a rank does ---- */

typedef struct spent {
  double seconds, arithmetic, waiting;
} spent;

typedef struct job {
  const char *variant;
  int ranks;
  int64_t seq;
  spent *spent; /* the times of each rank, in memory that all ranks share */
} job;

enum { Q, K, V, D_OUT, VALUES };

typedef struct attention_rank {
  const job *job;
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group everyone;
  ad_tape *tape;
  ad_array value[VALUES]; /* [1, seq, HEADS * HEAD_DIM] each, sharded along the sequence */
} attention_rank;

static ad_status make_value(attention_rank *self, const ad_layout *layout, ad_array *out) {
  ad_shape shape = {3, {1, self->job->seq, HEADS * HEAD_DIM}};
  *out = ad_array_describe(self->comm, AD_F32, &shape, layout);
  float *memory = malloc(ad_array_bytes(out));
  if (!memory) return AD_MEMORY;
  for (size_t i = 0; i < ad_array_numel(out); i++) memory[i] = 1e-3f * (float)(i * 7919 % 2003) - 1;
  out->data = memory;
  return AD_OK;
}

static ad_status make(attention_rank *self) {
  char text[32];
  ad_layout layout, dual;
  ad_tape_options options = {.size = sizeof options, .dtype = AD_F32};
  snprintf(text, sizeof text, "cp=%d", self->job->ranks);
  AD_TRY(ad_mesh_create(text, &self->mesh));
  self->everyone = ad_mesh_group(self->mesh, AD_AXES_ALL, ad_comm_rank(self->comm));
  AD_TRY(ad_layout_parse(self->mesh, strcmp(self->job->variant, "ring_plain") ? "cp=S1z" : "cp=S1", &layout));
  dual = ad_layout_dual(&layout);
  for (int i = 0; i < VALUES; i++) AD_TRY(make_value(self, i == D_OUT ? &dual : &layout, &self->value[i]));
  return ad_tape_create(self->comm, self->mesh, &options, &self->tape);
}

static void give_back(attention_rank *self) {
  if (self->tape) ad_tape_destroy(self->tape);
  for (int i = 0; i < VALUES; i++) free(self->value[i].data);
  if (self->mesh) ad_mesh_destroy(self->mesh);
}

static ad_tensor *keys(attention_rank *self, int which) {
  ad_tensor *own = ad_input(self->tape, &self->value[which]);
  return strcmp(self->job->variant, "gather") ? own : ad_all_gather(self->tape, own, "cp", AD_R);
}

static ad_status attend(attention_rank *self) {
  ad_tape_reset(self->tape);
  ad_tensor *q = ad_input(self->tape, &self->value[Q]);
  ad_tensor *out = ad_attention(self->tape, q, keys(self, K), keys(self, V), HEAD_DIM);
  return ad_backward_from(self->tape, &out, (const ad_array *[]){&self->value[D_OUT]}, 1, AD_LAST_START);
}

static ad_status measure(attention_rank *self, spent *out) {
  for (int i = 0; i < WARM; i++) AD_TRY(attend(self));
  AD_TRY(ad_comm_barrier(self->comm, &self->everyone));
  arithmetic = waiting = 0;
  double start = bench_now();
  for (int i = 0; i < TIMED; i++) AD_TRY(attend(self));
  *out = (spent){(bench_now() - start) / TIMED, arithmetic / TIMED, waiting / TIMED};
  return AD_OK;
}

static int be_rank(ad_comm *comm, void *context) {
  const job *asked = context;
  attention_rank self = {.job = asked, .comm = comm};
  ad_status status = make(&self);
  if (!status) status = measure(&self, &asked->spent[ad_comm_rank(comm)]);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  give_back(&self);
  return status != AD_OK;
}

/* ---- starting the ranks and reporting ---- */

/* Prints the result. balance: the largest arithmetic time of a rank, divided by the mean; exposed: the share of its
 * time that a rank spends inside calls that wait, mean over ranks. */
static int report(const job *j) {
  double slowest = 0, most = 0, all = 0, exposed = 0;
  for (int i = 0; i < j->ranks; i++) {
    const spent *rank = &j->spent[i];
    if (rank->seconds > slowest) slowest = rank->seconds;
    if (rank->arithmetic > most) most = rank->arithmetic;
    all += rank->arithmetic;
    exposed += rank->waiting / rank->seconds / j->ranks;
  }
  if (all <= 0)
    return fprintf(stderr, "bench_attention: no floating-point operation was counted, so nothing can be reported\n"), 1;
  printf("{\"seconds\":%.9g,\"arithmetic_seconds\":%.9g,\"balance\":%.6g,\"exposed\":%.6g}\n", slowest, all,
         most / all * j->ranks, exposed);
  return 0;
}

static int run(job *j) {
  ad_launch_options options = {.size = sizeof options, .ranks = j->ranks, .function = be_rank, .context = j};
  ad_launch_result result = {.size = sizeof result};
  if (ad_launch(&options, &result)) return fprintf(stderr, "bench_attention: %s\n", ad_last_error()), 1;
  return report(j);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  job j = {.variant = argv[1], .ranks = atoi(argv[2]), .seq = atoll(argv[3])};
  if (j.ranks < 1 || j.ranks > BENCH_RANKS_MAX || j.seq < 1) return 2;
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // end with the parent, which reads the result
  size_t bytes = (size_t)j.ranks * sizeof *j.spent;
  j.spent = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (j.spent == MAP_FAILED) return perror("bench_attention"), 1;
  int status = run(&j);
  munmap(j.spent, bytes);
  return status;
}
