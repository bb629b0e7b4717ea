/* Running gnuplot. */
#ifndef TRAIN_GNUPLOT_H
#define TRAIN_GNUPLOT_H
#include <stdio.h>
#include "addend/status.h"

/* Runs gnuplot on what `write` puts into the script and gives the <svg> element that it prints; release with
 * ad_release. AD_SYSTEM if it cannot be started or fails, AD_IO without temporary files. */
ad_status ad_gnuplot(void (*write)(FILE *script, const void *data), const void *data, char **svg) AD_CHECKED;

#endif
