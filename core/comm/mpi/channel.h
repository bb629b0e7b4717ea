/* The calls of groups that span nodes: this rank tells its calls to the other members by mail, and matches theirs. */
#ifndef COMM_MPI_CHANNEL_H
#define COMM_MPI_CHANNEL_H
#include "comm/mpi/world.h"
#include "mesh/group.h"

/* Finds the channel of a group, or makes it. */
ad_status ad_mpi_channel(mpi_world *world, const ad_group_shape *shape, mpi_channel **out) AD_CHECKED;
/* Frees what is kept for a list that spans nodes, on which this rank makes no more calls. */
void ad_mpi_forget_list(mpi_world *world, const ad_group_shape *shape);
void ad_mpi_channels_free(mpi_world *world);
/* Tells the call to the other members, and takes in what they told of theirs before. */
ad_status ad_mpi_report(mpi_world *world, mpi_call *c) AD_CHECKED;
/* Takes in another member's call, and the memory of `reported`. A mismatch becomes the world's error. */
void ad_mpi_reported(mpi_world *world, mail_call *reported);
/* The call under way with this tag; NULL: none. */
mpi_call *ad_mpi_find_call(mpi_world *world, uint32_t tag);
/* Whether this rank has made call number `sequence` of the group. */
int ad_mpi_has_made(mpi_world *world, const ad_group_shape *shape, uint64_t sequence);

#endif
