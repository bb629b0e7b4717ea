/* Which operations are measured, which failure is reported, and where the peers are. */
#include "shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int bench_wants(const bench_options *options, const char *op) {
  return options->op ? !strcmp(options->op, op) : !options->quick;
}

void bench_keep(ad_status *first, ad_status next) {
  if (!*first || next == AD_INTERRUPTED) *first = next;
}

const char *bench_peer_path(const char *name, char *buffer, size_t size) {
  const char *folder = getenv("ADDEND_PEERS");
  char own[1024] = "";
  if (folder) return snprintf(buffer, size, "%s/%s", folder, name), buffer;
  ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
  char *slash = length > 0 ? strrchr(own, '/') : NULL;
  if (slash) *slash = 0;
  snprintf(buffer, size, "%s/peers/%s", own, name);
  return buffer;
}
