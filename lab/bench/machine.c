/* Reads what the machine is from the system, and measures its memory bandwidth. */
#include "machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "floor_kernels.h"
#include "worker.h"

enum { COPY_BYTES = 64 << 20, COPIES = 4, TRIES = 5, CORES_MAX = 256 };

/* Reads the rest of the file's first line that starts with `key` into `out`; "" if there is none. */
static void read_line(const char *path, const char *key, char *out, size_t size) {
  FILE *file = fopen(path, "r");
  char line[512];
  out[0] = 0;
  while (file && !out[0] && fgets(line, sizeof line, file)) {
    if (strncmp(line, key, strlen(key)) != 0) continue;
    const char *rest = line + strlen(key);
    rest += strspn(rest, " \t:");
    snprintf(out, size, "%.*s", (int)strcspn(rest, "\n"), rest);
  }
  if (file) fclose(file);
}

json_t *bench_machine(void) {
  char cpu[256], huge[256];
  struct utsname system = {0};
  double load[1] = {0};
  uname(&system);
  read_line("/proc/cpuinfo", "model name", cpu, sizeof cpu);
  read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "", huge, sizeof huge);
  if (getloadavg(load, 1) < 0) load[0] = 0;
  return json_pack("{ss si sI ss ss sf}", "cpu", cpu, "cores", (int)sysconf(_SC_NPROCESSORS_ONLN), "memory_bytes",
                   (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), "kernel", system.release,
                   "shared_huge_pages", huge, "load", load[0]);
}

typedef struct copier {
  char *from, *to;
} copier;

static void *copy(void *context) {
  const copier *self = context;
  for (int i = 0; i < COPIES; i++) bench_floor_copy(self->to, self->from, COPY_BYTES);
  return NULL;
}

static double time_copies(copier *copiers, int cores) {
  pthread_t threads[CORES_MAX];
  int started = 0;
  double start = bench_now();
  while (started < cores && !pthread_create(&threads[started], NULL, copy, &copiers[started])) started++;
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  return 2.0 * COPY_BYTES * COPIES * started / (bench_now() - start) / 1e9;
}

double bench_copy_gbps(void) {
  copier copiers[CORES_MAX];
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  int cores = online > 16 ? 16 : (int)online;
  double best = 0;
  char *memory = malloc((size_t)cores * 2 * COPY_BYTES);
  if (!memory) return 0;
  memset(memory, 1, (size_t)cores * 2 * COPY_BYTES);
  for (int i = 0; i < cores; i++) {
    copiers[i].from = memory + (size_t)i * 2 * COPY_BYTES;
    copiers[i].to = copiers[i].from + COPY_BYTES;
  }
  for (int i = 0; i < TRIES; i++) {
    double gbps = time_copies(copiers, cores);
    if (gbps > best) best = gbps;
  }
  free(memory);
  return best;
}
