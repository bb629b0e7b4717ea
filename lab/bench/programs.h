/* All programs that can be measured (addend, floor, peers): how each is started, and which duties it can do. */
#ifndef BENCH_PROGRAMS_H
#define BENCH_PROGRAMS_H
#include "conductor.h"
#include "hosts.h"
#include "library.h"

/* A kind of task; programs that can do it have its bit. */
typedef enum bench_duty {
  BENCH_COLLECTIVES = 1,
  BENCH_REDUCER = 2,
  BENCH_TRAINING = 4,
  BENCH_SHARDED = 8,
  BENCH_UPDATE = 16,
  BENCH_TENSOR = 32,
  BENCH_HYBRID = 64,
  BENCH_ROUTING = 128,
  BENCH_GROUPED = 256,
  BENCH_LAYER = 512,
  BENCH_BRIDGE = 1024,
  BENCH_DECOMPOSITION = 2048,
  BENCH_TRANSFER = 4096,
  BENCH_BETWEEN = 8192, /* collectives between hosts */
  BENCH_TORCH = 16384,  /* collectives through torch.distributed */
  BENCH_TORCH_STEP = 32768,
  BENCH_PIPELINE = 65536,
  BENCH_LEAVES = 131072,
  BENCH_MUON = 262144
} bench_duty;

/* How a program is started: the number of ranks, the model and the hosts. */
typedef struct bench_scene {
  int ranks;
  const bench_model *model;
  const bench_hosts *hosts; /* NULL: on this machine, not on simulated hosts */
} bench_scene;

/* A program. Several entries with one name are one program with different settings; the fastest setting counts. */
typedef struct bench_kind {
  const char *name, *setting;
  int duties, is_peer;
  /* Called in a new process: becomes the program by exec, or does its work; returns an exit status. */
  int (*be)(const struct bench_kind *kind, const char *address, const bench_scene *scene);
  char *const *words; /* arguments for `be` */
} bench_kind;

enum { BENCH_KINDS_MAX = 48 };
extern const bench_kind bench_kinds[];
extern const int bench_kind_count;

/* Starts a program and waits until its ranks have joined. out->lives is 0 if it is not installed or does not start. */
void bench_start(const bench_kind *kind, const bench_scene *scene, bench_program *out);

#endif
