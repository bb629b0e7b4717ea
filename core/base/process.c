/* Reads /proc and /sys about this process; changes nothing. */
#include "base/process.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

size_t ad_process_pss(void) {
  char line[256];
  size_t kibibytes = 0;
  FILE *file = fopen("/proc/self/smaps_rollup", "re");
  if (!file) return 0;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "Pss: %zu", &kibibytes) == 1) break;
  fclose(file);
  return kibibytes * 1024;
}

/* ---- memory that can still be allocated ---- */

enum { PATH_BYTES = AD_LIMIT_PATH };
static const uint64_t unknown = UINT64_MAX;

// The files in which one version of control groups reports a group's memory. If there is no limit, the file `limit` has
// "max" (v2) or a number larger than any machine's memory (v1). The kernel counts cached pages of files as used, but
// frees them before an allocation fails.
typedef struct group_files {
  const char *mount, *limit, *used, *inactive_cache, *active_cache;
} group_files;
static const group_files version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                      "total_inactive_file ", "total_active_file "};
static const group_files version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ",
                                      "active_file "};

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Returns the number after `key` in the first line of the file folder/name that begins with `key`; `unknown` if there
// is none.
static uint64_t number_in(const char *folder, const char *name, const char *key) {
  char text[PATH_BYTES];
  uint64_t number = unknown;
  if (snprintf(text, sizeof text, "%s/%s", folder, name) >= (int)sizeof text) return unknown;
  FILE *file = fopen(text, "re");
  if (!file) return unknown;
  while (fgets(text, sizeof text, file)) {
    if (strncmp(text, key, strlen(key)) != 0) continue;
    if (sscanf(text + strlen(key), "%" SCNu64, &number) != 1) number = unknown;
    break;
  }
  fclose(file);
  return number;
}

/* Returns the bytes of one kind of cached pages; 0 if the group does not report it. */
static uint64_t cache_of(const char *group, const char *key) {
  uint64_t bytes = number_in(group, "memory.stat", key);
  return bytes == unknown ? 0 : bytes;
}

/* Lowers room->limit and room->left to the values of one control group, if the group's are lower. */
static void look_at_group(const char *group, const group_files *files, ad_memory_room *room) {
  uint64_t limit = number_in(group, files->limit, ""), used = number_in(group, files->used, "");
  if (limit < room->limit &&
      snprintf(room->limited_by, sizeof room->limited_by, "%s/%s", group, files->limit) < (int)sizeof room->limited_by)
    room->limit = limit;
  if (limit == unknown || used == unknown) return;
  used -= least(used, cache_of(group, files->inactive_cache));
  used -= least(used, cache_of(group, files->active_cache));
  room->left = least(room->left, limit - least(limit, used));
}

// Calls look_at_group for a group and for all groups above it, up to the mount. In a container the path may be the
// host's. Then only the mount exists, which is the container's own group.
static void look_at_groups(const char *root, const group_files *files, const char *path, ad_memory_room *room) {
  char group[PATH_BYTES];
  size_t top = strlen(root) + strlen(files->mount);
  if (path[0] != '/') return;
  if (snprintf(group, sizeof group, "%s%s%s", root, files->mount, path) >= (int)sizeof group) return;
  look_at_group(group, files, room);
  while (strlen(group) > top) {
    *strrchr(group, '/') = 0;
    look_at_group(group, files, room);
  }
}

static int has_memory(const char *controllers) {
  for (; *controllers; controllers += strspn(controllers, ",")) {
    size_t length = strcspn(controllers, ",");
    if (length == strlen("memory") && !memcmp(controllers, "memory", length)) return 1;
    controllers += length;
  }
  return 0;
}

// Calls look_at_groups for one line of /proc/self/cgroup, NUMBER:CONTROLLERS:PATH; version 2 names no controllers.
static void look_by_line(const char *root, char *line, ad_memory_room *room) {
  char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path) return;
  *path++ = 0;
  path[strcspn(path, "\n")] = 0;
  if (!*++controllers)
    look_at_groups(root, &version_2, path, room);
  else if (has_memory(controllers))
    look_at_groups(root, &version_1, path, room);
}

static uint64_t bytes_of_machine(const char *root, const char *key) {
  char folder[PATH_BYTES];
  snprintf(folder, sizeof folder, "%s/proc", root);
  uint64_t kibibytes = number_in(folder, "meminfo", key);
  return kibibytes > unknown >> 10 ? unknown : kibibytes << 10;
}

void ad_process_memory_room(const char *root, ad_memory_room *out) {
  char line[PATH_BYTES];
  *out = (ad_memory_room){.left = bytes_of_machine(root, "MemAvailable:"), .limit = unknown};
  out->swap = bytes_of_machine(root, "SwapFree:");
  if (out->swap == unknown) out->swap = 0;
  snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
  FILE *file = fopen(line, "re");
  if (!file) return;
  while (fgets(line, sizeof line, file)) look_by_line(root, line, out);
  fclose(file);
}

/* ---- the command line of this process, and its processors ---- */

size_t ad_process_command(char *buffer, size_t size) {
  FILE *file = fopen("/proc/self/cmdline", "re");
  if (!file) return 0;
  size_t count = fread(buffer, 1, size, file);
  fclose(file);
  while (count && buffer[count - 1]) count--;  // removes a last word that was truncated
  return count;
}

/* Reads the processor's name from /proc/cpuinfo. */
static void read_model(char *out, size_t size) {
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "re");
  snprintf(out, size, "processor of unknown model");
  while (file && fgets(line, sizeof line, file)) {
    const char *name = strstr(line, ": ");
    if (strncmp(line, "model name", strlen("model name")) != 0 || !name) continue;
    snprintf(out, size, "%.*s", (int)strcspn(name + 2, "\n"), name + 2);
    break;
  }
  if (file) fclose(file);
}

static int cores_seen(void) {
  cpu_set_t seen;
  return sched_getaffinity(0, sizeof seen, &seen) ? 1 : CPU_COUNT(&seen);
}

const char *ad_processor_print(char *buffer, size_t size) {
  char model[256];
  int cores = cores_seen();
  read_model(model, sizeof model);
  snprintf(buffer, size, "%s (%d core%s seen)", model, cores, cores == 1 ? "" : "s");
  return buffer;
}
