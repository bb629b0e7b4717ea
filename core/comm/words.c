/* The texts of errors about calls that do not match, ranks that wait in a circle, and ranks that left. The backends
 * find these errors and call these functions. */
#include "comm/words.h"
#include "mesh/group.h"

#include <inttypes.h>

void ad_call_words(ad_text *text, const ad_reported_call *call) {
  ad_signature_print(text, call->signature);
  ad_text_add(text, " over ");
  ad_group_words(text, call->axes, call->shape);
  ad_text_add(text, " at %s", call->site);
}

/* ---- errors about calls that do not match ---- */

static void begin_mismatch(ad_text *text, uint64_t sequence) {
  ad_text_add(text, "collectives do not match: call %" PRIu64 " of the group", sequence + 1);
}

static int is_same(const ad_reported_call *a, const ad_reported_call *b) {
  return a->signature && b->signature && ad_signature_equal(a->signature, b->signature);
}

// Appends "; rank 1 calls " or "; ranks 1,2 call ", with all ranks that published the same call as `member`. If an
// earlier member published the same call, appends nothing and returns 0, since the text names these ranks already.
static int add_ranks_like(ad_text *text, const ad_reported_call *reported, uint32_t members, uint32_t member) {
  for (uint32_t i = 0; i < member; i++)
    if (is_same(&reported[i], &reported[member])) return 0;
  char list[256];
  ad_text ranks = ad_text_on(list, sizeof list);
  int count = 0;
  for (uint32_t i = member; i < members; i++) {
    if (!is_same(&reported[i], &reported[member])) continue;
    ad_text_add(&ranks, "%s%" PRId64, count++ ? "," : "", ad_shape_rank(reported[member].shape, i));
  }
  ad_text_add(text, count == 1 ? "; rank %s calls " : "; ranks %s call ", list);
  return 1;
}

void ad_mismatch_words(ad_text *text, uint64_t sequence, const ad_reported_call *reported, uint32_t members,
                       uint32_t own) {
  begin_mismatch(text, sequence);
  ad_text_add(text, " ");
  ad_group_words(text, reported[own].axes, reported[own].shape);
  for (uint32_t i = 0; i < members; i++) {
    if (!reported[i].signature || !add_ranks_like(text, reported, members, i)) continue;
    ad_call_words(text, &reported[i]);
    ad_text_add(text, " (its call #%" PRIu64 ")", reported[i].number);
  }
  ad_text_add(text, "; all ranks of a group must make the same calls in the same order");
}

void ad_block_words(ad_text *text, uint64_t sequence, const ad_reported_block *sent,
                    const ad_reported_block *received) {
  begin_mismatch(text, sequence);
  ad_text_add(text, ": rank %" PRId64 " sends %" PRIu64 " elements to rank %" PRId64 " in ", sent->rank, sent->elements,
              received->rank);
  ad_call_words(text, &sent->call);
  ad_text_add(text, "; rank %" PRId64 " receives %" PRIu64 " in ", received->rank, received->elements);
  ad_call_words(text, &received->call);
}

static void add_message(ad_text *text, const ad_reported_message *message) {
  if (message->exists)
    ad_text_add(text, "%" PRIu64 " %s", message->bytes / ad_dtype_size(message->dtype), ad_dtype_name(message->dtype));
  else
    ad_text_add(text, "none");
  ad_text_add(text, " at %s", message->site);
}

void ad_message_words(ad_text *text, uint64_t sequence, ad_axes axes, const ad_group_shape *shape, uint32_t n,
                      const ad_reported_message *sent, const ad_reported_message *received) {
  begin_mismatch(text, sequence);
  ad_text_add(text, ": exchange over ");
  ad_group_words(text, axes, shape);
  ad_text_add(text, ", message %u from rank %" PRId64 " to rank %" PRId64 ": sent: ", n + 1, sent->rank,
              received->rank);
  add_message(text, sent);
  ad_text_add(text, "; received: ");
  add_message(text, received);
}

void ad_transfer_words(ad_text *text, const ad_reported_call *of, const ad_reported_message *sent,
                       const ad_reported_message *received) {
  ad_text_add(text, "messages do not match: from rank %" PRId64 " to rank %" PRId64 " under tag %" PRId64 " over ",
              sent->rank, received->rank, ad_signature_tag(of->signature));
  ad_group_words(text, of->axes, of->shape);
  ad_text_add(text, ": sent: ");
  add_message(text, sent);
  ad_text_add(text, "; received: ");
  add_message(text, received);
}

/* ---- errors about waits that do not end ---- */

void ad_transfer_wait_words(ad_text *text, const ad_reported_call *call) {
  int peer = ad_signature_peer(call->signature);
  int64_t tag = ad_signature_tag(call->signature);
  if ((int)ad_signature_op(call->signature) == AD_OP_SEND)
    ad_text_add(text, "rank %d to receive its message under tag %" PRId64 ": ", peer, tag);
  else if (peer == AD_ANY_SOURCE)
    ad_text_add(text, "a message from any rank under tag %" PRId64 ", which no rank has sent: ", tag);
  else
    ad_text_add(text, "a message from rank %d under tag %" PRId64 ", which rank %d has not sent: ", peer, tag, peer);
  ad_call_words(text, call);
}

void ad_wait_words(ad_text *text, uint32_t rank, uint32_t peer, uint64_t sequence, const ad_reported_call *call) {
  ad_text_add(text, "rank %u waits for rank %u in call %" PRIu64 " of its group: ", rank, peer, sequence + 1);
  ad_call_words(text, call);
}

void ad_circle_words(ad_text *text, const char *waits) {
  ad_text_add(text,
              "ranks wait for each other in a circle: %s; make these calls in the same order on all ranks, over the "
              "same groups",
              waits);
}

void ad_leaving_words(ad_text *text, uint32_t rank, int exit_status) {
  ad_text_add(text, "rank %u left the world", rank);
  if (exit_status) ad_text_add(text, " (exit status %d)", exit_status);
}

void ad_left_words(ad_text *text, uint32_t rank, int exit_status, uint32_t waiting, uint64_t sequence,
                   const ad_reported_call *call) {
  ad_leaving_words(text, rank, exit_status);
  ad_text_add(text, " while rank %u waits for it in call %" PRIu64 " of its group: ", waiting, sequence + 1);
  ad_call_words(text, call);
}

void ad_transfer_left_words(ad_text *text, uint32_t rank, int exit_status, uint32_t waiting,
                            const ad_reported_call *call) {
  ad_leaving_words(text, rank, exit_status);
  ad_text_add(text, " while rank %u waits for ", waiting);
  ad_transfer_wait_words(text, call);
}
