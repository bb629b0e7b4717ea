/* Time slices of ranks that wait. */
#ifndef COMM_SLICE_H
#define COMM_SLICE_H

/* Asks the kernel to give this thread short time slices. Its share of the processors stays the same, but it gets them
 * more often: where other programs want the same processors, a rank that waited continues after a tenth of a
 * millisecond instead of after the others' whole slices, and with it all ranks that wait for this one. Called when a
 * thread yields in a wait; only the first call of a thread does something. Kernels before Linux 6.12 ignore it, and
 * threads with a real-time policy stay as they are. */
void ad_slice_shorten(void);

#endif
