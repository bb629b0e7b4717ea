/* Makes, uses and removes network namespaces with the programs of iproute2. */
#include "hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS_MAX = 64, OUTPUT = 1 << 16 };

static ad_status report(const char *format, ...) __attribute__((format(printf, 1, 2)));
static ad_status report(const char *format, ...) {
  va_list words;
  va_start(words, format);
  fputs("addend bench: --hosts: ", stderr);
  vfprintf(stderr, format, words);
  fputc('\n', stderr);
  va_end(words);
  return AD_SYSTEM;
}

/* ---- running programs ---- */

static void read_all(int from, char *out, size_t size) {
  size_t filled = 0;
  ssize_t bytes;
  char rest[512];
  while (filled + 1 < size && (bytes = read(from, out + filled, size - 1 - filled)) > 0) filled += (size_t)bytes;
  while (read(from, rest, sizeof rest) > 0) continue;
  out[filled] = 0;
}

static pid_t start(char *const line[], int output) {
  posix_spawn_file_actions_t actions;
  pid_t process;
  if (!line[0]) return -1;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  int failed = posix_spawnp(&process, line[0], &actions, NULL, line, environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed ? -1 : process;
}

/* Runs a program; `output` gets its output. Returns its exit status, or -1 if it did not run. */
static int run(char *const line[], char output[OUTPUT]) {
  int ends[2], status = -1;
  output[0] = 0;
  if (pipe2(ends, O_CLOEXEC)) return -1;
  pid_t process = start(line, ends[1]);
  close(ends[1]);
  if (process > 0) read_all(ends[0], output, OUTPUT);
  close(ends[0]);
  if (process < 0 || waitpid(process, &status, 0) < 0) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Splits `text` at its spaces into words, in place. */
static void split(char *text, char *line[WORDS_MAX]) {
  int n = 0;
  char *rest = NULL;
  for (char *word = strtok_r(text, " ", &rest); word && n + 1 < WORDS_MAX; word = strtok_r(NULL, " ", &rest))
    line[n++] = word;
  line[n] = NULL;
}

static ad_status do_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
static ad_status do_line(const char *format, ...) {
  char text[512], words[512], output[OUTPUT], *line[WORDS_MAX];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  memcpy(words, text, sizeof words);
  split(words, line);
  if (!run(line, output)) return AD_OK;
  return report("'%s' failed: %.*s", text, (int)strcspn(output, "\n"), output);
}

static int is_installed(const char *program) {
  char output[OUTPUT], test[64];
  snprintf(test, sizeof test, "command -v %s", program);
  return !run((char *[]){"sh", "-c", test, NULL}, output);
}

static ad_status check_machine(const char *qdisc) {
  const char *const programs[] = {"ip", "unshare", "hostname", qdisc ? "tc" : "ip"};
  if (geteuid()) return report("only root can make network namespaces: run it as root");
  for (int i = 0; i < 4; i++)
    if (!is_installed(programs[i]))
      return report("there is no program '%s' here (Debian's packages iproute2, util-linux and hostname have them)",
                    programs[i]);
  return AD_OK;
}

/* ---- removing hosts ---- */

static void remove_space(const char *space) {
  char output[OUTPUT], *rest = NULL;
  run((char *[]){"ip", "netns", "pids", (char *)(size_t)space, NULL}, output);
  for (char *word = strtok_r(output, "\n", &rest); word; word = strtok_r(NULL, "\n", &rest)) {
    pid_t left = (pid_t)strtol(word, NULL, 10);
    if (left > 0) kill(left, SIGKILL);
  }
  run((char *[]){"ip", "netns", "del", (char *)(size_t)space, NULL}, output);
}

static void remove_all(const bench_hosts *hosts) {
  char output[OUTPUT];
  for (int i = 0; i < hosts->world.hosts; i++) remove_space(hosts->host[i].space);
  remove_space(hosts->bridge);
  run((char *[]){"rm", "-r", (char *)(size_t)hosts->folder, NULL}, output);
}

/* The keeper process: in its own process group, which Ctrl-C does not reach, waits until the main process closes its
 * end of the pipe `alive` or dies, then removes the hosts. */
static void keep(const bench_hosts *hosts, int alive) {
  char nothing;
  setpgid(0, 0);
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  while (read(alive, &nothing, 1) < 0 && errno == EINTR) continue;
  remove_all(hosts);
  _exit(0);
}

static ad_status start_keeper(bench_hosts *hosts) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return report("a pipe cannot be made: %s", strerror(errno));
  fflush(NULL);
  hosts->keeper = fork();
  if (hosts->keeper == 0) {
    close(ends[1]);
    keep(hosts, ends[0]);
  }
  close(ends[0]);
  hosts->alive = ends[1];
  if (hosts->keeper > 0) return AD_OK;
  close(hosts->alive);
  rmdir(hosts->folder);
  return report("a process cannot be started: %s", strerror(errno));
}

void bench_hosts_close(bench_hosts *hosts) {
  close(hosts->alive);
  waitpid(hosts->keeper, NULL, 0);
}

/* ---- making hosts ---- */

static ad_status write_file(const char *path, const char *text, mode_t mode) {
  FILE *file = fopen(path, "we");
  if (!file) return report("%s: %s", path, strerror(errno));
  int failed = fputs(text, file) < 0;
  failed |= fclose(file) || chmod(path, mode);
  return failed ? report("%s cannot be written", path) : AD_OK;
}

/* Writes a script that MPI launchers call instead of ssh: its arguments are options, an address, then a command. */
static ad_status write_shell(const bench_hosts *hosts) {
  char text[512];
  snprintf(text, sizeof text,
           "#!/bin/sh\n"
           "while [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
           "host=${1##*.}\n"
           "shift\n"
           "exec ip netns exec %s-$host unshare --uts sh -c \"hostname host-$host; $*\"\n",
           hosts->bridge);
  return write_file(hosts->shell, text, 0755);
}

/* Writes Open MPI's host file. */
static ad_status write_list(const bench_hosts *hosts) {
  char text[BENCH_PLACES] = "";
  size_t filled = 0;
  for (int i = 0; i < hosts->world.hosts; i++)
    filled += (size_t)snprintf(text + filled, sizeof text - filled, "%s slots=%d\n", hosts->host[i].address,
                               hosts->world.ranks);
  return write_file(hosts->list, text, 0644);
}

static ad_status join(const bench_hosts *hosts, int i, const char *qdisc) {
  const bench_host *host = &hosts->host[i];
  const char *bridge = hosts->bridge, *space = host->space;
  AD_TRY(do_line("ip netns add %s", space));
  AD_TRY(do_line("ip link add eth netns %s type veth peer name port%d netns %s", space, i + 1, bridge));
  AD_TRY(do_line("ip -n %s addr add %s/24 dev eth", space, host->address));
  AD_TRY(do_line("ip -n %s link set eth up", space));
  AD_TRY(do_line("ip -n %s link set lo up", space));
  AD_TRY(do_line("ip -n %s link set port%d master bridge up", bridge, i + 1));
  return qdisc ? do_line("ip netns exec %s tc qdisc add dev eth root %s", space, qdisc) : AD_OK;
}

static ad_status make(const bench_hosts *hosts, const char *qdisc) {
  AD_TRY(write_shell(hosts));
  AD_TRY(write_list(hosts));
  AD_TRY(do_line("ip netns add %s", hosts->bridge));
  AD_TRY(do_line("ip -n %s link add bridge type bridge", hosts->bridge));
  AD_TRY(do_line("ip -n %s link set bridge up", hosts->bridge));
  for (int i = 0; i < hosts->world.hosts; i++) AD_TRY(join(hosts, i, qdisc));
  return AD_OK;
}

static void name_all(bench_hosts *hosts) {
  size_t filled = 0;
  snprintf(hosts->bridge, sizeof hosts->bridge, "addend-bench%d", (int)getpid());
  snprintf(hosts->list, sizeof hosts->list, "%s/hosts", hosts->folder);
  snprintf(hosts->shell, sizeof hosts->shell, "%s/shell", hosts->folder);
  for (int i = 0; i < hosts->world.hosts; i++) {
    snprintf(hosts->host[i].space, BENCH_HOST_WORD, "addend-bench%d-%d", (int)getpid(), i + 1);
    snprintf(hosts->host[i].name, BENCH_HOST_WORD, "host-%d", i + 1);
    snprintf(hosts->host[i].address, BENCH_HOST_WORD, "10.79.0.%d", i + 1);
    filled += (size_t)snprintf(hosts->places + filled, BENCH_PLACES - filled, "%s%s:%d", i ? "," : "",
                               hosts->host[i].address, hosts->world.ranks);
  }
}

ad_status bench_hosts_open(bench_world world, const char *qdisc, bench_hosts *out) {
  *out = (bench_hosts){.world = world, .folder = "/tmp/addend-hostsXXXXXX"};
  AD_TRY(check_machine(qdisc));
  if (!mkdtemp(out->folder)) return report("a folder in /tmp cannot be made: %s", strerror(errno));
  name_all(out);
  AD_TRY(start_keeper(out));
  ad_status status = make(out, qdisc);
  if (status) bench_hosts_close(out);
  return status;
}

/* ---- using hosts ---- */

int64_t bench_hosts_sent(const bench_hosts *hosts) {
  char output[OUTPUT];
  int64_t sent = 0;
  size_t i;
  json_t *link;
  if (run((char *[]){"ip", "-n", (char *)(size_t)hosts->bridge, "-s", "-j", "link", NULL}, output)) return -1;
  json_t *links = json_loads(output, 0, NULL);
  if (!links) return -1;
  json_array_foreach(links, i, link) {
    const char *name = json_string_value(json_object_get(link, "ifname"));
    json_t *received = json_object_get(json_object_get(json_object_get(link, "stats64"), "rx"), "bytes");
    if (name && !strncmp(name, "port", 4)) sent += json_integer_value(received);
  }
  json_decref(links);
  return sent;
}

int bench_hosts_enter_words(const bench_hosts *hosts, int host, char *line[]) {
  const bench_host *at = &hosts->host[host];
  char *words[] = {"ip",    "netns", "exec", (char *)(size_t)at->space,        "unshare",
                   "--uts", "sh",    "-c",   "hostname \"$0\" && exec \"$@\"", (char *)(size_t)at->name};
  memcpy(line, words, sizeof words);
  return sizeof words / sizeof *words;
}

/* Options of Open MPI's launcher. Ranks are not bound to cores: every simulated host has all cores, so the first
 * ranks of all hosts would be bound to one core. If there are more ranks than cores, polling ranks must yield. */
static int openmpi_words(const bench_hosts *hosts, char *line[]) {
  long ranks = (long)hosts->world.hosts * hosts->world.ranks;
  char *words[] = {"--hostfile",
                   (char *)(size_t)hosts->list,
                   "--bind-to",
                   "none",
                   "--mca",
                   "plm",
                   "rsh",
                   "--mca",
                   "plm_rsh_agent",
                   (char *)(size_t)hosts->shell,
                   "--mca",
                   "pml",
                   "ob1",
                   "--mca",
                   "btl",
                   "self,vader,tcp",
                   "--mca",
                   "btl_tcp_if_include",
                   "eth",
                   "--mca",
                   "oob_tcp_if_include",
                   "eth",
                   "--mca",
                   "mpi_yield_when_idle",
                   ranks > sysconf(_SC_NPROCESSORS_ONLN) ? "1" : "0"};
  memcpy(line, words, sizeof words);
  return sizeof words / sizeof *words;
}

/* Options of MPICH's launcher. Restricts UCX to TCP: otherwise UCX would take all simulated hosts for one and use
 * shared memory between them. On one host MPICH uses its own shared memory. */
static int mpich_words(const bench_hosts *hosts, char *line[]) {
  char *words[] = {
      "-launcher", "ssh", "-launcher-exec", (char *)(size_t)hosts->shell, "-hosts", (char *)(size_t)hosts->places,
      "-iface",    "eth"};
  setenv("UCX_TLS", "tcp,self", 1);
  setenv("UCX_NET_DEVICES", "eth", 1);
  memcpy(line, words, sizeof words);
  return sizeof words / sizeof *words;
}

int bench_hosts_launcher_words(const bench_hosts *hosts, int is_openmpi, char *line[]) {
  return is_openmpi ? openmpi_words(hosts, line) : mpich_words(hosts, line);
}

int bench_hosts_enter(const bench_hosts *hosts, int host) {
  char path[BENCH_HOST_WORD + 16];
  snprintf(path, sizeof path, "/run/netns/%s", hosts->host[host].space);
  int space = open(path, O_RDONLY | O_CLOEXEC);
  if (space < 0) return 1;
  int failed = setns(space, CLONE_NEWNET);
  close(space);
  return failed;
}
