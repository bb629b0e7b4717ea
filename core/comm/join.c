/* Joins worlds of ranks that another launcher started on this machine: by the caller's rendezvous (ad_comm_join), or by
 * torchrun's environment variables. Ranks first exchange what they need to find their memory file (a meeting), then
 * share memory as under addend's own launcher. */
#include "comm/join.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/options.h"
#include "base/text.h"
#include "comm/backend.h"
#include "comm/meet.h"
#include "comm/node.h"
#include "comm/processor.h"
#include "comm/settings.h"
#include "comm/shm/backend.h"
#include "comm/shm/join.h"

enum { SECONDS = 300 };  // how long ranks wait for each other to join

// Opens the world of the ranks of a meeting, which are all on this machine: they share memory.
static ad_status share(const ad_meeting *meeting, ad_comm **out) {
  shm_world *world;
  ad_nodes nodes;
  AD_TRY(ad_nodes_greet(meeting, 0, &nodes));
  ad_status status = ad_nodes_check_one(meeting, &nodes);
  if (!status) status = ad_nodes_share(meeting, &nodes, 1, &world);
  ad_nodes_clear(&nodes);
  return status ? status : ad_comm_create(&ad_backend_shm, world, meeting->rank, meeting->ranks, out);
}

static ad_status check_place(const char *call, int64_t rank, int64_t size) {
  if (size < 1 || size > SHM_RANKS_MAX)
    return ad_fail(AD_INVALID,
                   "%s: a world of %" PRId64 " ranks is not possible; choose a number of ranks from 1 to %d", call,
                   size, SHM_RANKS_MAX);
  if (rank < 0 || rank >= size)
    return ad_fail(AD_INVALID,
                   "%s: there is no rank %" PRId64 " in a world of %" PRId64
                   " rank%s, whose ranks are numbered from 0; pass a rank below the number of ranks",
                   call, rank, size, ad_plural(size));
  return ad_processor_check(ad_processor_kind(), size);
}

/* ---- joining by the caller's callbacks ---- */

static ad_status check_rendezvous(const ad_rendezvous *by) {
  const char *missing = !by->put ? "put" : !by->wait ? "wait" : !by->get ? "get" : NULL;
  if (missing)
    return ad_fail(AD_INVALID, "ad_comm_join: the field `%s` of the rendezvous is NULL; set it to a function", missing);
  if (by->seconds < 0)
    return ad_fail(AD_INVALID,
                   "ad_comm_join: the field `seconds` of the rendezvous is %" PRId64
                   ", but must be positive, or 0 for the usual %d seconds",
                   by->seconds, SECONDS);
  return AD_OK;
}

ad_status ad_comm_join(int64_t rank, int64_t size, const ad_rendezvous *rendezvous, ad_comm **out) {
  ad_rendezvous by;
  ad_rendezvous_meeting meeting;
  AD_NEED(rendezvous, out);
  AD_TRY(ad_options_take(&by, sizeof by, rendezvous, "ad_rendezvous"));
  AD_TRY(check_rendezvous(&by));
  AD_TRY(ad_settings_check());
  AD_TRY(check_place("ad_comm_join", rank, size));
  if (!by.seconds) by.seconds = SECONDS;
  if (size == 1) return ad_shm_open_alone(out);
  AD_TRY(ad_rendezvous_begin(&by, (uint32_t)rank, (uint32_t)size, &meeting));
  return share(&meeting.meeting, out);
}

/* ---- joining torchrun's ranks ---- */

// Reads a number from an environment variable. Returns -1 if the variable is not set or is not a number.
static int64_t number_of(const char *name) {
  const char *text = getenv(name);
  char *end;
  errno = 0;
  long long value = text ? strtoll(text, &end, 10) : -1;
  return text && end != text && !*end && !errno && value >= 0 ? value : -1;
}

int ad_torchrun_launched(void) {
  return number_of("WORLD_SIZE") > 1 && number_of("RANK") >= 0 && number_of("LOCAL_WORLD_SIZE") >= 1 &&
         number_of("MASTER_PORT") >= 0;
}

static const char *text_of(const char *name) { return getenv(name) ? getenv(name) : ""; }

// Writes a name for the world. The name is the same on all ranks of one start of a job, and differs from the names of
// all other jobs on this host.
static void name_world(char *out, size_t size) {
  snprintf(out, size, "%s %s %s %s", text_of("MASTER_ADDR"), text_of("MASTER_PORT"), text_of("TORCHELASTIC_RUN_ID"),
           text_of("TORCHELASTIC_RESTART_COUNT"));
}

static ad_status check_one_host(int64_t size) {
  int64_t here = number_of("LOCAL_WORLD_SIZE");
  if (here == size) return AD_OK;
  return ad_fail_on_all_ranks(AD_INVALID,
                              "torchrun started %" PRId64 " rank%s, but only %" PRId64
                              " on this host, and addend can join ranks of torchrun on one host only; for several "
                              "hosts start the program with mpirun or srun",
                              size, ad_plural(size), here);
}

ad_status ad_torchrun_open(ad_comm **out) {
  char world[512];
  ad_socket_meeting meeting;
  int64_t rank = number_of("RANK"), size = number_of("WORLD_SIZE");
  AD_TRY(check_place("torchrun's environment", rank, size));
  AD_TRY(check_one_host(size));
  name_world(world, sizeof world);
  AD_TRY(ad_sockets_begin(world, (uint32_t)rank, (uint32_t)size, SECONDS, &meeting));
  ad_status status = share(&meeting.meeting, out);
  ad_sockets_end(&meeting);
  return status;
}
