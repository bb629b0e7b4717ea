/* Rows to the ranks of their experts and back, through MPI. */
#ifndef BENCH_PEERS_MPI_EXCHANGE_H
#define BENCH_PEERS_MPI_EXCHANGE_H
#include "worker.h"

/* Does the task, like `run` of bench_team. */
int mpi_exchange(const bench_team *team, const bench_task *task);

#endif
