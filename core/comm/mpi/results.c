/* Distributes results and blocks from the members that have them to the members that need them. If a receiver's
 * output is in the memory file of this node, the sender writes into that output; otherwise it sends a message. A value
 * that all members get is sent to each other node once: one member there passes it on to the other members of its node.
 * */
#include <string.h>
#include "comm/mpi/move.h"
#include "comm/shm/memory.h"
#include "kernels/kernels.h"

static const mpi_routes *routes_of(const mpi_call *c) { return &c->channel->routes; }
static uint32_t giver(const mpi_call *c, uint32_t k, uint32_t i) { return ad_mpi_giver(routes_of(c), c->call, k, i); }
static int is_near(const mpi_call *c, uint32_t i) { return ad_mpi_same_node(routes_of(c), i, c->channel->index); }

/* Returns the index of the n-th member after member i; the first member follows the last. */
static uint32_t after(const mpi_call *c, uint32_t i, uint32_t n) {
  uint32_t left = c->channel->members - i;
  return n < left ? i + n : n - left;
}

static void copy(void *to, const void *from, size_t bytes) {
  if (bytes && to != from) memcpy(to, from, bytes);
}

/* ---- sending results, and passing received ones on ---- */

/* Returns the address in member i's output at which member k's block or slice belongs, or NULL if that output is not
 * in this node's file. */
static char *place_in_file(const mpi_world *world, const mpi_call *c, uint32_t i, uint32_t k) {
  uint64_t out = c->members[i].reported->out;
  if (!is_near(c, i) || !out) return NULL;
  char *start = ad_shm_at(world->shm, out);
  if (!ad_gives_all_the_same(c->call->operation)) return start;
  return start + (ad_mpi_result_of(c->call, k).at - (char *)c->call->out);
}

/* Returns the location, in this rank's buffers, of the block or slice of member k that member i needs. */
static mpi_span result_for(const ad_call *call, uint32_t i, uint32_t k) {
  if (k == call->index) return ad_mpi_result_for(call, i);
  if (ad_mpi_has_value(call, i)) return (mpi_span){0};
  return ad_mpi_result_of(call, k);
}

/* Delivers the block or slice of member k to member i: writes it into member i's output if that is in the shared
 * memory file, else sends it. */
static void give(mpi_world *world, mpi_call *c, uint32_t i, uint32_t k) {
  mpi_span from = result_for(c->call, i, k);
  if (!from.bytes || ad_mpi_is_inline(c->call, from.bytes)) return;
  char *place = place_in_file(world, c, i, k);
  if (place) {
    ad_copy(place, from.at, from.bytes);
    ad_mpi_send_receipt(world, c, i, RECEIPT_WRITTEN);
  } else {
    ad_mpi_add_request(c, ad_mpi_send(world, c, i, PHASE_RESULTS, from));
  }
}

/* Returns 1 if member k's block or slice goes to all members and this rank is the one that passes it on to the
 * members of its node. */
static int passes_on(const mpi_call *c, uint32_t k) {
  const mpi_place *place = &routes_of(c)->places[c->channel->index];
  for (uint32_t n = 0; n < place->mates_count; n++) {
    uint32_t i = routes_of(c)->mates[place->mates + n];
    if (i != c->channel->index) return giver(c, k, i) == c->channel->index;
  }
  return 0;
}

static void pass_on(mpi_world *world, mpi_call *c, uint32_t k) {
  const mpi_place *place = &routes_of(c)->places[c->channel->index];
  for (uint32_t n = 0; n < place->mates_count; n++) {
    uint32_t i = routes_of(c)->mates[place->mates + n];
    if (i != c->channel->index) give(world, c, i, k);
  }
}

/* Passes on the blocks and slices that have arrived, in the order in which the receivers ask for them: first those
 * of the member after this rank, then those of the next member. Returns 1 when all of them are sent. */
static int has_passed_on(mpi_world *world, mpi_call *c) {
  uint32_t members = c->channel->members;
  for (; c->passed_on < members; c->passed_on++) {
    uint32_t k = after(c, c->channel->index, c->passed_on);
    if (!passes_on(c, k)) continue;
    if (!c->members[k].receives_result || !ad_mpi_is_done(world, &c->members[k].arriving)) return 0;
    pass_on(world, c, k);
  }
  return 1;
}

/* ---- asking for results and receiving them ---- */

static const char *values_of(const mail_call *reported) {
  return (const char *)(reported + 1) + reported->entries * sizeof(mail_message);
}

/* Starts to receive member k's block or slice. Returns 0 without doing so if this rank has not yet sent its addends
 * of that slice: in an in-place call the result would overwrite them. */
static int ask_for_result(mpi_world *world, mpi_call *c, uint32_t k) {
  mpi_member *member = &c->members[k];
  uint32_t from = giver(c, k, c->channel->index);
  mpi_span to = ad_mpi_result_from(c->call, k);
  if (member->receives_result) return 1;
  if (!ad_mpi_is_done(world, &member->sending)) return 0;
  member->receives_result = 1;
  c->unasked--;
  if (!to.bytes) return 1;
  if (ad_mpi_is_inline(c->call, to.bytes))
    memcpy(to.at, values_of(member->reported), to.bytes);
  else if (is_near(c, from) && ad_shm_offset(world->shm, to.at, to.bytes))
    c->members[from].awaited[RECEIPT_WRITTEN]++;
  else
    member->arriving = ad_mpi_receive(world, c, from, PHASE_RESULTS, to);
  return 1;
}

/* Starts to receive all blocks and slices that member `from` sends to this rank: first its own, then those of other
 * members that it passes on, in the order in which it passes them on. */
static void ask(mpi_world *world, mpi_call *c, uint32_t from) {
  uint32_t members = c->channel->members;
  for (uint32_t n = 0; n < members; n++) {
    uint32_t k = after(c, from, n);
    if (k == c->channel->index || giver(c, k, c->channel->index) != from) continue;
    if (!ask_for_result(world, c, k)) return;
  }
}

void ad_mpi_ask_for_results(mpi_world *world, mpi_call *c) {
  uint32_t members = c->channel->members;
  for (uint32_t i = 1; i < members && c->unasked; i++) ask(world, c, after(c, c->channel->index, i));
}

/* ---- distributing a call's results ---- */

/* Copies this rank's own block into its output. */
static void keep_own(const ad_call *call) {
  mpi_span from = ad_mpi_result_for(call, call->index), to = ad_mpi_result_from(call, call->index);
  if (!ad_mpi_has_parts(call)) copy(to.at, from.at, from.bytes);
  if (ad_mpi_has_value(call, call->index)) copy(call->out, call->in, call->out_bytes);
}

void ad_mpi_begin_distributing(mpi_world *world, mpi_call *c) {
  uint32_t members = c->channel->members, own = c->channel->index;
  keep_own(c->call);
  for (uint32_t n = 1; n < members; n++) {
    uint32_t i = after(c, own, n);
    if (giver(c, own, i) == own) give(world, c, i, own);
  }
}

static int has_all(mpi_world *world, mpi_member *member) {
  int all = member->receives_result && ad_mpi_is_done(world, &member->arriving);
  for (int what = 0; what < RECEIPTS; what++) all &= member->received[what] >= member->awaited[what];
  return all;
}

int ad_mpi_has_distributed(mpi_world *world, mpi_call *c) {
  ad_mpi_ask_for_results(world, c);
  int all = has_passed_on(world, c);
  for (uint32_t k = 0; k < c->channel->members; k++) all &= k == c->channel->index || has_all(world, &c->members[k]);
  return ad_mpi_all_done(world, c) && all;
}
