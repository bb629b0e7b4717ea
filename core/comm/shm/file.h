/* The memory file of a world: making, mapping and closing it. */
#ifndef COMM_SHM_FILE_H
#define COMM_SHM_FILE_H
#include "comm/shm/control.h"

/* Makes the file for `ranks` ranks and maps it; ad_shm_unmake closes the descriptor and unmaps the file.
 * region_bytes: the size of each rank's region; 0: as large as the machine's memory. `inherited` is 1 if the descriptor
 * must stay open after exec. */
ad_status ad_shm_make(uint32_t ranks, size_t region_bytes, int inherited, int *fd, shm_control **out) AD_CHECKED;
void ad_shm_unmake(int fd, shm_control *control);
/* Maps the file of a world that another process made. The caller keeps fd. */
ad_status ad_shm_map(int fd, shm_control **out) AD_CHECKED;

#endif
