/* Ranks on several nodes, without an MPI: processes of this machine that count as ranks of the nodes that a text names,
 * a letter for each rank, on backend mpi. Messages between them pass through memory that all of them map.
 *
 *   ad_status __wrap_ad_mpi_load(const ad_mpi_transport **out) { ... *out = &nodes_transport; ... }   in the test's file
 *   run_on_nodes("aab", sums, NULL);      the function is one as run_ranks takes it (ranks.h), with its checks
 *
 * A rank that has not ended after RANK_HANGS seconds is ended, and the test fails. */
#ifndef TESTS_SUPPORT_NODES_H
#define TESTS_SUPPORT_NODES_H
#include "addend/comm.h"
#include "comm/mpi/transport.h"

extern const ad_mpi_transport nodes_transport;

#define run_on_nodes(nodes, function, context) run_on_nodes_at((nodes), (function), (context), __FILE__, __LINE__)
void run_on_nodes_at(const char *nodes, int (*function)(ad_comm *comm, void *context), void *context, const char *file,
                     int line);

#endif
