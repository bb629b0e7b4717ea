/* A copy of the pieces that this rank writes, so that training can continue while the copy is written. */
#ifndef CHECKPOINT_CHECKPOINT_SNAPSHOT_H
#define CHECKPOINT_CHECKPOINT_SNAPSHOT_H
#include "addend/checkpoint.h"
#include "addend/safetensors.h"
#include "base/internal.h"

typedef struct ad_snapshot {
  ad_safetensor *pieces; /* this rank's pieces, those of wider dtypes first; the names are owned */
  size_t count;
  char *memory; /* the copies; kept for the next snapshot */
  size_t bytes;
} ad_snapshot;

/* Returns AD_INVALID, with the position in the list, if a value or number of a caller's state is incomplete. */
AD_CHECKED ad_status ad_checkpoint_check_state(const char *call, const ad_checkpoint_state *state);
/* Copies this rank's pieces of the state over the earlier copies. Returns AD_TYPE if a value is P or V on some axis. */
AD_CHECKED ad_status ad_snapshot_take(ad_snapshot *snapshot, const ad_comm *comm, const ad_checkpoint_state *state);
/* Returns the bytes of memory that the snapshot takes on this rank. */
AD_INTERNAL size_t ad_snapshot_bytes(const ad_comm *comm, const ad_checkpoint_state *state);
void ad_snapshot_clear(ad_snapshot *snapshot);
/* Writes the copies to a file, and returns when the file is on disk. */
AD_CHECKED ad_status ad_snapshot_write(const ad_snapshot *snapshot, const char *path, int64_t step, int64_t *bytes,
                                       uint64_t *checksum);

#endif
