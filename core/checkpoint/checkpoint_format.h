/* The format of a checkpoint's index, for its writer and its reader. */
#ifndef CHECKPOINT_CHECKPOINT_FORMAT_H
#define CHECKPOINT_CHECKPOINT_FORMAT_H

#define AD_CHECKPOINT_FORMAT "addend checkpoint 2"
/* The first bytes of index.json. They contain the checksum of all bytes after them. */
#define AD_CHECKPOINT_FIRST "{\"xxh64\": \"%016llx\", \"index\":\n"
enum { AD_CHECKSUM_DIGITS = 16, AD_CHECKPOINT_FIRST_BYTES = 39, AD_SHARD_NAME_SIZE = 48 };
_Static_assert(sizeof AD_CHECKPOINT_FIRST - sizeof "%016llx" + AD_CHECKSUM_DIGITS == AD_CHECKPOINT_FIRST_BYTES,
               "the first bytes are counted");

#endif
