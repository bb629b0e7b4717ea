/* In a world of several nodes: finds out whether a rank that waits to receive from any source can still get a message.
 * A search for a circle (search.c) cannot find this out, since one rank that can send is enough. So the rank asks all
 * ranks that could send (a query). An asked rank that does not wait does not answer. An asked rank that waits asks the
 * ranks that it waits for, once for each query, and answers when all of them have answered. If all answers come, all
 * asked ranks wait and none can continue: Chandy, Misra and Haas, "Distributed deadlock detection", ACM TOCS 1 (1983),
 * the algorithm for the OR model. A rank in a collective is treated as if any one missing member could let it continue.
 * So a query never reports a deadlock that does not exist, but may miss one.
 *
 * Messages in flight do not make a query wrong: mail between two ranks comes in order, so messages that a rank sent
 * before its answer have come before the answer; messages in the node's file are looked at before an answer counts. */
#include <string.h>
#include "base/memory.h"
#include "comm/mpi/channel.h"
#include "comm/mpi/transfer.h"
#include "comm/mpi/wait.h"
#include "comm/shm/backend.h"
#include "comm/shm/wait.h"

/* The last query of one origin (the rank that began the query), as this rank knows it. */
struct mpi_query {
  uint64_t number, wait;       // the query's number; the number of this rank's wait when the query came
  uint32_t asker, unanswered;  // the rank that asked this rank; how many ranks that this rank asked have not answered
  char text[AD_MESSAGE_MAX];   // for what the ranks that answered wait, in words
};

// Returns 1 if this rank waits for `rank` now.
static int needs(const mpi_world *world, uint32_t rank) {
  const ad_call *call = world->waiting.call;
  if (rank == world->rank) return 0;
  if (!ad_op_is_transfer(call->op)) {
    mpi_waited w = ad_mpi_waited_call(world);
    uint32_t k = 0;
    while (k < w.members && ad_shape_rank(w.shape, k) != rank) k++;
    return k < w.members && ad_mpi_is_missing(world, k);
  }
  if (call->peer != AD_ANY_SOURCE) return call->peer == rank;
  int64_t k = 0;
  while (k < call->members && ad_shape_rank(&call->shape, k) != rank) k++;
  return k < call->members && !ad_shm_has_left(world->shm, rank);
}

// Returns 1 if this rank waits, and none of its own messages is still waiting for room in a queue.
static int is_waiting(const mpi_world *world) {
  const ad_call *call = world->waiting.call;
  if (!call || !call->backend || world->shm->transfers->outbox) return 0;
  if (!ad_op_is_transfer(call->op)) return 1;
  return (int)call->op == AD_OP_RECEIVE && ad_shm_waits_for_peer(world->shm, call->backend);
}

// Appends a sentence that says for what this rank waits.
static void add_own_wait(ad_text *text, const mpi_world *world) {
  const ad_call *call = world->waiting.call;
  ad_signature signature;
  ad_signature_take(call, &signature);
  ad_reported_call reported = {&signature, call->axes, &call->shape, call->site, call->number};
  ad_text_add(text, "rank %u waits for ", world->rank);
  if (ad_op_is_transfer(call->op)) {
    ad_transfer_wait_words(text, &reported);
  } else {
    ad_text_add(text, "others in ");
    ad_call_words(text, &reported);
  }
}

// Sends the query `q` of `origin` to all ranks that this rank waits for.
static void ask(mpi_world *world, uint32_t origin, struct mpi_query *q) {
  mail_query query = {.head = {MAIL_QUERY, world->rank}, .origin = origin, .number = q->number};
  q->wait = world->waiting.serial;
  q->unanswered = 0;
  q->text[0] = 0;
  for (uint32_t rank = 0; rank < world->ranks; rank++) q->unanswered += (uint32_t)needs(world, rank);
  for (uint32_t rank = 0; rank < world->ranks; rank++)
    if (needs(world, rank)) ad_mpi_send_mail(world, rank, &query, sizeof query, NULL, 0, NULL, 0);
}

static void answer(mpi_world *world, uint32_t to, uint32_t origin, uint64_t number, const char *text) {
  mail_query query = {.head = {MAIL_QUERY, world->rank}, .origin = origin, .number = number, .is_answer = 1};
  ad_text words = ad_text_on(query.text, sizeof query.text);
  ad_text_add(&words, "%s", text);
  ad_mpi_send_mail(world, to, &query, sizeof query, NULL, 0, NULL, 0);
}

static int has_queries(mpi_world *world) {
  return world->queries || !ad_new(world->ranks, &world->queries);  // no memory now: a later query may find some
}

void ad_mpi_ask_all(mpi_world *world) {
  if (!is_waiting(world) || !has_queries(world)) return;
  struct mpi_query *own = &world->queries[world->rank];
  own->number++;
  ask(world, world->rank, own);
}

static void take_question(mpi_world *world, struct mpi_query *q, const mail_query *query) {
  if (query->number > q->number) {
    q->number = query->number;
    q->asker = query->head.from;
    ask(world, query->origin, q);
  } else if (query->number == q->number && q->wait == world->waiting.serial) {
    answer(world, query->head.from, query->origin, query->number, "");
  }
}

// Called when all ranks that this rank asked have answered, which means that all of them wait. If this rank began the
// query, sets the world's error; otherwise answers the rank that asked this rank.
static void all_answered(mpi_world *world, struct mpi_query *q, uint32_t origin) {
  char waits[AD_MESSAGE_MAX], words[AD_MESSAGE_MAX];
  ad_text of_waits = ad_text_on(waits, sizeof waits), text = ad_text_on(words, sizeof words);
  add_own_wait(&of_waits, world);
  ad_text_add(&of_waits, "%s%s", q->text[0] ? "; " : "", q->text);
  if (origin != world->rank) {
    answer(world, q->asker, origin, q->number, waits);
    return;
  }
  ad_circle_words(&text, waits);
  ad_mpi_raise(world, AD_CYCLE, words);
}

static void take_answer(mpi_world *world, struct mpi_query *q, const mail_query *query) {
  if (query->number != q->number || q->wait != world->waiting.serial || !needs(world, query->head.from)) return;
  char kept[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(kept, sizeof kept);
  ad_text_add(&text, "%s%s%s", q->text, q->text[0] && query->text[0] ? "; " : "", query->text);
  memcpy(q->text, kept, sizeof kept);
  if (!--q->unanswered) all_answered(world, q, query->origin);
}

void ad_mpi_take_query(mpi_world *world, const mail_query *query) {
  ad_shm_progress(world->shm);
  if (!is_waiting(world) || !has_queries(world)) return;
  struct mpi_query *q = &world->queries[query->origin];
  if (query->is_answer)
    take_answer(world, q, query);
  else
    take_question(world, q, query);
}
