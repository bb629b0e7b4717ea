/* The data exchange of a bridge, written by hand in MPI for the two known meshes: the two ranks of a pair share a
 * communicator, and a rank copies the data that it already has. */
#include "mpi_bridge.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "sides.h"

static struct {
  bench_sides sides;
  MPI_Comm pair;
  float *source, *destination, *destination_gradient, *source_gradient;
} held;

static void let_go(void) {
  float *const memory[] = {held.source, held.destination, held.destination_gradient, held.source_gradient};
  for (int i = 0; i < 4; i++) free(memory[i]);
  held.source = NULL;
}

static int join(const bench_team *team) {
  if (held.pair) return 0;
  return MPI_Comm_split(MPI_COMM_WORLD, team->rank / 2, team->rank, &held.pair);
}

static int hold(const bench_team *team, const bench_task *task) {
  bench_sides sides;
  if (join(team) || bench_sides_make(task, team->rank, team->ranks, &sides)) return 1;
  if (held.source && held.sides.bytes == sides.bytes && held.sides.direction == sides.direction) return 0;
  let_go();
  held.sides = sides;
  held.source = malloc(sides.source.numel * sizeof(float));
  held.destination = calloc(sides.destination.numel, sizeof(float));
  held.destination_gradient = malloc(sides.destination.numel * sizeof(float));
  held.source_gradient = calloc(sides.source.numel, sizeof(float));
  if (!held.source || !held.destination || !held.destination_gradient || !held.source_gradient) return 1;
  bench_side_fill(held.source, &sides.source);
  bench_side_fill(held.destination_gradient, &sides.destination);
  return 0;
}

static int fan_in(void) {
  int own = (int)held.sides.source.numel;
  return MPI_Allgather(held.source, own, MPI_FLOAT, held.destination, own, MPI_FLOAT, held.pair) ||
         MPI_Reduce_scatter_block(held.destination_gradient, held.source_gradient, own, MPI_FLOAT, MPI_SUM, held.pair);
}

static int fan_out(void) {
  size_t own = held.sides.destination.numel, before = held.sides.destination.first - held.sides.source.first;
  memcpy(held.destination, held.source + before, own * sizeof(float));
  return MPI_Allgather(held.destination_gradient, (int)own, MPI_FLOAT, held.source_gradient, (int)own, MPI_FLOAT,
                       held.pair);
}

int mpi_bridge(const bench_team *team, const bench_task *task) {
  if (hold(team, task) || held.sides.direction == BENCH_EQUAL) return 1;
  if (held.sides.direction == BENCH_FAN_IN ? fan_in() : fan_out()) return 1;
  if (task->iterations) return 0;
  return !bench_side_holds(held.destination, &held.sides.destination, 1) ||
         !bench_side_holds(held.source_gradient, &held.sides.source, bench_sides_addends(&held.sides));
}
