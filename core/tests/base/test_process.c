/* Tests how much memory a process finds free, read from test folders in place of /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/process.h"

static char root[64];

static void make_folders(char *path) {
  for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    (void)mkdir(path, 0777);
    *slash = '/';
  }
}

static void put(const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", root, name);
  make_folders(path);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static int make_root(void **state) {
  snprintf(root, sizeof root, "/tmp/addend-process-XXXXXX");
  return !mkdtemp(root);
}

static int remove_root(void **state) {
  char command[96];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static void put_machine(void) { put("proc/meminfo", "MemTotal:  9999 kB\nMemAvailable:    1000 kB\nCached: 5 kB\n"); }

static ad_memory_room room(void) {
  ad_memory_room found;
  ad_process_memory_room(root, &found);
  return found;
}

static void leaves(uint64_t bytes) { assert_true(room().left == bytes); }

static void is_limited_by(const char *file, uint64_t bytes) {
  ad_memory_room found = room();
  assert_true(found.limit == bytes);
  assert_string_equal(*file ? found.limited_by + strlen(root) : found.limited_by, file);
}

static void where_nothing_is_said_nothing_limits(void **state) { leaves(UINT64_MAX); }

static void without_groups_the_machine_limits(void **state) {
  put_machine();
  leaves(1024000);
}

static void a_group_without_a_limit_changes_nothing(void **state) {
  put_machine();
  put("proc/self/cgroup", "0::/job\n");
  leaves(1024000);
  put("sys/fs/cgroup/job/memory.max", "max\n");
  put("sys/fs/cgroup/job/memory.current", "700000\n");
  leaves(1024000);
}

static void the_least_of_a_group_and_those_above_it_is_left(void **state) {
  put_machine();
  put("proc/self/cgroup", "0::/slurm/job/step\n");
  put("sys/fs/cgroup/slurm/job/step/memory.max", "900000\n");
  put("sys/fs/cgroup/slurm/job/step/memory.current", "100000\n");
  leaves(800000);
  put("sys/fs/cgroup/slurm/memory.max", "950000\n");
  put("sys/fs/cgroup/slurm/memory.current", "350000\n");
  leaves(600000);
  put("sys/fs/cgroup/memory.max", "500000\n");
  put("sys/fs/cgroup/memory.current", "5000\n");
  leaves(495000);
  put("proc/meminfo", "MemAvailable: 4 kB\n");
  leaves(4096);
}

static void the_smallest_limit_of_a_group_and_those_above_it_is_named(void **state) {
  put_machine();
  is_limited_by("", UINT64_MAX);
  put("proc/self/cgroup", "0::/slurm/job/step\n");
  put("sys/fs/cgroup/slurm/job/step/memory.max", "max\n");
  is_limited_by("", UINT64_MAX);
  put("sys/fs/cgroup/slurm/memory.max", "700000\n");
  is_limited_by("/sys/fs/cgroup/slurm/memory.max", 700000);  // however much of it is used
  put("sys/fs/cgroup/slurm/job/memory.max", "900000\n");
  is_limited_by("/sys/fs/cgroup/slurm/memory.max", 700000);
  put("proc/self/cgroup", "4:memory:/job\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  is_limited_by("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", 300000);
}

static void swap_that_is_free_is_reported(void **state) {
  assert_true(room().swap == 0);
  put("proc/meminfo", "SwapTotal: 9 kB\nSwapFree: 3 kB\n");
  assert_true(room().swap == 3072);
}

static void version_1_is_found_among_other_controllers(void **state) {
  put_machine();
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "900000\n");
  put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "200000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "200000\n");
  put("proc/self/cgroup", "3:cpuset:/\n2:cpu,memory:/job\n1:name=systemd:/job\n0::/\n");
  leaves(700000);
  put("proc/self/cgroup", "2:memory,hugetlb:/job\n");
  leaves(700000);
  put("proc/self/cgroup", "2:memoryx,xmemory:/job\n");
  leaves(1024000);
}

// Docker mounts the container's own group in place of the tree, but names the host's path.
static void a_path_that_is_not_there_leaves_the_mount(void **state) {
  put_machine();
  put("proc/self/cgroup", "4:memory:/docker/0123\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  leaves(200000);
}

static void cached_files_are_not_in_the_way(void **state) {
  put_machine();
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/memory.max", "500000\n");
  put("sys/fs/cgroup/job/memory.current", "490000\n");
  put("sys/fs/cgroup/job/memory.stat", "file 480000\ninactive_file 300000\nactive_file 90000\n");
  leaves(400000);
  put("sys/fs/cgroup/job/memory.stat", "inactive_file 900000\n");
  leaves(500000);
}

static void a_group_over_its_limit_has_nothing_left(void **state) {
  put_machine();
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/memory.max", "500000\n");
  put("sys/fs/cgroup/job/memory.current", "600000\n");
  leaves(0);
}

static void lines_that_are_none_are_passed_over(void **state) {
  put_machine();
  put("proc/self/cgroup", "\nnonsense\n0::\n0:memory\n4:memory:relative\n");
  leaves(1024000);
}

static void a_command_line_is_its_words(void **state) {
  char words[4096], cut[3];
  size_t size = ad_process_command(words, sizeof words);
  assert_true(size > 0 && !words[size - 1]);
  assert_non_null(strstr(words, "test_base_process"));
  assert_int_equal(ad_process_command(cut, sizeof cut), 0);  // no room for a whole word
}

static void the_processor_is_named_with_the_cores_that_are_seen(void **state) {
  char text[256];
  assert_non_null(strstr(ad_processor_print(text, sizeof text), " seen)"));
}

/* The processor's name is that of /proc/cpuinfo, where that has one, which it has not on every architecture. */
static void the_processors_model_is_that_of_the_kernel(void **state) {
  char line[512], text[512];
  FILE *file = fopen("/proc/cpuinfo", "r");
  const char *name = NULL;
  while (file && !name && fgets(line, sizeof line, file))
    if (!strncmp(line, "model name", strlen("model name"))) name = strstr(line, ": ");
  if (file) fclose(file);
  if (!name) skip();
  line[strcspn(line, "\n")] = 0;
  assert_ptr_equal(strstr(ad_processor_print(text, sizeof text), name + 2), text);
}

int main(void) {
#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)
  const struct CMUnitTest tests[] = {
      IN_ROOT(where_nothing_is_said_nothing_limits),
      IN_ROOT(without_groups_the_machine_limits),
      IN_ROOT(a_group_without_a_limit_changes_nothing),
      IN_ROOT(the_least_of_a_group_and_those_above_it_is_left),
      IN_ROOT(version_1_is_found_among_other_controllers),
      IN_ROOT(a_path_that_is_not_there_leaves_the_mount),
      IN_ROOT(cached_files_are_not_in_the_way),
      IN_ROOT(a_group_over_its_limit_has_nothing_left),
      IN_ROOT(lines_that_are_none_are_passed_over),
      IN_ROOT(the_smallest_limit_of_a_group_and_those_above_it_is_named),
      IN_ROOT(swap_that_is_free_is_reported),
      cmocka_unit_test(a_command_line_is_its_words),
      cmocka_unit_test(the_processor_is_named_with_the_cores_that_are_seen),
      cmocka_unit_test(the_processors_model_is_that_of_the_kernel),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
