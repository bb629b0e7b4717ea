/* A copy of the pieces that this rank writes, so that training can continue while the copy is written. */
#ifndef CHECKPOINT_CHECKPOINT_SNAPSHOT_H
#define CHECKPOINT_CHECKPOINT_SNAPSHOT_H
#include "addend/checkpoint.h"
#include "addend/safetensors.h"

typedef struct ad_snapshot {
  ad_safetensor *pieces; /* wider dtypes first; names are owned */
  size_t count;
  char *memory; /* kept from one snapshot to the next */
  size_t bytes;
} ad_snapshot;

/* AD_INVALID, with the place in the list, unless every value and number of a caller's state is complete. */
AD_CHECKED ad_status ad_checkpoint_check_state(const char *call, const ad_checkpoint_state *state);
/* Copies this rank's pieces of the state and overwrites the earlier copy. AD_TYPE for a value that is P or V on some
 * axis. */
AD_CHECKED ad_status ad_snapshot_take(ad_snapshot *snapshot, const ad_comm *comm, const ad_checkpoint_state *state);
/* Bytes of memory that the snapshot takes on this rank. */
size_t ad_snapshot_bytes(const ad_comm *comm, const ad_checkpoint_state *state);
void ad_snapshot_clear(ad_snapshot *snapshot);
/* Writes the pieces to a file; returns when the file is on disk. */
AD_CHECKED ad_status ad_snapshot_write(const ad_snapshot *snapshot, const char *path, int64_t step, int64_t *bytes,
                                       uint64_t *checksum);

#endif
