/* For sums over a group that spans nodes: collects the addends at the members that add them up. Member k sums slice
 * k. Member k gets every addend of the members of its own node, out of the shared file or by message. From another node
 * it gets one partial sum for each part (subtree) of the summing tree whose members are all on that node, made by one
 * of these members; if no such sum is made, it gets each addend. */
#include <string.h>
#include "base/memory.h"
#include "comm/leaf_ranges.h"
#include "comm/mpi/move.h"
#include "comm/shm/memory.h"
#include "kernels/kernels.h"

static const mpi_routes *routes_of(const mpi_call *c) { return &c->channel->routes; }
static uint32_t reader(const mpi_call *c, uint32_t i, uint32_t k) { return ad_mpi_reader(routes_of(c), c->call, i, k); }
static int is_near(const mpi_call *c, uint32_t i) { return ad_mpi_same_node(routes_of(c), i, c->channel->index); }

/* Returns 1 if this rank gets member i's addends as part of a partial sum, which member i or another member of its
 * part of the tree sends. */
static int gives_sum(const mpi_call *c, uint32_t i) {
  return !is_near(c, i) && ad_mpi_sums_first(routes_of(c), c->call, i);
}

static size_t elements_of(const ad_call *call, uint32_t k) { return ad_mpi_in_part(call, k).bytes / call->element; }

static size_t sum_bytes(const ad_call *call, uint32_t k) {
  return elements_of(call, k) * ad_dtype_size(call->reducing.accumulate);
}

/* Returns the size of an area for `bytes` bytes in the call's memory `space`: `bytes`, rounded up to whole cache
 * lines. */
static size_t padded(size_t bytes) { return (bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE; }

/* ---- memory for addends and partial sums ---- */

/* Returns 1 if this rank sums its part of the tree for member k, which is on another node. */
static int forms_partial(const mpi_call *c, uint32_t k) {
  uint32_t own = c->channel->index;
  return k != own && reader(c, own, k) == own && ad_mpi_in_part(c->call, k).bytes;
}

/* Returns the size of the memory for the partial sum of slice k and for the addends that go into it. */
static size_t partial_bytes(const mpi_call *c, uint32_t k) {
  uint32_t addends = routes_of(c)->places[c->channel->index].count;
  return padded(sum_bytes(c->call, k)) + addends * padded(ad_mpi_in_part(c->call, k).bytes);
}

/* Returns the size of the memory for the addends, or the sum, that member i sends for this rank's slice. */
static size_t own_bytes(const mpi_call *c, uint32_t i) {
  uint32_t own = c->channel->index;
  if (!gives_sum(c, i)) return ad_call_addends(c->call, i) * padded(ad_mpi_in_part(c->call, own).bytes);
  return reader(c, i, own) == i ? padded(sum_bytes(c->call, own)) : 0;
}

static char *take_space(mpi_call *c, size_t bytes) {
  char *space = c->space + c->space_used;
  c->space_used += padded(bytes);
  return space;
}

ad_status ad_mpi_reserve_addends(mpi_call *c) {
  size_t bytes = 0;
  uint32_t members = c->channel->members, partials = 0;
  c->partial_count = 0;
  if (!c->call->operation->reduces || ad_mpi_is_small(c->call)) return AD_OK;
  for (uint32_t k = 0; k < members; k++) {
    if (k != c->channel->index) bytes += own_bytes(c, k);
    if (!forms_partial(c, k)) continue;
    bytes += partial_bytes(c, k);
    partials++;
  }
  if (partials > c->partial_places) {
    AD_TRY(ad_grow(&c->partials, c->partial_places, partials));
    c->partial_places = partials;
  }
  c->space_used = 0;
  if (bytes) AD_TRY(ad_make_room(&c->space, &c->space_bytes, bytes));
  for (uint32_t k = 0; k < members; k++) {
    if (!forms_partial(c, k)) continue;
    char *space = take_space(c, partial_bytes(c, k));
    c->partials[c->partial_count++] = (mpi_partial){k, space, space + padded(sum_bytes(c->call, k))};
  }
  return AD_OK;
}

/* ---- sending and receiving addends: messages between two members are in the order of slices ---- */

/* Returns the size in bytes of one value that a member contributes. */
static size_t value_bytes(const ad_call *call) { return ad_call_addend(call) * call->element; }

/* Sends member i a slice of each of this rank's values (it has several); `slice` is that of the first value. */
static void give_several(mpi_world *world, mpi_call *c, uint32_t i, mpi_span slice) {
  for (uint32_t p = 0; p < ad_call_addends(c->call, c->call->index); p++) {
    ad_mpi_add_request(c, ad_mpi_send(world, c, i, PHASE_ADDENDS, slice));
    slice.at += value_bytes(c->call);
  }
}

/* Starts to receive a slice, of `bytes` bytes, of each of member i's values. */
static void get_several(mpi_world *world, mpi_call *c, uint32_t i, size_t bytes) {
  uint32_t count = ad_call_addends(c->call, i);
  mpi_span to = {take_space(c, count * padded(bytes)), bytes};
  c->members[i].addends = to.at;
  c->members[i].stride = padded(bytes);
  for (uint32_t p = 0; p < count; p++) {
    ad_mpi_add_request(c, ad_mpi_receive(world, c, i, PHASE_ADDENDS, to));
    to.at += padded(bytes);
  }
}

/* Sends member i the addends of this rank that member i reads; if member i reads them in the shared file, expects a
 * receipt from it instead. */
static void give_addends(mpi_world *world, mpi_call *c, uint32_t i) {
  const ad_call *call = c->call;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    mpi_span addends = ad_mpi_addends_for(call, k);
    if (!addends.bytes || reader(c, c->channel->index, k) != i) continue;
    if (is_near(c, i) && ad_shm_offset(world->shm, call->in, call->in_bytes))
      c->members[i].awaited[RECEIPT_READ] = 1;
    else if (ad_call_addends(call, call->index) == 1)
      c->members[k].sending = ad_mpi_send(world, c, i, PHASE_ADDENDS, addends);
    else
      give_several(world, c, i, addends);
  }
}

/* Returns the location of slice k in *input, which is set to the call's input. If only the root has an input, the
 * output is used in its place, since a slice has the same offset there. */
static mpi_span slice_in_input(const ad_call *call, uint32_t k, const char **input) {
  int from_root = call->operation->in_on_root;
  *input = from_root ? call->out : call->in;
  return from_root ? ad_mpi_out_part(call, k) : ad_mpi_in_part(call, k);
}

/* Returns the address of member i's addends of slice k in the shared file, or NULL if they are not in the file. */
static const char *in_file(const mpi_world *world, const mpi_call *c, uint32_t i, uint32_t k) {
  const mail_call *reported = c->members[i].reported;
  const char *input;
  if (!is_near(c, i) || !reported->in) return NULL;
  mpi_span slice = slice_in_input(c->call, k, &input);
  return (const char *)ad_shm_at(world->shm, reported->in) + (slice.at - input);
}

/* Returns the address where member i's addends of a partial sum are received. */
static char *room_for(const mpi_call *c, const mpi_partial *partial, uint32_t i) {
  uint32_t number = i - routes_of(c)->places[c->channel->index].first;
  return partial->received + number * padded(ad_mpi_in_part(c->call, partial->slice).bytes);
}

/* Starts to receive member i's addends of a partial sum, unless they are in the shared memory file. */
static void get_for_partial(mpi_world *world, mpi_call *c, const mpi_partial *partial, uint32_t i) {
  mpi_span to = {room_for(c, partial, i), ad_mpi_in_part(c->call, partial->slice).bytes};
  if (reader(c, i, partial->slice) != c->channel->index || in_file(world, c, i, partial->slice)) return;
  ad_mpi_add_request(c, ad_mpi_receive(world, c, i, PHASE_ADDENDS, to));
}

/* For this rank's slice: finds member i's addends in the shared memory file, or starts to receive member i's addends
 * or the sum that contains them. */
static void get_own(mpi_world *world, mpi_call *c, uint32_t i) {
  const ad_call *call = c->call;
  const char *input;
  uint32_t own = c->channel->index;
  mpi_span to = slice_in_input(call, own, &input);
  mpi_member *member = &c->members[i];
  if (!to.bytes || !ad_mpi_contributes(call, i) || (gives_sum(c, i) && reader(c, i, own) != i)) return;
  member->addends = in_file(world, c, i, own);
  member->stride = value_bytes(call);
  if (member->addends) return;
  if (ad_call_addends(call, i) > 1) {
    get_several(world, c, i, to.bytes);
    return;
  }
  if (gives_sum(c, i)) to.bytes = sum_bytes(call, own);
  if (!call->operation->in_on_root) to.at = take_space(c, to.bytes);
  member->addends = to.at;
  member->receiving = ad_mpi_receive(world, c, i, PHASE_ADDENDS, to);
}

/* Starts to receive member i's addends in the order of slices: for this rank's slice, and for the partial sums that
 * this rank makes. */
static void get_addends(mpi_world *world, mpi_call *c, uint32_t i) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    if (k == c->channel->index) get_own(world, c, i);
    if (n < c->partial_count && c->partials[n].slice == k) get_for_partial(world, c, &c->partials[n++], i);
  }
}

void ad_mpi_begin_collecting(mpi_world *world, mpi_call *c) {
  uint32_t members = c->channel->members, index = c->channel->index;
  for (uint32_t i = 1; i < members; i++) {
    get_addends(world, c, (index + i) % members);
    give_addends(world, c, (index + i) % members);
  }
  c->members[index].addends = ad_mpi_addends_for(c->call, index).at;
  c->members[index].stride = value_bytes(c->call);
}

/* ---- adding addends up ---- */

/* Adds up a partial sum and sends it to the member that sums its slice. */
static void add_up_partial(mpi_world *world, mpi_call *c, const mpi_partial *partial) {
  const ad_call *call = c->call;
  const mpi_place *place = &routes_of(c)->places[c->channel->index];
  const void *sources[SHM_RANKS_MAX];
  void *sum = partial->sum;
  ad_reducing how = call->reducing;
  for (uint32_t j = 0; j < place->count; j++) {
    uint32_t i = place->first + j;
    if (i == c->channel->index)
      sources[j] = ad_mpi_addends_for(call, partial->slice).at;
    else if (!(sources[j] = in_file(world, c, i, partial->slice)))
      sources[j] = room_for(c, partial, i);
  }
  how.out_dtype = how.accumulate;
  how.first = place->first;
  how.shift = how.adds = how.past = 0;
  ad_reduce(&sum, 1, sources, place->count, &how, elements_of(call, partial->slice));
  mpi_span from = {partial->sum, sum_bytes(call, partial->slice)};
  ad_mpi_add_request(c, ad_mpi_send(world, c, partial->slice, PHASE_ADDENDS, from));
}

int ad_mpi_has_sent_partials(mpi_world *world, mpi_call *c) {
  if (!ad_mpi_all_done(world, c)) return 0;
  for (uint32_t n = 0; n < c->partial_count; n++) add_up_partial(world, c, &c->partials[n]);
  return 1;
}

int ad_mpi_has_collected(mpi_world *world, mpi_call *c) {
  int all = 1;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    ad_mpi_is_done(world, &c->members[k].sending);
    all &= ad_mpi_is_done(world, &c->members[k].receiving);
  }
  return all;
}

/* Adds up the nodes (sums of leaves) that members contributed; writes the call's results one after another to `out`.
 * With an empty slice there are no addends in memory. */
static void add_up_nodes(const mpi_call *c, char *out, size_t bytes) {
  const void *sources[AD_CALL_NODES_MAX];
  uint32_t count = 0, results = ad_call_results(c->call), first, addends;
  if (!bytes) return;
  for (uint32_t i = 0; i < c->channel->members; i++)
    for (uint32_t p = 0; p < ad_call_addends(c->call, i); p++)
      sources[count++] = (const char *)c->members[i].addends + p * c->members[i].stride;
  for (uint32_t r = 0; r < results; r++) {
    ad_reducing how = ad_call_reducing(c->call, r, &first, &addends);
    void *to = out + r * (bytes / results);
    ad_reduce(&to, 1, sources + first, addends, &how, bytes / results / c->call->out_element);
  }
}

void ad_mpi_add_up(const mpi_call *c, void *out, size_t bytes) {
  const ad_call *call = c->call;
  if (call->results) {
    add_up_nodes(c, out, bytes);
    return;
  }
  const void *sources[SHM_RANKS_MAX];
  uint32_t leaves[SHM_RANKS_MAX], count = 0, members = c->channel->members;
  ad_reducing how = call->reducing;
  int small = ad_mpi_is_small(call);
  for (uint32_t i = 0; i < members; i += leaves[count++]) {
    const mpi_place *place = &routes_of(c)->places[i];
    int is_sum = !small && gives_sum(c, i);
    leaves[count] = is_sum ? place->count : 1;
    sources[count] = c->members[is_sum ? reader(c, i, c->channel->index) : i].addends;
  }
  if (count < members) how.leaves = leaves;
  if (bytes) ad_reduce(&out, 1, sources, count, &how, bytes / call->out_element);
}

/* ---- receipts for addends that were read ---- */

/* Returns 1 if this rank reads addends of member i, for its own slice or for another member's slice. */
static int reads(const mpi_call *c, uint32_t i) {
  if (!ad_mpi_contributes(c->call, i)) return 0;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    const char *input;
    if (reader(c, i, k) == c->channel->index && slice_in_input(c->call, k, &input).bytes) return 1;
  }
  return 0;
}

void ad_mpi_report_what_is_read(mpi_world *world, const mpi_call *c) {
  for (uint32_t i = 0; i < c->channel->members; i++)
    if (i != c->channel->index && is_near(c, i) && c->members[i].reported->in && reads(c, i))
      ad_mpi_send_receipt(world, c, i, RECEIPT_READ);
}
