/* Spans: which bytes of this rank's buffers a call sends to each member or receives from it. The functions only
 * compute. */
#ifndef COMM_MPI_SPANS_H
#define COMM_MPI_SPANS_H
#include "comm/call.h"

typedef struct mpi_span {
  char *at;
  size_t bytes;
} mpi_span;

/* Returns `count` elements of `memory`, which begin with element `start`; an empty span if `memory` is NULL or `count`
 * is 0. */
mpi_span ad_mpi_span(const void *memory, size_t element, size_t start, size_t count);
/* Return member k's part of this rank's input, or of its output. With leaf ranges a member may have several values:
 * then the part of the first value. */
mpi_span ad_mpi_in_part(const ad_call *call, uint32_t k);
mpi_span ad_mpi_out_part(const ad_call *call, uint32_t k);
/* Returns 1 if the call is a sum: its value is divided into parts, and each member sums one part. A full value that all
 * members get from the root counts as a sum with one addend. */
int ad_mpi_has_parts(const ad_call *call);
/* Returns 1 if member k has addends in the sum. */
int ad_mpi_contributes(const ad_call *call, uint32_t k);
/* Returns this rank's addends of the part that member k sums. */
mpi_span ad_mpi_addends_for(const ad_call *call, uint32_t k);
/* Returns 1 if member k needs no result, since the full value that all members get is its input. */
int ad_mpi_has_value(const ad_call *call, uint32_t k);
/* ad_mpi_result_for returns the block or slice that this rank sends to member k; ad_mpi_result_from the location, in
 * this rank's output, of the block or slice that member k sends. */
mpi_span ad_mpi_result_for(const ad_call *call, uint32_t k);
mpi_span ad_mpi_result_from(const ad_call *call, uint32_t k);
/* Returns the location in this rank's output, the same in every member's, of the value that member k sends to all
 * members. May be called only if ad_mpi_is_for_all returns 1. */
mpi_span ad_mpi_result_of(const ad_call *call, uint32_t k);
/* Returns 1 if a block or slice of `bytes` bytes is sent in the mail that announces the call. */
int ad_mpi_is_inline(const ad_call *call, size_t bytes);
/* Returns 1 if member k sends the same value to all members, by separate messages: its slice of a result, or its block
 * of an all_gather. */
int ad_mpi_is_for_all(const ad_call *call, uint32_t k);
/* Returns how many bytes of an exchange's messages this rank sends to member k. */
size_t ad_mpi_sent_bytes(const ad_call *call, uint32_t k);
/* Returns 1 if the call's values are so few that the mails that announce the call contain all of them. Each member
 * then computes all results itself. */
int ad_mpi_is_small(const ad_call *call);

#endif
