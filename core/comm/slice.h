/* Time slices of ranks that wait. */
#ifndef COMM_SLICE_H
#define COMM_SLICE_H

/* Asks the kernel to give this thread short time slices. The thread's share of the processors stays the same, but it
 * runs more often: if other programs use the same processors, a rank that has waited continues after a tenth of a
 * millisecond instead of after the whole time slices of those programs, and so do all ranks that wait for this rank.
 * Called when a thread yields in a wait; only a thread's first call has an effect. Kernels before Linux 6.12 ignore the
 * request, and threads with a real-time policy stay as they are. */
void ad_slice_shorten(void);

#endif
