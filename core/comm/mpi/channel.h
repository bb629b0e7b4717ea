/* The calls of groups that span nodes: this rank announces its calls to the other members by mail, and compares them
 * with the calls that the others announce. */
#ifndef COMM_MPI_CHANNEL_H
#define COMM_MPI_CHANNEL_H
#include "comm/mpi/world.h"
#include "mesh/group.h"

/* Finds the channel of a group; makes one if there is none. */
ad_status ad_mpi_channel(mpi_world *world, const ad_group_shape *shape, mpi_channel **out) AD_CHECKED;
/* Frees the channel of a list that spans nodes; this rank makes no more calls on the list. */
void ad_mpi_forget_list(mpi_world *world, const ad_group_shape *shape);
void ad_mpi_channels_free(mpi_world *world);
/* Announces the call to the other members, and compares it with the calls that they announced earlier. */
ad_status ad_mpi_report(mpi_world *world, mpi_call *c) AD_CHECKED;
/* Records a call that another member announced, and compares it with this rank's call. Takes ownership of `reported`. A
 * mismatch becomes the world's error. */
void ad_mpi_reported(mpi_world *world, mail_call *reported);
/* Returns the call in flight with this tag, or NULL if there is none. */
mpi_call *ad_mpi_find_call(mpi_world *world, uint32_t tag);
/* Returns 1 if this rank has made call number `sequence` of the group. */
int ad_mpi_has_made(mpi_world *world, const ad_group_shape *shape, uint64_t sequence);

#endif
