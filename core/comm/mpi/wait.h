/* Waiting in a world of several nodes. */
#ifndef COMM_MPI_WAIT_H
#define COMM_MPI_WAIT_H
#include "comm/mpi/world.h"
#include "mesh/group.h"

/* Waits until the call is complete or the world has an error. */
ad_status ad_mpi_wait(mpi_world *world, ad_call *call) AD_CHECKED;

/* ---- in search.c: searching for circles of waits ---- */

/* The group and the sequence number of the call that this rank waits for. */
typedef struct mpi_waited {
  const ad_group_shape *shape;
  uint64_t sequence;
  uint32_t members;
} mpi_waited;

mpi_waited ad_mpi_waited_call(const mpi_world *world);
/* Returns 1 if the member has not yet announced the call that this rank waits for. */
int ad_mpi_is_missing(const mpi_world *world, uint32_t member);
/* Begins a search for a circle of waits with this rank in it. */
void ad_mpi_search(mpi_world *world);
/* Acts on a search that another rank sent to this rank. If this rank began the search, there is a circle; otherwise
 * sends the search on if this rank waits too. */
void ad_mpi_follow_search(mpi_world *world, const mail_search *search);

/* ---- in query.c: asking other ranks what they wait for ---- */

/* For a rank that waits to receive from any source: asks all ranks that could send whether they can continue. */
void ad_mpi_ask_all(mpi_world *world);
void ad_mpi_take_query(mpi_world *world, const mail_query *query);

/* ---- in progress.c: advancing calls while a rank waits ---- */

/* Advances all calls in flight as far as is possible now, on the node and between nodes. */
void ad_mpi_progress(mpi_world *world);

#endif
