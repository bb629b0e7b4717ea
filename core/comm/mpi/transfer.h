/* Messages from one rank to another that cross between nodes. */
#ifndef COMM_MPI_TRANSFER_H
#define COMM_MPI_TRANSFER_H
#include "comm/mpi/world.h"
#include "comm/shm/transfer.h"

/* A large message to another node that is in flight. */
typedef struct mpi_send {
  shm_transfer side;  // the same transfer as a struct of backend shm, whose waits use it
  struct mpi_send *next;
  ad_call *call;    // NULL: the bytes were copied, and the caller's call is complete
  uint64_t number;  // counts this rank's large messages
  uint32_t peer, tag;
  size_t bytes;
  void *copy;            // owned; NULL: the bytes are in the caller's buffer
  void *request;         // NULL: the receiver has not asked for the bytes yet
  int64_t since, retry;  // by ad_now(): when the message was posted; when copying is tried again
} mpi_send;

/* Lets backend shm receive messages that come from other nodes. */
void ad_mpi_transfers_begin(mpi_world *world);
/* Gives up all transfers in flight. Called after an error, and at the end. */
void ad_mpi_abandon_transfers(mpi_world *world);
ad_status ad_mpi_post_transfer(mpi_world *world, ad_call *call) AD_CHECKED;
/* Returns 1 if the transfer is complete; call->backend is then NULL. */
int ad_mpi_transfer_done(mpi_world *world, ad_call *call);
/* Returns 1 if this rank has a send to another node in flight whose bytes are still in the caller's buffer. */
int ad_mpi_is_sending(const mpi_world *world);
/* Continues the sending of large messages, and ends those that are sent. */
void ad_mpi_progress_transfers(mpi_world *world);
/* Act on two kinds of mail: a message (takes ownership of it), and a request for the bytes of a large message. */
void ad_mpi_take_message(mpi_world *world, mail_message_to *message);
void ad_mpi_take_request(mpi_world *world, const mail_request *asked);

#endif
