/* Small messages between any two ranks: their kinds, and sending them. */
#ifndef COMM_MPI_MAIL_H
#define COMM_MPI_MAIL_H
#include "base/error.h"
#include "comm/signature.h"
#include "comm/words.h"
#include "mesh/group.h"

typedef struct mpi_world mpi_world;

enum { MAIL_INLINE = 8192 };  // most bytes of values for one member that are sent with the announcement of a call

/* The kinds of mail. The struct of each kind is described below. */
typedef enum mail_kind {
  MAIL_CALL,
  MAIL_RECEIPT,
  MAIL_ERROR,
  MAIL_LEFT,
  MAIL_SEARCH,
  MAIL_MESSAGE,
  MAIL_REQUEST,
  MAIL_QUERY
} mail_kind;

/* The start of every mail: its mail_kind, and the rank that sent it. */
typedef struct mail {
  uint32_t kind, from;
} mail;

/* A call, as its caller announces it to one other member. In the mail, the struct is followed by the table of messages
 * (only in an exchange), then by values. */
typedef struct mail_call {
  mail head;
  ad_group_shape shape;
  ad_axes axes;
  uint64_t sequence, number;
  ad_signature signature;
  uint64_t in;  // for a sum: offset of the caller's input in the node's file; 0: the input is elsewhere
  // Offset in the node's file of the caller's output or, in an all_to_all, of the receiver's block in this output; 0:
  // the output is elsewhere.
  uint64_t out;
  uint64_t elements, expects;  // all_to_all: elements that the caller sends to the receiver, and expects from it
  uint32_t tag;                // the first message tag of the call, under which large values follow
  uint32_t entries;            // exchange: how many messages between the two ranks are in the table
  uint64_t values;             // bytes of the values in this mail
  char site[AD_SITE_MAX];
} mail_call;

/* Returns the announced call in the form that the functions of comm/words.h take for error messages. */
static inline ad_reported_call ad_mpi_reported_call(const mail_call *reported) {
  return (ad_reported_call){&reported->signature, reported->axes, &reported->shape, reported->site, reported->number};
}

/* One message of an exchange between the caller and the receiver. */
typedef struct mail_message {
  uint64_t bytes;
  uint32_t dtype, sends;
} mail_message;

typedef enum mpi_receipt { RECEIPT_READ, RECEIPT_WRITTEN, RECEIPTS } mpi_receipt;

/* A receipt, whose kind is `what`: either the sender has read all that it needs of the receiver's addends in the
 * shared memory file, or it has written a block or slice into the receiver's output in the file. */
typedef struct mail_receipt {
  mail head;
  uint32_t tag, what;
} mail_receipt;

/* A message from one rank to another (one side of an ad_transfer). Its bytes follow the struct if they are few. */
typedef struct mail_message_to {
  mail head;
  uint64_t group;  // identity of the list; 0: the world
  int64_t tag;
  uint64_t bytes;
  uint64_t number;              // counts the sender's large messages; 0: the bytes are in this mail
  uint32_t message_tag, dtype;  // message_tag: the tag under which the bytes are sent when the receiver asks for them
  char site[AD_SITE_MAX];
} mail_message_to;

/* Asks the sender of a large message for its bytes. */
typedef struct mail_request {
  mail head;
  uint64_t number;
} mail_request;

/* Informs ranks of other nodes of the world's error. */
typedef struct mail_error {
  mail head;
  int32_t rank;
  uint32_t status, cause;
  char text[AD_MESSAGE_MAX];
} mail_error;

/* Informs the other ranks that the sender leaves the world. */
typedef struct mail_left {
  mail head;
  uint32_t gave_up;  // 1: the sender had calls in flight
} mail_left;

/* Looks for a circle of waits. `origin` began the search. Each rank that waits sends the search on to the rank that it
 * waits for, so the sender of this mail waits for the receiver to make a call or send a message. If the search comes
 * back to `origin`, the ranks that sent it on form a circle. */
typedef struct mail_search {
  mail head;
  uint32_t origin;
  uint64_t number;  // counts the origin's searches
  // The call or message for which the sender of this mail waits: the call with this group and sequence number; or, if
  // is_message is 1, the receiver's next message after its first `sequence` messages.
  int is_message;
  ad_group_shape shape;
  uint64_t sequence;
  char text[AD_MESSAGE_MAX];  // the waits so far, in words, for the error message
} mail_search;

/* A question or its answer (see query.c). `origin` is a rank that waits to receive from any source. The question is:
 * can the receiver of this mail continue? The answer (is_answer 1) is: no, the sender of this mail cannot. A rank that
 * can continue does not answer. */
typedef struct mail_query {
  mail head;
  uint32_t origin, is_answer;
  uint64_t number;            // counts the origin's queries
  char text[AD_MESSAGE_MAX];  // in an answer: what the sender waits for, in words
} mail_query;

/* Sends one mail to rank `to`: a copy of head, table and values, one after another. If the mail cannot be sent, the
 * world gets an error. */
void ad_mpi_send_mail(mpi_world *world, uint32_t to, const void *head, size_t head_bytes, const void *table,
                      size_t table_bytes, const void *values, size_t value_bytes);
/* Frees mail that MPI has sent. */
void ad_mpi_forget_sent(mpi_world *world);
/* Waits until all mail is sent, but no longer than a second. */
void ad_mpi_flush(mpi_world *world);
/* Sends the world's error to the ranks of other nodes, if this rank caused it. */
void ad_mpi_report_error(mpi_world *world);
void ad_mpi_free_mail(mpi_world *world);

#endif
