/* A batch over a bridge and its gradient back, written in MPI. */
#ifndef BENCH_PEERS_MPI_BRIDGE_H
#define BENCH_PEERS_MPI_BRIDGE_H
#include "worker.h"

/* Does the task, like `run` of bench_team. */
int mpi_bridge(const bench_team *team, const bench_task *task);

#endif
