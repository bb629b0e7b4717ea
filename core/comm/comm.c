/* The public functions of communication: they validate, number and record each call, and pass it to the backend. No
 * bytes are moved here. */
#include "addend/comm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/environment.h"
#include "base/error.h"
#include "base/options.h"
#include "base/memory.h"
#include "base/injection.h"
#include "base/unfinished.h"
#include "comm/dry.h"
#include "comm/backend.h"
#include "comm/hint.h"
#include "comm/ranks.h"
#include "comm/recorder.h"
#include "comm/scratch.h"
#include "mesh/group.h"
#include "comm/shared.h"

enum { CALLS = 64 };  // most collectives in flight at a time

/* A transfer in flight. Transfers are in a list, since any number of them may be in flight. */
typedef struct transfer_call {
  ad_call call;
  struct transfer_call *next;
} transfer_call;

struct ad_comm {
  const ad_backend *backend;
  void *world;
  int64_t rank, size;
  ad_mesh *mesh;         // mesh of all ranks, on the axis dp
  ad_status broken;      // the world's error, if this rank has seen one; this comm can then only be closed
  char *broken_message;  // owned
  uint64_t last_number;  // number of the latest call
  uint64_t bytes;        // total size of the buffers of all calls so far
  uint64_t in_flight;    // bit i: calls[i] is in flight
  void *scratch;
  size_t scratch_bytes;
  ad_recorder recorder;
  ad_call calls[CALLS];
  transfer_call *transfers, **last_transfer;  // in flight, oldest first
  transfer_call *free_transfers;
  ad_lists lists;
};

// Wraps the backend in backend hostile if ADDEND_HOSTILE is set; every rank gets its own seed. Backend dry is not
// wrapped: it moves no bytes that could be late or poisoned.
static ad_status make_hostile(const ad_backend **backend, void **world, int64_t rank) {
  if (!ad_environment_text("ADDEND_HOSTILE") || *backend == &ad_backend_dry) return AD_OK;
  uint64_t seed = ad_environment_number("ADDEND_HOSTILE", 0);
  AD_TRY(ad_hostile_create(*backend, *world, seed * 65536 + (uint64_t)rank, world));
  *backend = &ad_backend_hostile;
  return AD_OK;
}

// Makes a mesh of all ranks of the world, with the single axis dp.
static ad_status create_mesh(int64_t size, ad_mesh **out) {
  char text[32];
  snprintf(text, sizeof text, "dp=%" PRId64, size);
  return ad_mesh_create(text, out);
}

ad_status ad_comm_create(const ad_backend *backend, void *world, int64_t rank, int64_t size, ad_comm **out) {
  ad_comm *comm = NULL;
  AD_TRY(make_hostile(&backend, &world, rank));
  ad_status status = ad_new(1, &comm);
  if (!status) status = create_mesh(size, &comm->mesh);
  if (status) {
    ad_release(comm);
    backend->close(world);
    return status;
  }
  comm->backend = backend;
  comm->world = world;
  comm->rank = rank;
  comm->size = size;
  comm->last_transfer = &comm->transfers;
  comm->lists = (ad_lists){.backend = backend, .world = world, .rank = rank, .size = size};
  ad_recorder_open(&comm->recorder);
  *out = comm;
  return AD_OK;
}

static void free_transfers(transfer_call *first) {
  for (transfer_call *next; first; first = next) {
    next = first->next;
    ad_release(first);
  }
}

void ad_comm_close(ad_comm *comm) {
  if (!comm) return;
  comm->backend->close(comm->world);
  for (int i = 0; i < CALLS; i++) ad_call_release(&comm->calls[i]);
  free_transfers(comm->transfers);
  free_transfers(comm->free_transfers);
  ad_lists_close(&comm->lists);
  free(comm->broken_message);
  ad_mesh_destroy(comm->mesh);
  ad_release(comm);
}

int64_t ad_comm_rank(const ad_comm *comm) { return comm->rank; }
int64_t ad_comm_size(const ad_comm *comm) { return comm->size; }
const ad_mesh *ad_comm_mesh(const ad_comm *comm) { return comm->mesh; }
const char *ad_comm_backend(const ad_comm *comm) { return comm->backend->name; }
int ad_comm_is_dry(const ad_comm *comm) { return !strcmp(ad_comm_backend(comm), "dry"); }
uint64_t ad_comm_bytes(const ad_comm *comm) { return comm->bytes; }

static int is_in_flight(const void *context, uint64_t number) {
  const ad_comm *comm = context;
  for (int i = 0; i < CALLS; i++)
    if (comm->in_flight >> i & 1 && comm->calls[i].number == number) return 1;
  for (const transfer_call *t = comm->transfers; t; t = t->next)
    if (t->call.number == number) return 1;
  return 0;
}

ad_status ad_comm_flight_recorder(const ad_comm *comm, char **out) {
  AD_NEED(comm, out);
  return ad_recorder_print(&comm->recorder, is_in_flight, comm, out);
}

typedef struct flight_recorder {
  const char *error, *text;
} flight_recorder;

static ad_status print_flight_recorder(FILE *file, void *context) {
  const flight_recorder *record = context;
  fprintf(file, "error: %s\n%s", record->error ? record->error : "", record->text);
  return AD_OK;
}

// Writes the flight recorder's text into the folder ADDEND_FLIGHT_DIR, if that is set. If writing fails, only warns:
// the error that is being reported matters more, and remains ad_last_error().
static void dump_flight_recorder(const ad_comm *comm) {
  const char *folder = ad_environment_text("ADDEND_FLIGHT_DIR");
  char path[4096], kept[AD_MESSAGE_MAX], *text = NULL;
  if (!folder) return;
  snprintf(path, sizeof path, "%s/flight-%" PRId64 ".txt", folder, comm->rank);
  snprintf(kept, sizeof kept, "%s", ad_last_error());
  ad_status status = ad_recorder_print(&comm->recorder, is_in_flight, comm, &text);
  flight_recorder record = {comm->broken_message, text};
  if (!status) status = ad_unfinished_write(path, print_flight_recorder, &record, NULL);
  if (status) {
    ad_log(AD_LOG_WARNING, "the flight recorder was not written, because of this error: %s", ad_last_error());
    ad_fail(comm->broken, "%s", kept);
  }
  free(text);
}

// Handles a status that a function of the backend returned: keeps the first error of the world and writes the flight
// recorder. An error of this rank alone (such as no memory for this call) leaves the comm usable.
static ad_status noted(ad_comm *comm, ad_status status) {
  if (!status || ad_status_is_own(status) || comm->broken) return status;
  ad_fail(status, "%s; the communicator can only be closed", ad_last_error());
  comm->broken = status;
  comm->broken_message = strdup(ad_last_error());
  dump_flight_recorder(comm);
  return status;
}

static ad_status check_broken(const ad_comm *comm) {
  if (!comm->broken) return AD_OK;
  return ad_fail(comm->broken, "%s",
                 comm->broken_message ? comm->broken_message : "an earlier communication failed; close the ad_comm");
}

ad_status ad_comm_health(ad_comm *comm) {
  AD_NEED(comm);
  AD_TRY(check_broken(comm));
  return noted(comm, comm->backend->health(comm->world));
}

void ad_comm_fail(ad_comm *comm, ad_status status, const char *message) {
  char text[AD_MESSAGE_MAX], own[32] = "";
  if (!comm) return;
  if (message != ad_last_error() || !ad_last_error_is_on_all_ranks())
    snprintf(own, sizeof own, "rank %" PRId64 ": ", comm->rank);
  snprintf(text, sizeof text, "%s%s", own, message && *message ? message : ad_status_sentence(status));
  comm->backend->fail(comm->world, status, text);
}

ad_status ad_comm_missing(const ad_comm *comm, char **out) {
  char words[AD_MESSAGE_MAX] = "";
  ad_text text = ad_text_on(words, sizeof words);
  AD_NEED(comm, out);
  if (comm->backend->missing) comm->backend->missing(comm->world, &text);
  char *copy = strdup(words);
  if (!copy) return ad_fail(AD_MEMORY, "no memory for the list of missing ranks");
  *out = copy;
  return AD_OK;
}

ad_status ad_comm_alloc(ad_comm *comm, size_t bytes, void **out) {
  AD_NEED(comm, out);
  return comm->backend->alloc(comm->world, bytes, out);
}

void ad_comm_free(ad_comm *comm, void *memory) {
  if (comm && memory) comm->backend->free(comm->world, memory);
}

int ad_comm_shares(const ad_comm *comm, const ad_group *group) {
  ad_group_shape shape = ad_group_canonical(group);
  return ad_comm_shares_shape(comm, &shape);
}

int ad_comm_shares_shape(const ad_comm *comm, const ad_group_shape *shape) {
  return comm->backend->shares && comm->backend->shares(comm->world, shape);
}

// The offer that the group's first member broadcasts: whether it made the shared memory, the memory's size and its
// token.
typedef struct shared_offer {
  int64_t status, bytes;
  ad_shared_token token;
} shared_offer;

// Attaches to the memory that the group's first member offers, and checks that this rank asked for as many bytes as
// that member.
static ad_status take_offer(ad_comm *comm, const ad_group *group, size_t bytes, const shared_offer *offer,
                            const char *site, void **out) {
  int64_t first = ad_group_rank(group, 0);
  if (offer->status)
    return ad_fail((ad_status)offer->status,
                   "%s: rank %" PRId64
                   " has no memory left for the %zu bytes of shared memory that its group asked for; ask for less",
                   site, first, bytes);
  AD_TRY(comm->backend->attach(comm->world, bytes, &offer->token, out));
  if (offer->bytes == (int64_t)bytes) return AD_OK;
  ad_comm_free(comm, *out);
  return ad_fail(AD_MISMATCH,
                 "%s: this rank asked for %zu bytes of shared memory, but rank %" PRId64 " asked for %" PRId64
                 " bytes; all ranks of a group must ask for the same size",
                 site, bytes, first, offer->bytes);
}

ad_status ad_comm_alloc_shared_at(ad_comm *comm, const ad_group *group, size_t bytes, void **out, const char *site) {
  shared_offer offer = {.bytes = (int64_t)bytes};
  void *memory = NULL;
  AD_NEED(comm, group);
  AD_NEED(group->mesh);
  AD_NEED(out);
  if (!site) site = AD_NO_SITE;
  int64_t index = ad_group_index(group, comm->rank);
  if (index < 0)
    return ad_fail(AD_INVALID,
                   "%s: shared memory was asked for on rank %" PRId64
                   ", which is not in the group; only ranks of the group may ask",
                   site, comm->rank);
  if (!ad_comm_shares(comm, group))
    return ad_fail(AD_INVALID,
                   "%s: the ranks of this group cannot share memory under backend %s; call ad_comm_shares before, "
                   "which reports whether they can",
                   site, ad_comm_backend(comm));
  if (!index) {
    uint32_t holders = (uint32_t)ad_group_size(group);
    offer.status = comm->backend->share(comm->world, bytes, holders, &offer.token, &memory);
  }
  ad_collective report = {.size = sizeof report,
                          .op = AD_BROADCAST,
                          .group = *group,
                          .in = &offer,
                          .out = &offer,
                          .dtype = AD_I64,
                          .site = site};
  report.count = sizeof offer / sizeof(int64_t);
  AD_TRY(ad_comm_run(comm, &report));  // on failure the comm can only be closed, which frees the memory
  if (index) return take_offer(comm, group, bytes, &offer, site, out);
  if (!offer.status) *out = memory;
  return (ad_status)offer.status;
}

ad_status ad_comm_scratch(ad_comm *comm, size_t bytes, void **out) {
  if (bytes > comm->scratch_bytes) {
    ad_comm_free(comm, comm->scratch);
    comm->scratch = NULL;
    comm->scratch_bytes = 0;
    AD_TRY(ad_comm_alloc(comm, bytes, &comm->scratch));
    comm->scratch_bytes = bytes;
  }
  *out = comm->scratch;
  return AD_OK;
}

// Removes a transfer from the list of transfers in flight, and keeps its struct for a later transfer.
static void forget_transfer(ad_comm *comm, ad_call *call) {
  transfer_call **link = &comm->transfers, *found;
  while (&(*link)->call != call) link = &(*link)->next;
  found = *link;
  *link = found->next;
  if (comm->last_transfer == &found->next) comm->last_transfer = link;
  found->next = comm->free_transfers;
  comm->free_transfers = found;
}

// Frees the struct (in comm->calls or comm->transfers) of a call that is complete, or that could not be started.
static void release_call(ad_comm *comm, ad_call *call) {
  if (call->ranks) ad_ranks_let_go(call->ranks);
  call->ranks = NULL;
  if (ad_op_is_transfer(call->op))
    forget_transfer(comm, call);
  else
    comm->in_flight &= ~(1ull << (call - comm->calls));
}

static ad_call *oldest(ad_comm *comm) {
  ad_call *found = NULL;
  for (uint64_t left = comm->in_flight; left; left &= left - 1) {
    ad_call *call = &comm->calls[__builtin_ctzll(left)];
    if (!found || call->number < found->number) found = call;
  }
  return found;
}

static ad_status finish(ad_comm *comm, ad_call *call) {
  AD_TRY(noted(comm, comm->backend->wait(comm->world, call)));
  release_call(comm, call);
  return AD_OK;
}

// Finds a free element of comm->calls. If there is none, first waits for the oldest call.
static ad_status make_place(ad_comm *comm, ad_call **out) {
  if (comm->in_flight == UINT64_MAX) AD_TRY(finish(comm, oldest(comm)));
  *out = &comm->calls[__builtin_ctzll(~comm->in_flight)];
  return AD_OK;
}

static uint64_t call_bytes(const ad_call *call) {
  uint64_t bytes = call->in_bytes + call->out_bytes;
  for (size_t i = 0; i < call->message_count; i++) bytes += call->messages[i].count * call->element;
  return bytes;
}

// Numbers a call that is listed as in flight, passes it to the backend and records it.
static ad_status start(ad_comm *comm, ad_call *call) {
  call->number = comm->last_number + 1;
  if (call->ranks) ad_ranks_hold(call->ranks);
  ad_status status = comm->backend->post(comm->world, call);
  ad_recorder_add(&comm->recorder, call);  // after the post, since peers may be waiting for the post
  status = noted(comm, status);
  if (status) {
    release_call(comm, call);
    return status;
  }
  comm->last_number = call->number;
  comm->bytes += call_bytes(call);
  return AD_OK;
}

static ad_status check_ranks(const ad_comm *comm, const ad_ranks *ranks, const char *site) {
  if (!ranks || ad_ranks_are_of(ranks, &comm->lists)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the list of ranks belongs to another ad_comm; make the list with the ad_comm of this call",
                 site ? site : AD_NO_SITE);
}

// Validates a collective, lists it as in flight, and starts it.
static ad_status post(ad_comm *comm, const ad_collective *collective, int past_caches, ad_call **out) {
  ad_call *call;
  AD_TRY(check_broken(comm));
  AD_TRY(check_ranks(comm, collective->ranks, collective->site));
  AD_TRY(make_place(comm, &call));
  AD_TRY(ad_call_prepare(collective, comm->rank, comm->size, call));
  ad_inject(AD_INJECT_CALL, &(ad_call_passing){comm, call});
  call->past_caches = past_caches;
  comm->in_flight |= 1ull << (call - comm->calls);
  AD_TRY(start(comm, call));
  *out = call;
  return AD_OK;
}

static ad_status take_transfer(ad_comm *comm, transfer_call **out) {
  transfer_call *made = comm->free_transfers;
  if (!made) return ad_new(1, out);
  comm->free_transfers = made->next;
  *out = made;
  return AD_OK;
}

// Validates one side of a transfer, lists it as in flight, and starts it.
static ad_status post_transfer(ad_comm *comm, const ad_transfer *given, const char *site, ad_call **out) {
  ad_transfer own;
  transfer_call *made;
  AD_TRY(ad_options_take(&own, sizeof own, given, "ad_transfer"));
  if (!own.site) own.site = site;
  AD_TRY(check_broken(comm));
  AD_TRY(check_ranks(comm, own.ranks, own.site));
  AD_TRY(take_transfer(comm, &made));
  ad_status status = ad_call_prepare_transfer(&own, comm->rank, comm->size, &made->call);
  if (status) {
    made->next = comm->free_transfers;
    comm->free_transfers = made;
    return status;
  }
  made->next = NULL;
  *comm->last_transfer = made;
  comm->last_transfer = &made->next;
  AD_TRY(start(comm, &made->call));
  *out = &made->call;
  return AD_OK;
}

// Copies a caller's collective and fills in the defaults: the call site, and the group of all ranks.
static ad_status take_collective(const ad_comm *comm, const ad_collective *given, const char *site,
                                 ad_collective *out) {
  AD_TRY(ad_options_take(out, sizeof *out, given, "ad_collective"));
  if (!out->site) out->site = site;
  if (!out->group.mesh && !out->ranks) out->group = ad_mesh_group(comm->mesh, AD_AXES_ALL, comm->rank);
  return AD_OK;
}

ad_status ad_comm_run_at(ad_comm *comm, const ad_collective *collective, const char *site) {
  ad_call *call;
  ad_collective own;
  AD_NEED(comm, collective);
  AD_TRY(take_collective(comm, collective, site, &own));
  AD_TRY(post(comm, &own, 0, &call));
  return finish(comm, call);
}

ad_status ad_comm_post_hinted(ad_comm *comm, const ad_collective *collective, int past_caches, ad_request *out) {
  ad_call *call;
  AD_TRY(post(comm, collective, past_caches, &call));
  *out = (ad_request){.id = call->number, .source = -1};
  return AD_OK;
}

ad_status ad_comm_post_at(ad_comm *comm, const ad_collective *collective, ad_request *out, const char *site) {
  ad_collective own;
  AD_NEED(comm, collective, out);
  AD_TRY(take_collective(comm, collective, site, &own));
  return ad_comm_post_hinted(comm, &own, 0, out);
}

ad_status ad_comm_post_transfer_at(ad_comm *comm, const ad_transfer *transfer, ad_request *out, const char *site) {
  ad_call *call;
  AD_NEED(comm, transfer, out);
  AD_TRY(post_transfer(comm, transfer, site, &call));
  *out = (ad_request){.id = call->number, .source = -1};
  return AD_OK;
}

// Returns the peer that sent the message of a complete receive: its index in the caller's list, or its rank if there is
// no list. Returns -1 if the call is no receive.
static int64_t source_of(const ad_call *call) {
  if ((int)call->op != AD_OP_RECEIVE) return -1;
  return call->ranks ? ad_ranks_index(call->ranks, call->source) : call->source;
}

ad_status ad_comm_transfer_at(ad_comm *comm, const ad_transfer *transfer, int64_t *source, const char *site) {
  ad_request request = {0};
  AD_NEED(comm, transfer);
  AD_TRY(ad_comm_post_transfer_at(comm, transfer, &request, site));
  AD_TRY(ad_comm_wait(comm, &request));
  if (source) *source = request.source;
  return AD_OK;
}

ad_status ad_ranks_create_at(ad_comm *comm, const int64_t *ranks, int64_t count, ad_ranks **out, const char *site) {
  AD_NEED(comm, ranks, out);
  return ad_lists_add(&comm->lists, ranks, count, site ? site : AD_NO_SITE, out);
}

// Returns the call of a request, or NULL if the call is complete: a complete call is removed as soon as it is seen.
static ad_call *find_call(ad_comm *comm, const ad_request *request) {
  for (uint64_t left = comm->in_flight; left; left &= left - 1) {
    ad_call *call = &comm->calls[__builtin_ctzll(left)];
    if (call->number == request->id) return call;
  }
  for (transfer_call *t = comm->transfers; t; t = t->next)
    if (t->call.number == request->id) return &t->call;
  return NULL;
}

static ad_status check_request(const ad_comm *comm, const ad_request *request) {
  if (request->id <= comm->last_number) return AD_OK;
  return ad_fail(AD_INVALID,
                 "request %" PRIu64 " was not made by this ad_comm, whose last request is %" PRIu64
                 "; wait for a request with the ad_comm that made it",
                 request->id, comm->last_number);
}

// Marks a request as complete and frees its call.
static void settle(ad_comm *comm, ad_call *call, ad_request *request) {
  *request = (ad_request){.source = source_of(call)};
  release_call(comm, call);
}

ad_status ad_comm_test(ad_comm *comm, ad_request *request, int *done) {
  AD_NEED(comm, request, done);
  AD_TRY(check_request(comm, request));
  AD_TRY(check_broken(comm));
  ad_call *call = find_call(comm, request);
  int complete = 1;
  if (!call) request->id = 0;
  if (call) AD_TRY(noted(comm, comm->backend->test(comm->world, call, &complete)));
  if (call && complete) settle(comm, call, request);
  *done = complete;
  return AD_OK;
}

ad_status ad_comm_wait(ad_comm *comm, ad_request *request) {
  AD_NEED(comm, request);
  AD_TRY(check_request(comm, request));
  AD_TRY(check_broken(comm));
  ad_call *call = find_call(comm, request);
  if (!call) {
    request->id = 0;
    return AD_OK;
  }
  AD_TRY(noted(comm, comm->backend->wait(comm->world, call)));
  settle(comm, call, request);
  return AD_OK;
}

ad_status ad_comm_barrier_at(ad_comm *comm, const ad_group *group, const char *site) {
  AD_NEED(comm, group);
  ad_collective barrier = {.size = sizeof barrier, .op = AD_BARRIER, .group = *group, .site = site};
  return ad_comm_run(comm, &barrier);
}
