/* Forges checkpoints: changed contents under a valid checksum. */
#ifndef TESTS_FORGE_H
#define TESTS_FORGE_H

/* Rewrites a checkpoint's index with `to` in place of the first `from`, under a checksum that fits the new contents. */
void forge(const char *path, const char *from, const char *to);

#endif
