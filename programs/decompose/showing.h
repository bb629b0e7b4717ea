/* Writes the findings of a decomposition (findings.h) as JSON. */
#ifndef DECOMPOSE_SHOWING_H
#define DECOMPOSE_SHOWING_H
#include "decompose/decompose.h"

/* The `show` function of the program's record; `own` is an ad_decomposition. */
ad_status ad_decompose_show(void *own, const ad_forward *forward, char **out) AD_CHECKED;

#endif
