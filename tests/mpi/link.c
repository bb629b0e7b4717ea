/* Measures how many bytes leave the hosts in a collective, by the counters of their network interfaces: prints a line
 * for each, "all_reduce f32 2.01", in units of the value's size. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/addend.h"

enum { TIMES = 4, COUNT = 5040 << 8 }; /* COUNT is divisible by any number of ranks up to 10 */

static ad_comm *comm;

static void must(ad_status status, int line) {
  if (!status) return;
  fprintf(stderr, "link.c:%d: %s: %s\n", line, ad_status_name(status), ad_last_error());
  exit(1);
}
#define MUST(call) must((call), __LINE__)

/* All ranks of a host see the same interfaces, so one of them counts. */
static int counts_for_host(void) {
  const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (!local) local = getenv("MPI_LOCALRANKID");
  return local && !strcmp(local, "0");
}

static int64_t sent_by_host(void) {
  char line[512], name[64];
  int64_t sent, total = 0;
  FILE *file = fopen("/proc/self/net/dev", "re");
  if (!file) exit(1);
  while (fgets(line, sizeof line, file))
    if (sscanf(line, " %63[^: ]: %*d %*d %*d %*d %*d %*d %*d %*d %" SCNd64, name, &sent) == 2 && strcmp(name, "lo"))
      total += sent;
  fclose(file);
  return counts_for_host() ? total : 0;
}

/* Bytes sent by all hosts, read once all ranks are here. */
static int64_t sent_by_all(void) {
  int64_t sent = 0;
  ad_collective barrier = {.size = sizeof barrier, .op = AD_BARRIER};
  MUST(ad_comm_run(comm, &barrier));
  sent = sent_by_host();
  ad_collective sum = {.size = sizeof sum, .op = AD_ALL_REDUCE, .in = &sent, .out = &sent, .count = 1, .dtype = AD_I64};
  MUST(ad_comm_run(comm, &sum));
  return sent;
}

static void measure(const char *name, ad_collective_op op, ad_dtype dtype, int in_file) {
  size_t bytes = COUNT * ad_dtype_size(dtype);
  void *in = calloc(1, bytes), *out = calloc(1, bytes);
  if (in_file) MUST(ad_comm_alloc(comm, bytes, &in));
  if (in_file) MUST(ad_comm_alloc(comm, bytes, &out));
  ad_collective call = {.size = sizeof call, .op = op, .in = in, .out = out, .count = COUNT, .dtype = dtype};
  if (op != AD_ALL_REDUCE) call.count /= (size_t)ad_comm_size(comm);
  MUST(ad_comm_run(comm, &call));
  int64_t before = sent_by_all();
  for (int i = 0; i < TIMES; i++) MUST(ad_comm_run(comm, &call));
  int64_t sent = sent_by_all() - before;
  if (ad_comm_rank(comm) == 0)
    printf("%s %s %.4f\n", name, ad_dtype_name(dtype), (double)sent / ((double)bytes * TIMES));
}

int main(void) {
  MUST(ad_comm_open(&comm));
  measure("all_reduce", AD_ALL_REDUCE, AD_F32, 1);
  measure("reduce_scatter", AD_REDUCE_SCATTER, AD_F32, 1);
  measure("reduce_scatter", AD_REDUCE_SCATTER, AD_BF16, 1);
  measure("reduce_scatter_elsewhere", AD_REDUCE_SCATTER, AD_F32, 0);
  measure("all_gather", AD_ALL_GATHER, AD_F32, 1);
  measure("all_gather_elsewhere", AD_ALL_GATHER, AD_F32, 0);
  ad_comm_close(comm);
  return 0;
}
