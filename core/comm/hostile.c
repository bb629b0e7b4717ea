/* Backend hostile, for tests: wraps another backend and does everything that backend.h allows but a careless caller
 * does not expect. Outputs are NaN until a call is complete. Calls use private buffers instead of the caller's, are
 * slow, start late, and look unfinished for a while. Freed memory is poisoned (filled with NaN). If ADDEND_HOSTILE=SEED
 * is in the environment, every backend but dry is wrapped in this one. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "comm/backend.h"
#include "mesh/group.h"

enum {
  POISON = 0xff,        // a value made of such bytes is NaN in every floating-point dtype
  LONGEST_DELAY = 300,  // microseconds
};

typedef struct hostile_call {
  struct hostile_call *next;
  ad_call inner;      // the call that the wrapped backend gets
  void *in, *out;     // the private buffers that replace the caller's; NULL: the caller's own are used
  int in_backend;     // 1: `in` and `out` are memory of the wrapped backend
  int refusals_left;  // how many more times hostile_test says that the call is not complete, whatever is true
  int held;           // 1: the call has not been passed to the wrapped backend yet
} hostile_call;

typedef struct hostile_world {
  const ad_backend *backend;
  void *inner;
  uint64_t seed, drawn;
  hostile_call *calls;  // calls in flight
  void **shared;        // memory that this rank shares with others
  size_t shared_count;
} hostile_world;

ad_status ad_hostile_create(const ad_backend *backend, void *inner, uint64_t seed, void **out) {
  hostile_world *world;
  ad_status status = ad_new(1, &world);
  if (status) {
    backend->close(inner);
    return status;
  }
  *world = (hostile_world){.backend = backend, .inner = inner, .seed = seed};
  *out = world;
  return AD_OK;
}

// Draws a random number below `below`.
static uint64_t draw_below(hostile_world *world, uint64_t below) {
  return ad_random_bits(world->seed, 0, world->drawn++) % below;
}

static void delay(hostile_world *world) {
  if (!draw_below(world, 8)) usleep((useconds_t)draw_below(world, LONGEST_DELAY));
}

static ad_status hostile_alloc(void *world, size_t bytes, void **out) {
  const hostile_world *w = world;
  return w->backend->alloc(w->inner, bytes, out);
}

// Returns 1 if this rank shares the memory with others, so that it must not be poisoned, and removes it from w->shared.
static int was_shared(hostile_world *w, const void *memory) {
  for (size_t i = 0; i < w->shared_count; i++)
    if (w->shared[i] == memory) {
      w->shared[i] = w->shared[--w->shared_count];
      return 1;
    }
  return 0;
}

static void hostile_free(void *world, void *memory) {
  hostile_world *w = world;
  // Only the wrapped backend knows the size of the memory, but it has at least 64 bytes.
  if (!was_shared(w, memory)) memset(memory, POISON, 64);
  w->backend->free(w->inner, memory);
}

static int overlap(const ad_call *call) {
  const char *in = call->in, *out = call->out;
  return call->in_bytes && call->out_bytes && in < out + call->out_bytes && out < in + call->in_bytes;
}

static ad_status poisoned(hostile_world *w, int in_backend, size_t bytes, void **out) {
  if (in_backend)
    AD_TRY(w->backend->alloc(w->inner, bytes, out));
  else
    AD_TRY(ad_new_bytes(bytes, 1, out));
  memset(*out, POISON, bytes);
  return AD_OK;
}

// Makes private buffers for the call, and copies the caller's inputs into them. For a call with leaf ranges the buffers
// are memory of the wrapped backend, since a backend may refuse leaf ranges in other memory.
static ad_status move_buffers(hostile_world *w, hostile_call *c, const ad_call *call) {
  c->in_backend = call->results != NULL;
  AD_TRY(poisoned(w, c->in_backend, call->in_bytes, &c->in));
  AD_TRY(poisoned(w, c->in_backend, call->out_bytes, &c->out));
  if (call->in_bytes) memcpy(c->in, call->in, call->in_bytes);
  if (call->reducing.adds && call->out_bytes) memcpy(c->out, call->out, call->out_bytes);
  c->inner.in = c->in;
  c->inner.out = c->out;
  return AD_OK;
}

static void free_buffer(hostile_world *world, const hostile_call *c, void *buffer) {
  if (!c->in_backend)
    ad_release(buffer);
  else if (buffer && world->inner)  // NULL: the backend is closed, and its memory is gone
    world->backend->free(world->inner, buffer);
}

static void release_call(hostile_world *world, hostile_call *c) {
  for (hostile_call **link = &world->calls; *link; link = &(*link)->next)
    if (*link == c) {
      *link = c->next;
      break;
    }
  free_buffer(world, c, c->in);
  free_buffer(world, c, c->out);
  ad_release(c);
}

static void write_outputs(const hostile_call *c, ad_call *call) {
  if (c->out && call->out_bytes) memcpy(call->out, c->out, call->out_bytes);
}

// Poisons the receive buffers of an exchange; no other message of the exchange uses their memory.
static void poison_receives(const ad_call *call) {
  for (size_t i = 0; i < call->message_count; i++)
    if (call->messages[i].receive) memset(call->messages[i].receive, POISON, call->messages[i].count * call->element);
}

static hostile_call *oldest_held(const hostile_world *w) {
  hostile_call *oldest = NULL;
  for (hostile_call *c = w->calls; c; c = c->next)
    if (c->held) oldest = c;  // the list has the newest call first
  return oldest;
}

// Starts the calls that were held back, in the order of posting. If a call cannot be started, the next start_held tries
// again.
static ad_status start_held(hostile_world *w) {
  for (hostile_call *c = oldest_held(w); c; c = oldest_held(w)) {
    AD_TRY(w->backend->post(w->inner, &c->inner));
    c->held = 0;
  }
  return AD_OK;
}

// Posts a call or holds it back, with the caller's buffers or with private ones; random numbers decide.
static ad_status hostile_post(void *world, ad_call *call) {
  hostile_world *w = world;
  hostile_call *c;
  delay(w);
  AD_TRY(start_held(w));
  AD_TRY(ad_new(1, &c));
  c->inner = *call;
  c->refusals_left = (int)draw_below(w, 3);
  int moves = !ad_is_of_messages(call->operation) && draw_below(w, 2), apart = !overlap(call) && !call->reducing.adds;
  ad_status status = moves ? move_buffers(w, c, call) : AD_OK;
  if (!status && apart && call->out_bytes) memset(call->out, POISON, call->out_bytes);
  poison_receives(call);
  c->held = (int)draw_below(w, 2);
  if (!status && !c->held) status = w->backend->post(w->inner, &c->inner);
  if (status) {
    release_call(w, c);
    return status;
  }
  c->next = w->calls;
  w->calls = c;
  call->backend = c;
  return AD_OK;
}

static ad_status complete(hostile_world *world, ad_call *call) {
  call->source = ((hostile_call *)call->backend)->inner.source;
  write_outputs(call->backend, call);
  release_call(world, call->backend);
  call->backend = NULL;
  return AD_OK;
}

static ad_status hostile_test(void *world, ad_call *call, int *done) {
  hostile_world *w = world;
  hostile_call *c = call->backend;
  *done = !c;
  if (!c) return AD_OK;
  if (c->refusals_left > 0) {
    c->refusals_left--;
    return w->backend->health(w->inner);
  }
  AD_TRY(start_held(w));
  AD_TRY(w->backend->test(w->inner, &c->inner, done));
  return *done ? complete(w, call) : AD_OK;
}

static ad_status hostile_wait(void *world, ad_call *call) {
  hostile_world *w = world;
  hostile_call *c = call->backend;
  delay(w);
  AD_TRY(start_held(w));
  if (!c) return AD_OK;
  AD_TRY(w->backend->wait(w->inner, &c->inner));
  return complete(w, call);
}

static void hostile_missing(void *world, ad_text *text) {
  const hostile_world *w = world;
  if (w->backend->missing) w->backend->missing(w->inner, text);
}

static void hostile_fail(void *world, ad_status cause, const char *message) {
  const hostile_world *w = world;
  w->backend->fail(w->inner, cause, message);
}

static ad_status hostile_health(void *world) {
  const hostile_world *w = world;
  return w->backend->health(w->inner);
}

static void hostile_close(void *world) {
  hostile_world *w = world;
  ad_status status = start_held(w);  // a rank may leave after posting its calls, so they must be started
  (void)status;                      // the other ranks get the error; this rank leaves in any case
  w->backend->close(w->inner);
  w->inner = NULL;
  while (w->calls) release_call(w, w->calls);
  ad_release(w->shared);
  ad_release(w);
}

static void hostile_release(void *world, const ad_group_shape *list) {
  const hostile_world *w = world;
  if (w->backend->release) w->backend->release(w->inner, list);
}

static int hostile_shares(void *world, const ad_group_shape *shape) {
  const hostile_world *w = world;
  return w->backend->shares && w->backend->shares(w->inner, shape);
}

static ad_status hostile_share(void *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) {
  hostile_world *w = world;
  AD_TRY(ad_grow(&w->shared, w->shared_count, w->shared_count + 1));
  AD_TRY(w->backend->share(w->inner, bytes, holders, token, out));
  w->shared[w->shared_count++] = *out;
  return AD_OK;
}

static ad_status hostile_attach(void *world, size_t bytes, const ad_shared_token *token, void **out) {
  hostile_world *w = world;
  delay(w);
  AD_TRY(w->backend->attach(w->inner, bytes, token, out));
  ad_status status = ad_grow(&w->shared, w->shared_count, w->shared_count + 1);
  if (status) {
    w->backend->free(w->inner, *out);
    return status;
  }
  w->shared[w->shared_count++] = *out;
  return AD_OK;
}

const ad_backend ad_backend_hostile = {
    .name = "hostile",
    .alloc = hostile_alloc,
    .free = hostile_free,
    .shares = hostile_shares,
    .share = hostile_share,
    .attach = hostile_attach,
    .post = hostile_post,
    .test = hostile_test,
    .wait = hostile_wait,
    .release = hostile_release,
    .fail = hostile_fail,
    .missing = hostile_missing,
    .health = hostile_health,
    .close = hostile_close,
};
