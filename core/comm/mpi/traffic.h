/* Messages with the values of a call, and receipts for values that others read or write in the node's file. */
#ifndef COMM_MPI_TRAFFIC_H
#define COMM_MPI_TRAFFIC_H
#include "comm/mpi/spans.h"
#include "comm/mpi/world.h"

/* The two message tags of a call: for addends, and for results. Messages from one member to another with the same tag
 * arrive in order. */
typedef enum mpi_phase { PHASE_ADDENDS, PHASE_RESULTS } mpi_phase;

/* Start a message to, or from, member k and return its request; NULL: the world has an error. */
void *ad_mpi_send(mpi_world *world, const mpi_call *c, uint32_t k, mpi_phase phase, mpi_span from);
void *ad_mpi_receive(mpi_world *world, const mpi_call *c, uint32_t k, mpi_phase phase, mpi_span to);
/* Records a request that ad_mpi_all_done tests. */
void ad_mpi_add_request(mpi_call *c, void *request);
/* Returns 1 if the request is done, or if *request was NULL already. *request is NULL afterwards. */
int ad_mpi_is_done(mpi_world *world, void **request);
int ad_mpi_all_done(mpi_world *world, mpi_call *c);
/* Cancels all requests of the call. Returns 1 if MPI can no longer write to the call's memory. */
int ad_mpi_cancel_all(mpi_world *world, mpi_call *c);
/* Sends member k a receipt: this rank has read k's addends, or written into k's output, in the shared memory file. */
void ad_mpi_send_receipt(mpi_world *world, const mpi_call *c, uint32_t k, mpi_receipt what);

#endif
