/* Starts the measured programs: addend, the floor, and the peers through mpirun or python3. */
#include "programs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "floor.h"
#include "link.h"
#include "part.h"
#include "shared.h"

enum { PATH_BYTES = 1024, WORDS_MAX = 80, JOIN_SECONDS = 90 };

static int be_addend(const bench_kind *kind, const char *address, const bench_scene *scene) {
  return bench_library(address, scene->ranks, scene->model, 0);
}
static int be_addend_plain(const bench_kind *kind, const char *address, const bench_scene *scene) {
  return bench_library(address, scene->ranks, scene->model, 1);
}
static int be_addend_plainest(const bench_kind *kind, const char *address, const bench_scene *scene) {
  return bench_library(address, scene->ranks, scene->model, 2);
}
static size_t numel_of(const bench_model *model) { return bench_trainer.numel ? bench_trainer.numel(model) : 0; }
static int be_slices(const bench_kind *kind, const char *address, const bench_scene *scene) {
  return bench_floor(address, scene->ranks, BENCH_FLOOR_SLICES, numel_of(scene->model));
}
static int be_slots(const bench_kind *kind, const char *address, const bench_scene *scene) {
  return bench_floor(address, scene->ranks, BENCH_FLOOR_SLOTS, numel_of(scene->model));
}

/* Discards standard error unless ADDEND_PEER_ERRORS is set: launchers print much when their ranks leave. */
static void keep_quiet(void) {
  int nowhere = getenv("ADDEND_PEER_ERRORS") ? -1 : open("/dev/null", O_WRONLY);
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
}

/* Runs mpirun. kind->words: mpirun's name, the program's name, then further options of mpirun. */
static int be_mpi(const bench_kind *kind, const char *address, const bench_scene *scene) {
  char path[PATH_BYTES], count[16];
  char *line[WORDS_MAX];
  int is_openmpi = !strcmp(kind->words[0], "mpirun.openmpi");
  int n = scene->hosts ? bench_hosts_enter_words(scene->hosts, 0, line) : 0;
  line[n++] = kind->words[0];
  bench_peer_path(kind->words[1], path, sizeof path);
  snprintf(count, sizeof count, "%d", scene->ranks);
  if (access(path, X_OK)) return 1;
  if (is_openmpi && geteuid() == 0) line[n++] = "--allow-run-as-root";
  if (is_openmpi && scene->ranks > sysconf(_SC_NPROCESSORS_ONLN)) line[n++] = "--oversubscribe";
  if (scene->hosts) n += bench_hosts_launcher_words(scene->hosts, is_openmpi, line + n);
  for (int i = 2; kind->words[i]; i++) line[n++] = kind->words[i];
  char *end[] = {"-n", count, path, (char *)(size_t)address, NULL};
  memcpy(line + n, end, sizeof end);
  execvp(line[0], line);
  return 1;
}

/* Runs mpirun with a heap that keeps freed memory and uses huge pages, so that scratch buffers cause no page faults. */
static int be_warm_mpi(const bench_kind *kind, const char *address, const bench_scene *scene) {
  setenv("GLIBC_TUNABLES",
         "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=268435456:"
         "glibc.malloc.hugetlb=1",
         1);
  return be_mpi(kind, address, scene);
}

static int be_link(const bench_kind *kind, const char *address, const bench_scene *scene) {
  return bench_link(address, scene->hosts);
}

/* Returns a TCP port that was free a moment ago. */
static int free_port(void) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof name;
  int probe = socket(AF_INET, SOCK_STREAM, 0), port = 0;
  if (!bind(probe, (struct sockaddr *)&name, size) && !getsockname(probe, (struct sockaddr *)&name, &size))
    port = ntohs(name.sin_port);
  close(probe);
  return port;
}

/* Writes the command-line words that start a rank of gloo on its host (consecutive ranks share a host); returns
 * their number. */
static int enter_for_gloo(const bench_hosts *hosts, int rank, char *line[]) {
  setenv("GLOO_SOCKET_IFNAME", "eth", 1);
  setenv("MASTER_ADDR", hosts->host[0].address, 1);
  return bench_hosts_enter_words(hosts, rank / hosts->world.ranks, line);
}

static void be_python_rank(const bench_kind *kind, const char *address, const bench_scene *scene, const int place[3]) {
  const bench_model *model = scene->model;
  const bench_hosts *hosts = scene->hosts;
  char path[PATH_BYTES], numbers[8][16];
  int all[] = {place[0], place[1], place[2], model->layers, model->d_model, model->heads, model->seq, model->batch};
  for (int i = 0; i < 8; i++) snprintf(numbers[i], sizeof numbers[i], "%d", all[i]);
  bench_peer_path(kind->words[0], path, sizeof path);
  char *python = getenv("ADDEND_PEER_PYTHON");
  char *line[WORDS_MAX], *words[] = {python ? python : "python3",
                                     path,
                                     (char *)(size_t)address,
                                     numbers[0],
                                     numbers[1],
                                     numbers[2],
                                     kind->words[1],
                                     numbers[3],
                                     numbers[4],
                                     numbers[5],
                                     numbers[6],
                                     numbers[7],
                                     NULL};
  int n = hosts ? enter_for_gloo(hosts, place[0], line) : 0;
  memcpy(line + n, words, sizeof words);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  execvp(line[0], line);
  _exit(1);
}

/* Runs a Python script, one process per rank. kind->words: the script, then its arguments. Ends when the first rank
 * fails or all have ended. */
static int be_python(const bench_kind *kind, const char *address, const bench_scene *scene) {
  int port = free_port(), status = 0;
  for (int rank = 0; rank < scene->ranks; rank++)
    if (fork() == 0) be_python_rank(kind, address, scene, (int[]){rank, scene->ranks, port});
  while (!status && wait(&status) > 0) continue;
  return status != 0;
}

#define WORDS(...) ((char *const[]){__VA_ARGS__, NULL})
#define TUNED "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca"
const bench_kind bench_kinds[] = {
    {"addend", "",
     BENCH_COLLECTIVES | BENCH_REDUCER | BENCH_TRAINING | BENCH_SHARDED | BENCH_UPDATE | BENCH_TENSOR | BENCH_HYBRID |
         BENCH_ROUTING | BENCH_GROUPED | BENCH_LAYER | BENCH_BRIDGE | BENCH_DECOMPOSITION | BENCH_TRANSFER |
         BENCH_TORCH | BENCH_TORCH_STEP | BENCH_PIPELINE | BENCH_LEAVES | BENCH_MUON,
     0, be_addend, NULL},
    {"floor", "slices",
     BENCH_COLLECTIVES | BENCH_REDUCER | BENCH_SHARDED | BENCH_UPDATE | BENCH_ROUTING | BENCH_BRIDGE | BENCH_TRANSFER |
         BENCH_MUON,
     0, be_slices, NULL},
    {"floor", "slots", BENCH_COLLECTIVES, 0, be_slots, NULL},
    {"link", "TCP streams", BENCH_BETWEEN, 0, be_link, NULL},
    {"openmpi", "as installed", BENCH_COLLECTIVES | BENCH_ROUTING | BENCH_BRIDGE | BENCH_BETWEEN, 1, be_mpi,
     WORDS("mpirun.openmpi", "mpi_openmpi")},
    {"openmpi_tuned", "warm heap, huge pages", BENCH_COLLECTIVES | BENCH_ROUTING | BENCH_BRIDGE, 1, be_warm_mpi,
     WORDS("mpirun.openmpi", "mpi_openmpi")},
    {"openmpi_tuned", "warm heap, huge pages, pairs", BENCH_ROUTING, 1, be_warm_mpi,
     WORDS("mpirun.openmpi", "mpi_openmpi", TUNED, "coll_tuned_alltoallv_algorithm", "2")},
    {"openmpi_tuned", "warm heap, huge pages, rings", BENCH_COLLECTIVES, 1, be_warm_mpi,
     WORDS("mpirun.openmpi", "mpi_openmpi", TUNED, "coll_tuned_allreduce_algorithm", "4", "--mca",
           "coll_tuned_reduce_scatter_block_algorithm", "3", "--mca", "coll_tuned_allgather_algorithm", "4")},
    {"openmpi_tuned", "warm heap, huge pages, halving and doubling", BENCH_COLLECTIVES, 1, be_warm_mpi,
     WORDS("mpirun.openmpi", "mpi_openmpi", TUNED, "coll_tuned_allreduce_algorithm", "6", "--mca",
           "coll_tuned_reduce_scatter_block_algorithm", "4", "--mca", "coll_tuned_allgather_algorithm", "3")},
    {"mpich", "as installed", BENCH_COLLECTIVES | BENCH_ROUTING | BENCH_BRIDGE | BENCH_BETWEEN, 1, be_mpi,
     WORDS("mpirun.mpich", "mpi_mpich")},
    {"gloo", "torch.distributed", BENCH_COLLECTIVES | BENCH_BETWEEN | BENCH_TORCH, 1, be_python,
     WORDS("torch_collectives.py", "gloo")},
    {"gloo", "torch.distributed", BENCH_ROUTING, 1, be_python, WORDS("torch_exchange.py", "exchange")},
    {"gloo", "torch.distributed", BENCH_BRIDGE, 1, be_python, WORDS("torch_bridge.py", "bridge")},
    {"addend_openmpi", "backend mpi", BENCH_COLLECTIVES | BENCH_REDUCER | BENCH_BETWEEN, 1, be_mpi,
     WORDS("mpirun.openmpi", "bench_rank")},
    {"addend_mpich", "backend mpi", BENCH_COLLECTIVES | BENCH_REDUCER | BENCH_BETWEEN, 1, be_mpi,
     WORDS("mpirun.mpich", "bench_rank")},
    {"torch_ddp", "gloo", BENCH_TRAINING, 1, be_python, WORDS("torch_train.py", "ddp")},
    {"torch_fsdp", "gloo", BENCH_TRAINING, 1, be_python, WORDS("torch_train.py", "fsdp")},
    {"torch_ddp_compiled", "gloo, torch.compile", BENCH_TRAINING, 1, be_python,
     WORDS("torch_train.py", "ddp_compiled")},
    {"torch_ddp_bf16", "gloo, autocast", BENCH_TRAINING, 1, be_python, WORDS("torch_train.py", "ddp_bf16")},
    {"torch_ddp_bf16_compiled", "gloo, autocast, torch.compile", BENCH_TRAINING, 1, be_python,
     WORDS("torch_train.py", "ddp_bf16_compiled")},
    {"addend_dp", "the ranks share the batch", BENCH_TENSOR | BENCH_HYBRID | BENCH_PIPELINE, 1, be_addend_plain, NULL},
    {"torch_tp", "gloo", BENCH_TENSOR, 1, be_python, WORDS("torch_train.py", "tp")},
    {"torch_tp", "gloo", BENCH_TENSOR, 1, be_python, WORDS("torch_train.py", "tp_sequence")},
    {"torch_fsdp_tp", "gloo", BENCH_HYBRID, 1, be_python, WORDS("torch_train.py", "fsdp_tp")},
    {"torch_ddp", "gloo", BENCH_UPDATE, 1, be_python, WORDS("torch_update.py", "ddp")},
    {"torch_fsdp", "gloo", BENCH_UPDATE, 1, be_python, WORDS("torch_update.py", "fsdp")},
    {"addend_products", "its products alone", BENCH_MUON, 1, be_addend_plain, NULL},
    {"addend_adamw", "AdamW", BENCH_MUON, 1, be_addend_plainest, NULL},
    {"torch_fsdp", "gloo", BENCH_MUON, 1, be_python, WORDS("torch_update.py", "fsdp_muon")},
    {"addend_one", "one product", BENCH_GROUPED, 1, be_addend_plain, NULL},
    {"torch_grouped", "grouped_mm", BENCH_LAYER | BENCH_GROUPED, 1, be_python, WORDS("torch_experts.py", "experts")},
    {"addend_one", "one process", BENCH_PIPELINE, 1, be_addend, NULL},
    {"torch_pipelining", "gloo", BENCH_PIPELINE, 1, be_python, WORDS("torch_pipeline.py", "pipeline")},
    {"addend_microbatches", "a microbatch for each leaf", BENCH_LEAVES, 1, be_addend_plain, NULL},
    {"addend_whole", "one microbatch", BENCH_LEAVES, 1, be_addend_plainest, NULL},
    {"addend_one", "one process", BENCH_DECOMPOSITION, 1, be_addend, NULL},
    {"torch_one", "one process, one thread", BENCH_DECOMPOSITION, 1, be_python, WORDS("torch_decompose.py", "1")},
    {"torch_group", "torch.distributed", BENCH_TORCH, 1, be_python, WORDS("torch_collectives.py", "addend")},
    {"torch_group", "DDP", BENCH_TORCH_STEP, 1, be_python, WORDS("torch_train.py", "ddp_addend")},
    {"torch_group", "FSDP2", BENCH_TORCH_STEP, 1, be_python, WORDS("torch_train.py", "fsdp_zero3_addend")},
    {"gloo", "DDP", BENCH_TORCH_STEP, 1, be_python, WORDS("torch_train.py", "ddp")},
    {"gloo", "FSDP2", BENCH_TORCH_STEP, 1, be_python, WORDS("torch_train.py", "fsdp_zero3")},
    {"deepspeed", "shm.cpp", BENCH_TORCH, 1, be_python, WORDS("deepspeed_shm.py", "all_reduce")},
    {"torch_two", "one process, two threads", BENCH_DECOMPOSITION, 1, be_python, WORDS("torch_decompose.py", "2")},
};
const int bench_kind_count = sizeof bench_kinds / sizeof *bench_kinds;
_Static_assert(sizeof bench_kinds / sizeof *bench_kinds <= BENCH_KINDS_MAX, "an orchestra has no place for all");

/* Closes file descriptors inherited from the conductor: its sockets would stay open here, so other programs' ranks
 * would not notice that it closes them. glibc before 2.34 has no close_range, nor does Linux before 5.9. */
static void close_inherited(void) {
  if (!syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0)) return;
  for (int fd = STDERR_FILENO + 1; fd < sysconf(_SC_OPEN_MAX); fd++) close(fd);
}

static void be(const bench_kind *kind, const char *address, const bench_scene *scene) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  close_inherited();
  if (kind->is_peer) keep_quiet();
  dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output is reserved for the JSON document
  _exit(kind->be(kind, address, scene));
}

/* Returns the number of processes of a program that join the conductor. Peers of a decomposition on pools use one
 * process; a link has one process on each host. */
static int processes(const bench_kind *kind, const bench_scene *scene) {
  if (kind->be == be_link) return scene->hosts->world.hosts;
  if (kind->be == be_addend && kind->is_peer) return 1;
  return kind->is_peer && kind->duties == BENCH_DECOMPOSITION ? 1 : scene->ranks;
}

void bench_start(const bench_kind *kind, const bench_scene *given, bench_program *out) {
  char address[BENCH_WORD];
  bench_scene scene = *given;
  int ranks = scene.ranks = processes(kind, given);
  *out = (bench_program){.ranks = ranks, .process = -1};
  snprintf(out->name, sizeof out->name, "%s", kind->name);
  for (int i = 0; i < BENCH_RANKS_MAX; i++) out->rank[i] = -1;
  int listener = bench_listen(scene.hosts ? scene.hosts->folder : NULL, address);
  if (listener < 0) return;
  fflush(NULL);
  out->process = fork();
  if (out->process == 0) be(kind, address, &scene);
  bench_gather(out, listener, out->process > 0 ? JOIN_SECONDS : 0);
}
