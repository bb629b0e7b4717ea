/* Moving the values of a call between its members. */
#ifndef COMM_MPI_MOVE_H
#define COMM_MPI_MOVE_H
#include "comm/mpi/world.h"

/* Before the call is told: makes room for members, requests and received addends. */
ad_status ad_mpi_reserve(mpi_call *c) AD_CHECKED;
/* Moves the values that can be moved now; 1 when the call is complete. */
int ad_mpi_move(mpi_world *world, mpi_call *c);
/* Gives up all requests of the call. */
void ad_mpi_abandon(mpi_world *world, mpi_call *c);

/* ---- pack.c ---- */

/* A call with segments is moved as another one, whose blocks lie one after another in memory of the engine: ad_mpi_pack
 * makes it and copies the inputs there, before ad_mpi_reserve; ad_mpi_unpack copies the outputs back when it is
 * complete. Calls without segments are left as they are. */
ad_status ad_mpi_pack(mpi_call *c) AD_CHECKED;
void ad_mpi_unpack(mpi_call *c);

#endif
