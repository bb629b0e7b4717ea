/* A meeting (an all-gather before ranks share memory) over the callbacks of ad_comm_join, which put values into a store
 * and get them. Every rank puts its note; rank 0 puts all notes as one value, so that a world of n ranks reads 2 n
 * values and not n * n. The store may still have notes of an earlier world (an attempt that torchrun restarted, a
 * destroyed process group). To tell worlds apart, rank 0 draws a token for its world, which is part of all the world's
 * keys. Every rank draws a token too and puts it as its first note: if rank 0's answer contains the token, rank 0 has
 * read this rank's note and not an old one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unfinished.h"
#include "comm/meet.h"

enum { KEY_BYTES = 64 };
static const char world_key[] = "addend/world";
// nanoseconds: one second; the pause between two looks into the store
static const int64_t second = 1000000000, look_again = 20000000;

// The value that rank 0 puts under `world_key`: the token and the size of the world that it begins.
typedef struct beginning {
  int64_t token, ranks;
} beginning;

static ad_status put_value(const ad_rendezvous *by, const char *key, const void *value, size_t bytes) {
  ad_status status = by->put(by->context, key, value, bytes);
  return status ? ad_fail_in(status, "ad_comm_join: this rank could not store `%s` by the rendezvous' `put`", key)
                : AD_OK;
}

static ad_status get(const ad_rendezvous *by, const char *key, void *value, size_t bytes) {
  ad_status status = by->get(by->context, key, value, bytes);
  return status ? ad_fail_in(status, "ad_comm_join: this rank could not read `%s` by the rendezvous' `get`", key)
                : AD_OK;
}

// Waits until rank `from` has put `key`, and gets its value.
static ad_status wait_for_value(const ad_rendezvous *by, const char *key, uint32_t from, void *value, size_t bytes) {
  ad_status status = by->wait(by->context, key, by->seconds);
  if (status)
    return ad_fail_in(status,
                      "ad_comm_join: this rank waited in vain for `%s` of rank %" PRIu32 " by the rendezvous' `wait`",
                      key, from);
  return get(by, key, value, bytes);
}

static void key_of_rank(const ad_rendezvous_meeting *m, uint32_t rank, char key[KEY_BYTES]) {
  snprintf(key, KEY_BYTES, "addend/%016" PRIx64 "/%" PRIu32 "/%" PRIu32, (uint64_t)m->token, m->round, rank);
}

static void key_of_all(const ad_rendezvous_meeting *m, char key[KEY_BYTES]) {
  snprintf(key, KEY_BYTES, "addend/%016" PRIx64 "/%" PRIu32 "/all", (uint64_t)m->token, m->round);
}

// On rank 0: gets the notes of all other ranks, and puts all notes into the store as one value.
static ad_status collect(const ad_rendezvous_meeting *m, const void *own, size_t bytes, char *all) {
  char key[KEY_BYTES];
  memcpy(all, own, bytes);
  for (uint32_t rank = 1; rank < m->meeting.ranks; rank++) {
    key_of_rank(m, rank, key);
    AD_TRY(wait_for_value(&m->by, key, rank, all + rank * bytes, bytes));
  }
  key_of_all(m, key);
  return put_value(&m->by, key, all, m->meeting.ranks * bytes);
}

// On every rank but rank 0: puts this rank's note, and gets all notes from rank 0.
static ad_status give(const ad_rendezvous_meeting *m, const void *own, size_t bytes, char *all) {
  char key[KEY_BYTES];
  key_of_rank(m, m->meeting.rank, key);
  AD_TRY(put_value(&m->by, key, own, bytes));
  key_of_all(m, key);
  return wait_for_value(&m->by, key, 0, all, m->meeting.ranks * bytes);
}

static ad_status all_gather(void *context, const void *own, size_t bytes, void *all) {
  ad_rendezvous_meeting *m = context;
  ad_status status = m->meeting.rank ? give(m, own, bytes, all) : collect(m, own, bytes, all);
  m->round++;
  return status;
}

/* ---- finding this rank's world in the store, which may have values of earlier worlds ---- */

static ad_status begin_world(ad_rendezvous_meeting *m, int64_t *tokens) {
  const beginning begun = {ad_token_bits(), m->meeting.ranks};
  m->token = begun.token;
  AD_TRY(put_value(&m->by, world_key, &begun, sizeof begun));
  return collect(m, &begun.token, sizeof begun.token, (char *)tokens);
}

// Puts this rank's token `own` into the store, for the world `begun` that the store names, unless this rank did that
// before (m->token is then already the world's token).
static ad_status answer(ad_rendezvous_meeting *m, const beginning *begun, int64_t own) {
  char key[KEY_BYTES];
  if (begun->ranks != m->meeting.ranks || begun->token == m->token) return AD_OK;
  m->token = begun->token;
  key_of_rank(m, m->meeting.rank, key);
  return put_value(&m->by, key, &own, sizeof own);
}

// Waits for at most a second for rank 0's answer. Sets *is_in to 1 if the answer contains this rank's token `own`: then
// rank 0 has read this rank's note. An answer that an older world left arrives immediately and contains another token.
static ad_status look_for_members(const ad_rendezvous_meeting *m, int64_t own, int64_t *tokens, int *is_in) {
  char key[KEY_BYTES];
  int64_t began = ad_now();
  key_of_all(m, key);
  ad_status status = m->by.wait(m->by.context, key, 1);
  if (status && ad_now() - began < second / 2)  // too early to be a timeout: the rendezvous itself failed
    return ad_fail_in(status, "ad_comm_join: this rank waited in vain for `%s` of rank 0 by the rendezvous' `wait`",
                      key);
  if (status) return AD_OK;
  AD_TRY(get(&m->by, key, tokens, m->meeting.ranks * sizeof *tokens));
  *is_in = tokens[m->meeting.rank] == own;
  return AD_OK;
}

static ad_status fail_late(const ad_rendezvous_meeting *m, const beginning *begun) {
  char words[96] = "";
  if (begun->ranks != m->meeting.ranks)
    snprintf(words, sizeof words, ", and began a world of %" PRId64 " rank%s, but this rank is one of %" PRIu32,
             begun->ranks, ad_plural(begun->ranks), m->meeting.ranks);
  return ad_fail(AD_SYSTEM,
                 "ad_comm_join: rank 0 has not answered within %" PRId64
                 " s%s; start rank 0, or raise `seconds` of the rendezvous",
                 m->by.seconds, words);
}

static ad_status find_world(ad_rendezvous_meeting *m, int64_t *tokens) {
  const struct timespec pause = {.tv_nsec = look_again};
  const int64_t own = ad_token_bits(), end = ad_now() + m->by.seconds * second;
  beginning begun;
  int is_in = 0;
  while (1) {
    AD_TRY(wait_for_value(&m->by, world_key, 0, &begun, sizeof begun));
    AD_TRY(answer(m, &begun, own));
    if (m->token) AD_TRY(look_for_members(m, own, tokens, &is_in));
    if (is_in) return AD_OK;
    if (ad_now() > end) return fail_late(m, &begun);
    nanosleep(&pause, NULL);
  }
}

ad_status ad_rendezvous_begin(const ad_rendezvous *by, uint32_t rank, uint32_t ranks, ad_rendezvous_meeting *out) {
  int64_t *tokens;
  *out = (ad_rendezvous_meeting){.meeting = {rank, ranks, out, all_gather}, .by = *by};
  AD_TRY(ad_new(ranks, &tokens));
  ad_status status = rank ? find_world(out, tokens) : begin_world(out, tokens);
  ad_release(tokens);
  out->round++;
  return status;
}
