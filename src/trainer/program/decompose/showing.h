/* What a decomposition found, on text that is held out. */
#ifndef PROGRAM_DECOMPOSE_SHOWING_H
#define PROGRAM_DECOMPOSE_SHOWING_H
#include "program/decompose/decompose.h"

/* As ad_program_kind's show: `own` is an ad_decomposition. */
ad_status ad_decompose_show(void *own, const ad_forward *forward, char **out) AD_CHECKED;

#endif
