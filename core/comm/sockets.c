/* A meeting (an all-gather before ranks share memory) over Linux's abstract Unix sockets. These have no file, and
 * vanish when their processes end for any reason. Rank 0 listens; each other rank connects to it and says which rank it
 * is. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/memory.h"
#include "base/text.h"
#include "base/clock.h"
#include "comm/meet.h"

// The first data that a rank sends on its connection to rank 0.
typedef struct hello {
  uint64_t magic;
  uint32_t rank, ranks;
} hello;
static const uint64_t hello_magic = 0x6164646e6d656574;  // "addnmeet"

/* ---- reading and writing before a deadline ---- */

// Returns the milliseconds until the deadline, for poll.
static int left_until(int64_t deadline) {
  int64_t left = (deadline - ad_now()) / 1000000;
  return left < 0 ? 0 : left > INT32_MAX ? INT32_MAX : (int)left;
}

static int is_ready(int fd, short events, int64_t deadline) {
  struct pollfd one = {.fd = fd, .events = events};
  int found;
  do found = poll(&one, 1, left_until(deadline));
  while (found < 0 && errno == EINTR);
  return found > 0;
}

// Reads exactly `bytes` bytes. Returns 0, or an errno value: ETIMEDOUT, or ECONNRESET if the other side has closed.
static int read_all(int fd, void *to, size_t bytes, int64_t deadline) {
  for (size_t done = 0; done < bytes;) {
    if (!is_ready(fd, POLLIN, deadline)) return ETIMEDOUT;
    ssize_t part = recv(fd, (char *)to + done, bytes - done, MSG_DONTWAIT);
    if (part == 0) return ECONNRESET;
    if (part < 0 && errno != EAGAIN && errno != EINTR) return errno;
    if (part > 0) done += (size_t)part;
  }
  return 0;
}

static int write_all(int fd, const void *from, size_t bytes, int64_t deadline) {
  for (size_t done = 0; done < bytes;) {
    if (!is_ready(fd, POLLOUT, deadline)) return ETIMEDOUT;
    ssize_t part = send(fd, (const char *)from + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (part < 0 && errno != EAGAIN && errno != EINTR) return errno;
    if (part > 0) done += (size_t)part;
  }
  return 0;
}

static ad_status lost(uint32_t rank, int error) {
  if (error == ETIMEDOUT)
    return ad_fail(AD_SYSTEM,
                   "rank %" PRIu32 " does not answer while the ranks join the world; see what that rank printed", rank);
  return ad_fail(AD_PEER_FAILED,
                 "rank %" PRIu32 " ended while the ranks joined the world; see what that rank printed (%s)", rank,
                 strerror(error));
}

/* ---- gathering every rank's note ---- */

// On rank 0: reads the notes of all other ranks, then sends all notes to each of them.
static ad_status serve(const ad_socket_meeting *m, const void *own, size_t bytes, char *all) {
  memcpy(all, own, bytes);
  for (uint32_t rank = 1; rank < m->meeting.ranks; rank++) {
    int error = read_all(m->peers[rank], all + rank * bytes, bytes, m->deadline);
    if (error) return lost(rank, error);
  }
  for (uint32_t rank = 1; rank < m->meeting.ranks; rank++) {
    int error = write_all(m->peers[rank], all, m->meeting.ranks * bytes, m->deadline);
    if (error) return lost(rank, error);
  }
  return AD_OK;
}

static ad_status all_gather(void *context, const void *own, size_t bytes, void *all) {
  const ad_socket_meeting *m = context;
  if (!m->meeting.rank) return serve(m, own, bytes, all);
  int error = write_all(m->peers[0], own, bytes, m->deadline);
  if (!error) error = read_all(m->peers[0], all, m->meeting.ranks * bytes, m->deadline);
  return error ? lost(0, error) : AD_OK;
}

/* ---- meeting: all ranks connect to rank 0 ---- */

static socklen_t name_of(const char *world, struct sockaddr_un *out) {
  *out = (struct sockaddr_un){.sun_family = AF_UNIX};
  int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "addend-%u-%016" PRIx64, (unsigned)getuid(),
                        (uint64_t)XXH64(world, strlen(world), 0));
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

// Returns 1 if the process at the other end belongs to this user. Any user may open a socket of this name, but only
// this user's processes are ranks.
static int is_own_user(int fd) {
  struct ucred who;
  socklen_t size = sizeof who;
  return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) && who.uid == getuid();
}

// Fails with a message that names the ranks that have not connected.
static ad_status report_missing(const ad_socket_meeting *m, int64_t seconds) {
  char words[256] = "";
  ad_text text = ad_text_on(words, sizeof words);
  uint32_t missing = 0;
  for (uint32_t rank = 1; rank < m->meeting.ranks; rank++)
    if (m->peers[rank] < 0) ad_text_add(&text, "%s%" PRIu32, missing++ ? ", " : "", rank);
  return ad_fail(AD_SYSTEM,
                 "rank%s %s did not join within %" PRId64
                 " s; every rank that the launcher started must call ad_comm_open",
                 missing > 1 ? "s" : "", words, seconds);
}

// Keeps a connection if it comes from a rank, and closes it otherwise.
static ad_status take_rank(ad_socket_meeting *m, int fd) {
  hello received;
  if (!is_own_user(fd) || read_all(fd, &received, sizeof received, m->deadline) || received.magic != hello_magic) {
    close(fd);
    return AD_OK;
  }
  if (received.ranks == m->meeting.ranks && received.rank && received.rank < received.ranks &&
      m->peers[received.rank] < 0) {
    m->peers[received.rank] = fd;
    return AD_OK;
  }
  close(fd);
  return ad_fail(
      AD_INVALID,
      "a process joins as rank %" PRIu32 " of %" PRIu32 ", but the world of %" PRIu32
      " ranks %s; the launcher must give each process a rank of its own, and all processes the same number of ranks",
      received.rank, received.ranks, m->meeting.ranks,
      received.ranks != m->meeting.ranks ? "has a different size" : "already has that rank");
}

// On rank 0: accepts connections until all other ranks have connected.
static ad_status accept_all(ad_socket_meeting *m, int listener, int64_t seconds) {
  for (uint32_t rank = 1; rank < m->meeting.ranks;) {
    if (m->peers[rank] >= 0) {
      rank++;
      continue;
    }
    if (!is_ready(listener, POLLIN, m->deadline)) return report_missing(m, seconds);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) AD_TRY(take_rank(m, fd));
  }
  return AD_OK;
}

// On rank 0: opens the socket and waits for all other ranks.
static ad_status listen_for_all(ad_socket_meeting *m, const char *world, int64_t seconds) {
  struct sockaddr_un name;
  socklen_t size = name_of(world, &name);
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ad_status status = AD_OK;
  if (listener < 0 || bind(listener, (const struct sockaddr *)&name, size) || listen(listener, (int)m->meeting.ranks))
    status =
        ad_fail(AD_SYSTEM, "rank 0 cannot wait for the other ranks, because the system reports '%s'%s", strerror(errno),
                errno == EADDRINUSE ? "; another process of this launcher already waits as rank 0" : "");
  if (!status) status = accept_all(m, listener, seconds);
  if (listener >= 0) close(listener);
  return status;
}

// Connects to rank 0, which may start later than this rank: tries again until rank 0 listens.
static ad_status connect_to_first(ad_socket_meeting *m, const char *world, int64_t seconds) {
  const struct timespec pause = {.tv_nsec = 5000000};
  struct sockaddr_un name;
  socklen_t size = name_of(world, &name);
  hello own = {hello_magic, m->meeting.rank, m->meeting.ranks};
  m->peers[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (m->peers[0] < 0)
    return ad_fail(AD_SYSTEM,
                   "no socket could be made to join the world (%s); if too many files are open, raise ulimit -n",
                   strerror(errno));
  while (connect(m->peers[0], (const struct sockaddr *)&name, size)) {
    if (ad_now() > m->deadline)
      return ad_fail(AD_SYSTEM,
                     "rank 0 did not join within %" PRId64
                     " s; every rank that the launcher started must call ad_comm_open",
                     seconds);
    nanosleep(&pause, NULL);
  }
  if (!is_own_user(m->peers[0]))
    return ad_fail(AD_SYSTEM,
                   "the socket of rank 0 belongs to a process of another user; start this program again, so that the "
                   "launcher chooses another MASTER_PORT");
  int error = write_all(m->peers[0], &own, sizeof own, m->deadline);
  return error ? lost(0, error) : AD_OK;
}

ad_status ad_sockets_begin(const char *world, uint32_t rank, uint32_t ranks, int64_t seconds, ad_socket_meeting *out) {
  *out = (ad_socket_meeting){.meeting = {rank, ranks, out, all_gather}};
  out->deadline = ad_now() + seconds * 1000000000;
  out->peer_count = rank ? 1 : ranks;
  AD_TRY(ad_new(out->peer_count, &out->peers));
  for (uint32_t i = 0; i < out->peer_count; i++) out->peers[i] = -1;
  ad_status status = rank ? connect_to_first(out, world, seconds) : listen_for_all(out, world, seconds);
  if (status) ad_sockets_end(out);
  return status;
}

void ad_sockets_end(ad_socket_meeting *meeting) {
  for (uint32_t i = 0; i < meeting->peer_count; i++)
    if (meeting->peers[i] >= 0) close(meeting->peers[i]);
  ad_release(meeting->peers);
  *meeting = (ad_socket_meeting){.peers = NULL};
}
