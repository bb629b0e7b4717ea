/* One process on each host, and a TCP connection between each two of them. */
#include "link.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker.h"

enum { PORT = 7900, TRIES = 200, ROOM = 1 << 20 };

/* This host's side of the connection to another one. */
typedef struct wire {
  int socket; /* -1 for this host itself */
  size_t to_send, to_receive;
} wire;

typedef struct line_end {
  const bench_hosts *hosts;
  int own;
  wire wires[BENCH_HOSTS_MAX];
  char *sent, *received; /* buffers of ROOM bytes, which all messages reuse, so that memory costs little time */
} line_end;

/* ---- connecting ---- */

static struct sockaddr_in name_of(const line_end *end, int host) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  inet_pton(AF_INET, end->hosts->host[host].address, &name.sin_addr);
  return name;
}

static int listen_here(const line_end *end) {
  struct sockaddr_in name = name_of(end, end->own);
  int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (struct sockaddr *)&name, sizeof name) || listen(listener, BENCH_HOSTS_MAX)) return -1;
  return listener;
}

/* Connects to another host; tries repeatedly, since that host may not listen yet. */
static int call(const line_end *end, int host) {
  struct sockaddr_in name = name_of(end, host);
  char own = (char)end->own;
  for (int i = 0; i < TRIES; i++) {
    int to = socket(AF_INET, SOCK_STREAM, 0);
    if (!connect(to, (struct sockaddr *)&name, sizeof name)) return send(to, &own, 1, 0) == 1 ? to : -1;
    close(to);
    usleep(10000);
  }
  return -1;
}

static int answer(line_end *end, int listener) {
  char host;
  int from = accept(listener, NULL, NULL);
  if (from < 0 || recv(from, &host, 1, 0) != 1 || host < 0 || host >= end->own) return 1;
  end->wires[(int)host].socket = from;
  return 0;
}

/* Connects all hosts: each connects to the hosts after it and accepts connections from those before it. */
static int join(line_end *end) {
  int listener = listen_here(end), failed = listener < 0, yes = 1;
  for (int i = end->own + 1; i < end->hosts->world.hosts && !failed; i++)
    failed = (end->wires[i].socket = call(end, i)) < 0;
  for (int i = 0; i < end->own && !failed; i++) failed = answer(end, listener);
  for (int i = 0; i < end->hosts->world.hosts; i++)
    if (i != end->own) setsockopt(end->wires[i].socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  close(listener);
  return failed;
}

/* ---- sending and receiving ---- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static int move(const line_end *end, wire *w, short ready) {
  if ((ready & POLLOUT) && w->to_send) {
    ssize_t bytes = send(w->socket, end->sent, least(w->to_send, ROOM), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes > 0) w->to_send -= (size_t)bytes;
  }
  if ((ready & (POLLIN | POLLHUP)) && w->to_receive) {
    ssize_t bytes = recv(w->socket, end->received, least(w->to_receive, ROOM), MSG_DONTWAIT);
    if (!bytes) return 1;
    if (bytes > 0) w->to_receive -= (size_t)bytes;
  }
  return 0;
}

static int move_ready(line_end *end) {
  struct pollfd at[BENCH_HOSTS_MAX];
  int hosts = end->hosts->world.hosts;
  for (int i = 0; i < hosts; i++) {
    const wire *w = &end->wires[i];
    short events = (short)((w->to_send ? POLLOUT : 0) | (w->to_receive ? POLLIN : 0));
    at[i] = (struct pollfd){.fd = events ? w->socket : -1, .events = events};
  }
  if (poll(at, (nfds_t)hosts, -1) < 0) return 1;
  for (int i = 0; i < hosts; i++)
    if (at[i].fd >= 0 && move(end, &end->wires[i], at[i].revents)) return 1;
  return 0;
}

static int is_moving(const line_end *end) {
  int moving = 0;
  for (int i = 0; i < end->hosts->world.hosts; i++) moving |= end->wires[i].to_send || end->wires[i].to_receive;
  return moving;
}

/* Sends `bytes` to every other host and receives as many from each. */
static int bring(line_end *end, size_t bytes) {
  for (int i = 0; i < end->hosts->world.hosts; i++)
    if (i != end->own) end->wires[i].to_send = end->wires[i].to_receive = bytes;
  while (is_moving(end))
    if (move_ready(end)) return 1;
  return 0;
}

/* ---- the process on a host ---- */

static int run(void *context, const bench_task *task, const void *in, void *out) {
  return strcmp(task->op, "link") != 0 || bring(context, task->bytes);
}

static int barrier(void *context) { return bring(context, 1); }

static int work(line_end *end, const char *address) {
  bench_team team = {.self = end, .rank = end->own, .ranks = end->hosts->world.hosts, .run = run, .barrier = barrier};
  if (bench_hosts_enter(end->hosts, end->own) || join(end)) return 1;
  return bench_work(address, &team);
}

static void be_end(const char *address, const bench_hosts *hosts, int own) {
  line_end end = {.hosts = hosts, .own = own, .sent = calloc(2, ROOM)};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  end.received = end.sent + ROOM;
  for (int i = 0; i < BENCH_HOSTS_MAX; i++) end.wires[i].socket = -1;
  _exit(!end.sent || work(&end, address));
}

int bench_link(const char *address, const bench_hosts *hosts) {
  int status = 0;
  for (int i = 0; i < hosts->world.hosts; i++)
    if (fork() == 0) be_end(address, hosts, i);
  while (!status && wait(&status) > 0) continue;
  return status != 0;
}
