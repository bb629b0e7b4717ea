/* Moving the values of a call between its members. */
#ifndef COMM_MPI_MOVE_H
#define COMM_MPI_MOVE_H
#include "comm/mpi/traffic.h"
#include "comm/mpi/world.h"

/* Allocates the call's arrays of members and requests, and memory for received addends and partial sums. Called before
 * the call is announced. */
ad_status ad_mpi_reserve(mpi_call *c) AD_CHECKED;
/* Moves the values that can be moved now. Returns 1 when the call is complete. */
int ad_mpi_move(mpi_world *world, mpi_call *c);
/* Cancels all MPI requests of the call. */
void ad_mpi_abandon(mpi_world *world, mpi_call *c);

/* ---- in addends.c: collecting addends (a broadcast is a sum of one member's addends) ---- */

ad_status ad_mpi_reserve_addends(mpi_call *c) AD_CHECKED;
/* Starts to send this rank's addends to the members that sum them, and to receive the addends that this rank sums. */
void ad_mpi_begin_collecting(mpi_world *world, mpi_call *c);
/* Returns 1 if this rank has sent its partial sums for members of other nodes. */
int ad_mpi_has_sent_partials(mpi_world *world, mpi_call *c);
/* Returns 1 if all addends that this rank sums have arrived. */
int ad_mpi_has_collected(mpi_world *world, mpi_call *c);
/* Adds up the addends of this rank's slice (in a small call, of the full value) into `out`. */
void ad_mpi_add_up(const mpi_call *c, void *out, size_t bytes);
/* Sends receipts to the members whose addends this rank has read in the shared memory file. */
void ad_mpi_report_what_is_read(mpi_world *world, const mpi_call *c);

/* ---- in results.c: distributing results to the members that need them ---- */

/* Starts to send this rank's slice, or its blocks, to the members that need them. */
void ad_mpi_begin_distributing(mpi_world *world, mpi_call *c);
/* Starts to receive those slices or blocks of other members that can be received now. */
void ad_mpi_ask_for_results(mpi_world *world, mpi_call *c);
/* Returns 1 if this rank has all results that it needs, and no other rank needs a result from it. */
int ad_mpi_has_distributed(mpi_world *world, mpi_call *c);

/* ---- in pack.c: calls with segments, and sums of leaves ---- */

/* A call with segments, or with several results for all members, is carried out by means of a second, packed call,
 * whose blocks and slices are contiguous in memory of the backend. ad_mpi_pack, called before ad_mpi_reserve, makes the
 * packed call and copies the inputs into it; ad_mpi_unpack copies the outputs back when the packed call is complete.
 * The two functions do nothing for any other call. */
ad_status ad_mpi_pack(mpi_call *c) AD_CHECKED;
void ad_mpi_unpack(mpi_call *c);

#endif
