/* Memory in the shared memory file: each rank's own region, memory that several ranks share, staging buffers; and
 * mapping pages. */
#ifndef COMM_SHM_MEMORY_H
#define COMM_SHM_MEMORY_H
#include "comm/backend.h"
#include "comm/shm/world.h"

enum {
  SHM_STAGE = 128 * 1024,      // bytes of one half of a staging buffer; see ad_shm_take_staging
  SHM_STAGING = 4 * SHM_STAGE  // bytes of a staging buffer
};

/* Returns the offset of a buffer in the shared memory file; 0 if the buffer is outside the file or empty. */
uint64_t ad_shm_offset(const shm_world *world, const void *memory, size_t bytes);
ad_status ad_shm_alloc(shm_world *world, size_t bytes, void **out) AD_CHECKED;
void ad_shm_free(shm_world *world, void *memory);
/* The backend's functions `share` and `attach`; ad_shm_free frees the memory that either of them returned. */
ad_status ad_shm_share(shm_world *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) AD_CHECKED;
ad_status ad_shm_attach(shm_world *world, size_t bytes, const ad_shared_token *token, void **out) AD_CHECKED;
/* ad_shm_take_staging takes a staging buffer, through which values outside the shared memory file pass;
 * ad_shm_give_staging returns it. The buffer has two halves of SHM_STAGE bytes for inputs, then two for results. */
ad_status ad_shm_take_staging(shm_world *world, void **out) AD_CHECKED;
void ad_shm_give_staging(shm_world *world, void *staging);
/* Takes a staging buffer that is kept until all members have consumed the call and is then free again. *out is NULL
 * if too many buffers are kept. */
ad_status ad_shm_keep_staging(shm_world *world, const shm_call *c, void **out) AD_CHECKED;
/* Moves those kept staging buffers that no member reads any more to the free ones. */
void ad_shm_look_at_kept(shm_world *world);
/* Frees this rank's records of its memory, and stops sharing memory with other ranks. */
void ad_shm_free_all(shm_world *world);

/* ---- in map.c: mapping the world's file ---- */

ad_status ad_shm_map_begin(shm_world *world) AD_CHECKED;
void ad_shm_map_end(shm_world *world);
/* Maps the pages of the large buffers of a matched reduction, except pages that are mapped already. */
void ad_shm_map_buffers(shm_world *world, const shm_call *c);
/* Maps the pages of memory that another rank shared. */
void ad_shm_map_shared(const shm_world *world, const void *memory, size_t bytes);

#endif
