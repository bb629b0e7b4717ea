/* Forges checkpoints: changed contents under a valid checksum. */
#ifndef TESTS_FORGE_H
#define TESTS_FORGE_H

/* Writes a checkpoint's index anew with `to` in place of the first `from`, and the checksum that fits what it says now.
 */
void forge(const char *path, const char *from, const char *to);

#endif
