/* Forges checkpoints: changed contents under a valid checksum. */
#include "forge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "addend/safetensors.h"
#include "base/memory.h"
#include "checkpoint/checkpoint_format.h"
#include "files/file.h"
#include "files/output.h"

enum { INDEX_BYTES = 1 << 16 };

void forge(const char *path, const char *from, const char *to) {
  char *text, *found;
  int64_t size;
  assert_int_equal(ad_file_read(path, 1 << 20, &text, &size), AD_OK);
  found = strstr(text, from);
  assert_non_null(found);
  char *body = text + AD_CHECKPOINT_FIRST_BYTES, forged[INDEX_BYTES];
  int length = snprintf(forged, sizeof forged, "%.*s%s%s", (int)(found - body), body, to, found + strlen(from));
  assert_true(length > 0 && (size_t)length < sizeof forged);
  FILE *file = fopen(path, "w");
  fprintf(file, AD_CHECKPOINT_FIRST, (unsigned long long)ad_checksum(forged, (size_t)length, 0));
  fwrite(forged, 1, (size_t)length, file);
  fclose(file);
  ad_release(text);
}
