/* Messages from one rank to another that cross between nodes. */
#ifndef COMM_MPI_TRANSFER_H
#define COMM_MPI_TRANSFER_H
#include "comm/mpi/world.h"
#include "comm/shm/transfer.h"

/* A large message on its way to another node. */
typedef struct mpi_send {
  shm_transfer side;  // what a wait looks at
  struct mpi_send *next;
  ad_call *call;  // NULL: its memory was copied, and its rank has gone on
  uint64_t number;
  uint32_t peer, tag;
  size_t bytes;
  void *copy;     // owned; NULL: the bytes are where the call has them
  void *request;  // NULL: the receiver has not asked for it
  int64_t since, retry;
} mpi_send;

/* Lets engine shm hand over what comes from other nodes. */
void ad_mpi_transfers_begin(mpi_world *world);
/* Gives up what is under way: after an error, or at the end. */
void ad_mpi_abandon_transfers(mpi_world *world);
ad_status ad_mpi_post_transfer(mpi_world *world, ad_call *call) AD_CHECKED;
/* 1: the transfer is complete, and call->engine is NULL. */
int ad_mpi_transfer_done(mpi_world *world, ad_call *call);
/* Whether a transfer of this rank is under way to another node that was not copied. */
int ad_mpi_is_sending(const mpi_world *world);
/* Moves the values of large messages. */
void ad_mpi_progress_transfers(mpi_world *world);
/* Act on mail; the first takes its memory. */
void ad_mpi_take_message(mpi_world *world, mail_message_to *message);
void ad_mpi_take_request(mpi_world *world, const mail_request *asked);

#endif
