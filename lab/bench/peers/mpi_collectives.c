/* Measures MPI with the same worker as addend; compiled once for each MPI with its own compiler. Usage: mpirun -n N
 * THIS ADDRESS. MPI has no bf16 and f16, no reducer and no training steps: it cannot do these tasks. */
#include <mpi.h>
#include <string.h>

#include "mpi_bridge.h"
#include "mpi_exchange.h"
#include "worker.h"

static int all_reduce(const bench_task *task, const void *in, void *out, int numel) {
  return MPI_Allreduce(task->in_place ? MPI_IN_PLACE : in, out, numel, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* In place, MPI leaves a rank's block at the beginning of the buffer. When the result is checked, the block is moved
 * to the position that it has in the other programs. */
static int reduce_scatter(const bench_task *task, const void *in, void *out, int block) {
  if (task->in_place) {
    void *whole = (void *)(size_t)in;
    int failed = MPI_Reduce_scatter_block(MPI_IN_PLACE, whole, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (!task->iterations) memmove(out, whole, (size_t)block * sizeof(float));
    return failed;
  }
  return MPI_Reduce_scatter_block(in, out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int all_gather(const bench_task *task, const void *in, void *out, int block) {
  return MPI_Allgather(task->in_place ? MPI_IN_PLACE : in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD);
}

static int all_to_all(const void *in, void *out, int block) {
  return MPI_Alltoall(in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD);
}

static int run(void *context, const bench_task *task, const void *in, void *out) {
  const bench_team *team = context;
  int numel = (int)(task->bytes / sizeof(float));
  if (strcmp(task->dtype, "f32")) return 1;
  if (!strcmp(task->op, "all_reduce")) return all_reduce(task, in, out, numel);
  if (!strcmp(task->op, "reduce_scatter")) return reduce_scatter(task, in, out, numel / team->ranks);
  if (!strcmp(task->op, "all_gather")) return all_gather(task, in, out, numel / team->ranks);
  if (!strcmp(task->op, "all_to_all")) return all_to_all(in, out, numel / team->ranks);
  if (!strcmp(task->op, "exchange")) return mpi_exchange(team, task);
  if (!strcmp(task->op, "bridge")) return mpi_bridge(team, task);
  return 1;
}

static int barrier(void *context) { return MPI_Barrier(MPI_COMM_WORLD); }

int main(int argc, char **argv) {
  bench_team team = {.run = run, .barrier = barrier};
  team.self = &team;
  if (argc != 2 || MPI_Init(&argc, &argv)) return 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &team.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &team.ranks);
  int status = bench_work(argv[1], &team);
  MPI_Finalize();
  return status;
}
