/* Fuzzes the files of a dump (each behind its length in four bytes): what is accepted is judged, the document can be
 * printed, and a second judgement is the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "addend/diff.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 8 };

static void require(int holds) {
  if (!holds) abort();
}

/* Writes the input's files into memory files, and gets their paths under /proc/self/fd. */
static size_t write_files(const uint8_t *data, size_t size, int opened[FILES], char paths[FILES][40]) {
  size_t count = 0;
  while (size >= 4 && count < FILES) {
    uint32_t length;
    memcpy(&length, data, 4);
    data += 4;
    size -= 4;
    if (length > size) length = (uint32_t)size;
    opened[count] = memfd_create("dump", 0);
    require(opened[count] >= 0 && write(opened[count], data, length) == (ssize_t)length);
    snprintf(paths[count], sizeof paths[count], "/proc/self/fd/%d", opened[count]);
    data += length;
    size -= length;
    count++;
  }
  return count;
}

static void judge(const char *const *files, size_t count) {
  int holds = -1, again = -1;
  char *json = NULL, *second = NULL, *table = NULL, *lines = NULL, *calls = NULL;
  if (ad_diff(files, count, NULL, &holds, &json)) {
    require(!json && ad_last_error()[0] != 0);
    return;
  }
  require(!ad_diff_table(json, AD_PLAIN_TEXT, &table) && (holds == 0 || holds == 1));
  require(!ad_diff_calls(json, AD_PLAIN_TEXT, &calls));
  require(!ad_diff_github(json, &lines) && !strncmp(lines, "::", 2));
  require(!ad_diff(files, count, NULL, &again, &second) && again == holds && !strcmp(json, second));
  free(json);
  free(second);
  free(table);
  free(lines);
  free(calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char paths[FILES][40];
  const char *files[FILES];
  int opened[FILES];
  size_t count = write_files(data, size, opened, paths);
  for (size_t i = 0; i < count; i++) files[i] = paths[i];
  if (count) judge(files, count);
  for (size_t i = 0; i < count; i++) close(opened[i]);
  return 0;
}
