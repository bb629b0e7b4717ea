/* A meeting over the callbacks that ad_comm_join is given: every rank puts its note, rank 0 puts all notes together as
 * one value, so that a world of n ranks reads 2 n values and not n * n. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "comm/meet.h"

enum { KEY_BYTES = 64 };

static ad_status put(const ad_rendezvous *by, const char *key, const void *value, size_t bytes) {
  ad_status status = by->put(by->context, key, value, bytes);
  return status ? ad_fail_in(status, "ad_comm_join: the rendezvous could not put `%s`", key) : AD_OK;
}

// Waits until rank `from` has put `key`, and gets its value.
static ad_status take(const ad_rendezvous *by, const char *key, uint32_t from, void *value, size_t bytes) {
  ad_status status = by->wait(by->context, key, by->seconds);
  if (status) return ad_fail_in(status, "ad_comm_join: waiting for rank %" PRIu32 " (`%s`)", from, key);
  status = by->get(by->context, key, value, bytes);
  return status ? ad_fail_in(status, "ad_comm_join: the rendezvous could not get `%s`", key) : AD_OK;
}

// Rank 0: gets the notes of all other ranks and puts them together.
static ad_status collect(const ad_rendezvous_meeting *m, const void *own, size_t bytes, char *all) {
  char key[KEY_BYTES];
  memcpy(all, own, bytes);
  for (uint32_t rank = 1; rank < m->meeting.ranks; rank++) {
    snprintf(key, sizeof key, "addend/%" PRIu32 "/%" PRIu32, m->round, rank);
    AD_TRY(take(&m->by, key, rank, all + rank * bytes, bytes));
  }
  snprintf(key, sizeof key, "addend/%" PRIu32 "/all", m->round);
  return put(&m->by, key, all, m->meeting.ranks * bytes);
}

// Every other rank: puts its own note and gets all of them from rank 0.
static ad_status give(const ad_rendezvous_meeting *m, const void *own, size_t bytes, char *all) {
  char key[KEY_BYTES];
  snprintf(key, sizeof key, "addend/%" PRIu32 "/%" PRIu32, m->round, m->meeting.rank);
  AD_TRY(put(&m->by, key, own, bytes));
  snprintf(key, sizeof key, "addend/%" PRIu32 "/all", m->round);
  return take(&m->by, key, 0, all, m->meeting.ranks * bytes);
}

static ad_status all_gather(void *context, const void *own, size_t bytes, void *all) {
  ad_rendezvous_meeting *m = context;
  ad_status status = m->meeting.rank ? give(m, own, bytes, all) : collect(m, own, bytes, all);
  m->round++;
  return status;
}

void ad_rendezvous_begin(const ad_rendezvous *by, uint32_t rank, uint32_t ranks, ad_rendezvous_meeting *out) {
  *out = (ad_rendezvous_meeting){.meeting = {rank, ranks, out, all_gather}, .by = *by};
}
